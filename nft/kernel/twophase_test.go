package kernel

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
)

// TestSplit takes random changes apart: both parts, one after the other, are what the whole
// is, nothing leads from what was there to what a prelude makes, and it can be taken back.
func TestSplit(t *testing.T) {
	splits := 0
	for seed := range uint64(10) {
		w, r, applied := services.newWorld(seed), services.NewRuleset(services.testConfig()), nft.Tables{}
		whole := nft.Diff(nil, r.Want())
		if prelude, _ := whole.TwoPhases(); !prelude.Empty() {
			t.Fatalf("seed %d: new tables need no prelude", seed)
		}
		mustApply(t, applied, whole)
		r.Committed()
		for range 20 {
			r.Apply(w.change())
			batch := r.Changes()
			prelude, rest := batch.TwoPhases()
			if !prelude.Empty() {
				splits++
				mustApply(t, applied, prelude)
				mustApply(t, applied, prelude.Reverse())
				mustApply(t, applied, prelude)
			}
			if len(prelude.Ops)+len(rest.Ops) != len(batch.Ops) || len(rest.newChains()) > 0 {
				t.Fatalf("seed %d: %d operations became %d and %d", seed, len(batch.Ops), len(prelude.Ops), len(rest.Ops))
			}
			mustApply(t, applied, rest)
			r.Committed()
			services.checkEqual(t, seed, applied, r.Want())
		}
	}
	if splits < 50 {
		t.Errorf("only %d batches had a prelude", splits)
	}
}

func mustApply(t *testing.T, tables nft.Tables, batch nft.Batch) {
	t.Helper()
	if err := services.apply(tables, batch); err != nil {
		t.Fatal(err)
	}
}

// TestPreludeIsTakenBack has the kernel refuse what follows a prelude: nothing is changed.
func TestPreludeIsTakenBack(t *testing.T) {
	lab.New(t)
	k, r := openKernel(t), services.NewRuleset(services.testConfig())
	commit(t, k, nft.Diff(nil, r.Want()))
	chain := &nft.Chain{Name: "new", Rules: []nft.Rule{{nft.Drop}}}
	refused := nft.Batch{Ops: []nft.Op{
		{Verb: nft.Add, Family: nft.IP, Chain: chain},
		{Verb: nft.Add, Family: nft.IP, Chain: chain, Rules: chain.Rules},
		{Verb: nft.Delete, Family: nft.IP, Set: &nft.Set{Name: services.clusterIPsSet, Key: []nft.Field{nft.FieldAddr}}, Elements: []nft.KeyedElement{{Key: "\x0a\x60\x00\x0a"}}},
	}}
	if err := k.Commit(t.Context(), refused); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("deleting an element that does not exist: %v", err)
	}
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := nft.Diff(tables, r.Want()); !left.Empty() {
		t.Errorf("a refused batch left behind what takes %d operations, first: %s", len(left.Ops), left.Ops[0].Text())
	}
}
