package services

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// TestPartsInKernel commits the first batch of made-up worlds in parts of a few elements and
// stops after each of them: no packet can reach what stands, no list in it is half, and the next batch goes on from
// there, in parts in turn.
func TestPartsInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	for seed := range uint64(3) {
		w, r := newWorld(t, seed), NewRuleset(testConfig())
		for range 20 {
			w.change()
		}
		r.SetNodePortAddresses(nodeAddresses)
		r.Apply(w.everything())
		lab.Run(t, "", "nft", "flush", "ruleset")
		stops := 0
		for before := []nft.Batch{{}}; len(before) > 0; stops++ {
			have, generation, err := k.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			checkUnseen(t, have, r.Want())
			whole := change.Diff(have, r.Want())
			whole.Generation = generation
			var last nft.Batch
			before, last = change.Parts(&whole, 10)
			if len(before) == 0 {
				commit(t, k, last)
				break
			}
			for i := range before[:1+rand.IntN(min(3, len(before)))] {
				commit(t, k, before[i])
			}
		}
		if stops < 3 {
			t.Errorf("seed %d: the batch was done after %d stops: the test shows nothing", seed, stops)
		}
		checkNothingToWrite(t, k, r)
	}
}

// checkUnseen fails the test if a packet can reach a table, or if a list of a frontend is half.
func checkUnseen(t *testing.T, have, want nft.Tables) {
	t.Helper()
	for family, table := range have {
		for name, chain := range table.Chains {
			if chain.Hook != nil {
				t.Errorf("%s: base chain %s stands before the last part", family.NFT(), name)
			}
		}
		for _, verdicts := range []string{layout.ServicesMap, layout.NodePortsMap} {
			for key := range table.Sets[verdicts].Map {
				for _, local := range []bool{false, true} {
					list := layout.EndpointsMapOf(layout.FrontendIn(family, verdicts, key), local)
					got, whole := table.Sets[list].List(key), want[family].Sets[list].List(key)
					if len(got) > 0 && !slices.Equal(whole, got) {
						t.Errorf("%s: %s of %x is %v, want %v", family.NFT(), list, key, got, whole)
					}
				}
			}
		}
	}
}
