package sync

import (
	"context"
	"fmt"

	"github.com/kube-nft/kube-nft/nft"
)

// client is what the loop needs of *kernel.Client.
type client interface {
	Read(context.Context) (nft.Tables, uint32, error)
	Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error)
	Count(context.Context, nft.Family, *nft.Set) (n uint32, known bool, err error)
	Commit(context.Context, nft.Batch) error
	Generation(context.Context) (uint32, error)
	Audit(context.Context, nft.Tables) (difference string, err error)
}

// read returns what the kernel holds at a generation, without what packets have put into affinity
// maps: readEntries adds that.
func read(ctx context.Context, k client) (nft.Tables, uint32, error) {
	have, generation, err := k.Read(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("read the tables back: %w", err)
	}
	return have, generation, nil
}

// readEntries reads what packets have put into the maps that which picks out.
func readEntries(ctx context.Context, k client, have nft.Tables, which func(nft.Family, *nft.Set) bool) (err error) {
	for family, table := range have {
		for name, held := range table.Sets {
			if !held.Set.Dynamic || !which(family, held.Set) {
				continue
			}
			if held.Map, err = k.Elements(ctx, family, held.Set); err != nil {
				return fmt.Errorf("read affinity map %s: %w", name, err)
			}
		}
	}
	return nil
}

// An EarlyRead is a kernel whose tables were read before the loop asked for them: while the
// sources were still listing, so that a restart does not take the time of both. Make it
// with ReadEarly; it is for one goroutine at a time, as the kernel is.
type EarlyRead struct {
	client
	have       nft.Tables // as of generation; nil once handed out
	generation uint32
}

// ReadEarly reads the tables of k. If that fails, the loop's own reading will say so.
func ReadEarly(ctx context.Context, k client) *EarlyRead {
	r := &EarlyRead{client: k}
	if have, generation, err := k.Read(ctx); err == nil {
		r.have, r.generation = have, generation
	}
	return r
}

// Read returns what was read early, once, and if nobody has committed since.
func (r *EarlyRead) Read(ctx context.Context) (nft.Tables, uint32, error) {
	have := r.have
	r.have = nil
	if have != nil {
		if now, err := r.Generation(ctx); err == nil && now == r.generation {
			return have, now, nil
		}
	}
	return r.client.Read(ctx)
}
