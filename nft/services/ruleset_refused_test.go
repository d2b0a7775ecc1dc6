package services

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestRandomRefusals takes worlds through random changes of which the kernel refuses every
// other one, while another program deletes and changes elements: what the changes since the
// last commit add up to, and the repair with them, is the difference of the whole tables.
func TestRandomRefusals(t *testing.T) {
	for seed := range worlds(10) {
		w, r, applied := startWorld(t, seed)
		for range 25 {
			damage(t, r, applied, w.random)
			r.Apply(w.change())
			for w.random.IntN(2) == 0 { // refused
				r.Apply(w.change())
			}
			commitChanges(t, seed, r, applied)
			checkFates(t, seed, w, applied)
		}
		for r.Unfinished() { // a restart removes at once what is left of a slot table
			r.Apply(tracker.Delta{})
			commitChanges(t, seed, r, applied)
		}
		checkFromScratch(t, seed, w, applied)
	}
}

// damage deletes some elements from what is applied, changes the comments of others, and
// records both in the ruleset.
func damage(t *testing.T, r *Ruleset, applied nft.Tables, random *rand.Rand) {
	t.Helper()
	var heard change.ForeignChange
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
				verb, foreign := nft.Delete, held.Map[key]
				delete(held.Map, key)
				if random.IntN(2) != 0 {
					verb, foreign.Comment = nft.Add, "foreign"
					held.Map[key] = foreign
				}
				heard.Events = append(heard.Events, change.Event{
					Op:     nft.Op{Verb: verb, Family: f, Set: &nft.Set{Name: name}},
					Listed: []change.ListedElement{listed(f, held.Set, key, foreign)},
				})
			}
		}
	}
	if damaged, known := r.Record(&heard); damaged != len(heard.Events) || !known {
		t.Fatalf("%d elements are damaged, known %v; want %d", damaged, known, len(heard.Events))
	}
}

// listed returns an element as the kernel lists it. The worlds have no Service CIDRs: all their
// ranges are of concatenations.
func listed(f nft.Family, s *nft.Set, key string, element nft.Element) change.ListedElement {
	n := s.KeyLen(f)
	e := change.ListedElement{Key: []byte(key[:n]), Element: element}
	if s.Ranges() == nft.TwoKeys {
		e.KeyEnd = []byte(key[n:])
	}
	return e
}
