package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// Counted returns what some sets hold, with the counters of their elements. Sets that kube-nft did not write are
// missing.
func (k *Client) Counted(ctx context.Context, f nft.Family, of func(set string) bool) (map[string]nft.Counted, error) {
	sets, _, err := k.sets(ctx, f)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("read counters of nf_tables: %w%s", err, accessRemedy(err))
	}
	all := make(map[string]nft.Counted)
	for name, set := range sets {
		if !of(name) || len(set.Set.Key) == 0 {
			continue
		}
		var c nft.Counted
		err := k.retry(ctx, func() (err error) {
			d := wire.NewElementDecoder(f, set.Set)
			if set.Set.Counters {
				d.Packets = make(map[string]uint64)
			}
			if err = k.dumpElements(ctx, f, name, d); err == nil && len(d.Repeated) > 0 {
				err = unix.EINTR // see checkCount
			}
			c.Elements, c.Packets = d.Elements(), d.Packets
			return err
		})
		if err != nil {
			return nil, setError("read counters of", f, set.Set, err)
		}
		all[name] = c
	}
	return all, nil
}

// RuleCounter returns how many packets the counting rules of a chain have seen. ok is false if the chain does not exist
// or has no such rule.
func (k *Client) RuleCounter(ctx context.Context, f nft.Family, chain string) (packets uint64, ok bool, err error) {
	err = k.retry(ctx, func() error {
		packets, ok = 0, false
		return k.Dump(ctx, unix.NFT_MSG_GETRULE, f, About(nft.TableName, chain), func(r attr.Reply) {
			table, of, rule := wire.DecodeRule(r.Attributes())
			if n, counts := rule.Counted(f); counts && table == nft.TableName && of == chain {
				packets, ok = packets+n, true
			}
		})
	})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, false, fmt.Errorf("read counters of chain %s %s %s: %w%s", f.NFT(), nft.TableName, chain, err,
			accessRemedy(err))
	}
	return packets, ok, nil
}

// A Fill says how full a dynamic set is.
type Fill struct {
	Count, Size uint32
}

// DynamicFill returns how many elements each dynamic set of a family holds. Where the kernel does
// not count elements, as before about Linux 6.16, it reads maps until limit elements have come;
// maps that it did not read are missing.
func (k *Client) DynamicFill(ctx context.Context, f nft.Family, limit int) (map[string]Fill, error) {
	sets, counts, err := k.sets(ctx, f)
	if err != nil {
		return nil, fmt.Errorf("read the sizes of dynamic sets: %w%s", err, accessRemedy(err))
	}
	return dynamicFill(sets, counts, limit, func(s *nft.Set) (map[string]nft.Element, error) {
		return k.Elements(ctx, f, s)
	})
}

// sets returns the sets of our table without their elements, and how many these are if the kernel says it.
func (k *Client) sets(ctx context.Context, f nft.Family) (map[string]*nft.Elements, map[string]uint32, error) {
	var t *nft.Table
	var counts map[string]uint32
	err := k.retry(ctx, func() (err error) {
		t = nft.NewTable(f)
		counts, err = k.readSets(ctx, t)
		return err
	})
	return t.Sets, counts, err
}

// dynamicFill reads the sets that counts lacks.
func dynamicFill(sets map[string]*nft.Elements, counts map[string]uint32, limit int,
	read func(*nft.Set) (map[string]nft.Element, error)) (map[string]Fill, error) {
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
