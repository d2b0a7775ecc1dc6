package kernel

import (
	"context"
	"fmt"
	"github.com/kube-nft/kube-nft/nft"
	"maps"
	"slices"
)

// Traffic counts what a Kernel has sent in its life: all batches, whatever became of them.
type Traffic struct {
	Batches  uint64
	Messages uint64 // with the begin and the end of each batch
	Bytes    uint64
}

// Sent returns what Commit has sent. It is for the goroutine that calls Commit.
func (k *Client) Sent() Traffic { return k.traffic }

func (t *Traffic) add(x *encoding) {
	t.Batches++
	t.Messages += uint64(len(x.refs)) + 2
	t.Bytes += uint64(len(x.buf))
}

// A Usage says how full a set is that packets fill.
type Fill struct {
	Count, Size uint32
}

// AffinityUsage returns how many clients each affinity map of a family holds. Where the
// kernel does not count, as before about Linux 6.16, maps are read until limit elements have
// come; those that were not read are missing.
func (k *Client) DynamicFill(ctx context.Context, f nft.Family, limit int) (map[string]Fill, error) {
	t := nft.NewTable(f)
	var counts map[string]uint32
	err := k.retry(ctx, func() (err error) {
		clear(t.Sets)
		counts, err = k.readSets(ctx, t)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the sizes of affinity maps: %w%s", err, accessRemedy(err))
	}
	return dynamicFill(t.Sets, counts, limit, func(s *nft.Set) (map[string]nft.Element, error) { return k.Elements(ctx, f, s) })
}

// affinityUsage reads the sets that are missing in counts.
func dynamicFill(sets map[string]*nft.Elements, counts map[string]uint32, limit int, read func(*nft.Set) (map[string]nft.Element, error)) (map[string]Fill, error) {
	usage := make(map[string]Fill)
	for _, name := range slices.Sorted(maps.Keys(sets)) {
		set := sets[name].Set
		if !set.Dynamic {
			continue
		}
		count, counted := counts[name]
		if !counted {
			if limit <= 0 {
				continue
			}
			elements, err := read(set)
			if err != nil {
				return nil, err
			}
			count = uint32(len(elements))
			limit -= len(elements)
		}
		usage[name] = Fill{Count: count, Size: set.Size}
	}
	return usage, nil
}
