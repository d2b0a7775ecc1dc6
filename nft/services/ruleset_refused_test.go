package services

import (
	"github.com/kube-nft/kube-nft/nft"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRandomRefusals takes worlds through random changes of which the kernel refuses every
// other one, while somebody else deletes and changes elements: what the changes since the
// last commit add up to, and the repair with them, is the difference of the whole tables.
func TestRandomRefusals(t *testing.T) {
	for seed := range uint64(10) {
		w, r, applied := startWorld(t, seed)
		for range 25 {
			r.damage(applied, w.random)
			r.Apply(w.change())
			for w.random.IntN(2) == 0 { // refused
				r.Apply(w.change())
			}
			commitChanges(t, seed, r, applied)
			checkFates(t, seed, w, applied)
		}
		checkFromScratch(t, seed, w, applied)
	}
}

// damage deletes some elements from what is applied, gives others to somebody else, and has
// the ruleset hear of it.
func (r *Ruleset) damage(applied nft.Tables, random *rand.Rand) {
	for f, table := range applied {
		for _, name := range slices.Sorted(maps.Keys(table.Sets)) {
			held := table.Sets[name]
			if held.Set.Dynamic {
				continue
			}
			for _, key := range slices.Sorted(maps.Keys(held.Map)) {
				if random.IntN(20) != 0 {
					continue
				}
				touched := r.families[f].touchedIn(name)
				if random.IntN(2) == 0 {
					delete(held.Map, key)
					touched[key] = nil
					continue
				}
				foreign := held.Map[key]
				foreign.Comment = "foreign"
				held.Map[key], touched[key] = foreign, &foreign
			}
		}
	}
}
