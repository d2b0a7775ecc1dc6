package sync

import (
	"context"
	"fmt"

	"github.com/kube-nft/kube-nft/nft"
)

// client is what the loop needs of *kernel.Client.
type client interface {
	ReadUnless(ctx context.Context, changed func(before, after uint32) bool) (nft.Tables, uint32, error)
	Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error)
	Commit(context.Context, nft.Batch) error
	Generation(context.Context) (uint32, error)
	Audit(context.Context, nft.Tables) (difference string, err error)
}

// read returns what the kernel holds at a generation, without what packets have put into affinity
// maps: readEntries adds that. It joins the monitor before, so that commits to other tables do not matter.
func (l *Loop) read(ctx context.Context) (nft.Tables, uint32, error) {
	l.drift.join()
	have, generation, err := l.kernel.ReadUnless(ctx, func(before, after uint32) bool {
		return !l.drift.unchanged(ctx, before, after)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read the tables back: %w", err)
	}
	return have, generation, nil
}

// readEntries reads the affinity entries, which packets have made.
func readEntries(ctx context.Context, k client, have nft.Tables) (err error) {
	for family, table := range have {
		for name, held := range table.Sets {
			if !held.Set.Dynamic {
				continue
			}
			if held.Map, err = k.Elements(ctx, family, held.Set); err != nil {
				return fmt.Errorf("read affinity map %s: %w", name, err)
			}
		}
	}
	return nil
}
