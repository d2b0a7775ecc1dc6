package migrate

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// lookups is the largest number of elements of one set that are looked up; one takes about 10 us.
const lookups = 4096

// verify reads our tables back and compares them with the wanted ones. Then it looks elements up
// one by one: all of a set or, if it is large, a sample from all over it. It returns how many it
// has looked up.
func verify(ctx context.Context, kernel *kernel.Client, want nft.Tables) (looked int, err error) {
	have, _, err := kernel.Read(ctx)
	if err != nil {
		return 0, err
	}
	if difference := change.Diff(have, want); !difference.Empty() {
		return 0, fmt.Errorf("the kernel's tables differ: %s is missing, and %d operations more",
			difference.Ops[0].Text(), len(difference.Ops)-1)
	}
	for _, table := range want {
		for _, set := range table.Sets {
			n, err := verifySet(ctx, kernel, table.Family, set)
			if looked += n; err != nil {
				return looked, err
			}
		}
	}
	return looked, nil
}

// verifySet looks up elements of a set. Ranges and dynamic sets are covered by the comparison only.
func verifySet(ctx context.Context, kernel *kernel.Client, f nft.Family, set *nft.Elements) (looked int, err error) {
	if set.Set.Interval || set.Set.Dynamic {
		return 0, nil
	}
	keys := slices.Sorted(maps.Keys(set.Map))
	for i := 0; i < len(keys); i += 1 + len(keys)/lookups {
		found, ok, err := kernel.Lookup(ctx, f, set.Set, keys[i])
		if err != nil {
			return looked, err
		}
		if !ok || !found.Equal(set.Map[keys[i]]) {
			op := nft.Op{Verb: nft.Add, Family: f, Set: set.Set,
				Elements: []nft.KeyedElement{{Key: keys[i], Element: set.Map[keys[i]]}}}
			return looked, fmt.Errorf("%s: present in the dump, but a lookup fails", op.Text())
		}
		looked++
	}
	return looked, nil
}
