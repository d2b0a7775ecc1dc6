package nft

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestSplit takes random changes apart: both parts, one after the other, are what the whole
// is, nothing leads from what was there to what a prelude makes, and it can be taken back.
func TestSplit(t *testing.T) {
	splits := 0
	for seed := range uint64(10) {
		w, r, applied := newWorld(seed), NewRuleset(testConfig()), Tables{}
		whole := Diff(nil, r.Want())
		if prelude, _ := whole.split(); !prelude.Empty() {
			t.Fatalf("seed %d: new tables need no prelude", seed)
		}
		mustApply(t, applied, whole)
		r.Committed()
		for range 20 {
			r.Apply(w.change())
			batch := r.Changes()
			prelude, rest := batch.split()
			if !prelude.Empty() {
				splits++
				mustApply(t, applied, prelude)
				mustApply(t, applied, prelude.reverse())
				mustApply(t, applied, prelude)
			}
			if len(prelude.Ops)+len(rest.Ops) != len(batch.Ops) || len(rest.newChains()) > 0 {
				t.Fatalf("seed %d: %d operations became %d and %d", seed, len(batch.Ops), len(prelude.Ops), len(rest.Ops))
			}
			mustApply(t, applied, rest)
			r.Committed()
			checkEqual(t, seed, applied, r.Want())
		}
	}
	if splits < 50 {
		t.Errorf("only %d batches had a prelude", splits)
	}
}

func mustApply(t *testing.T, tables Tables, batch Batch) {
	t.Helper()
	if err := apply(tables, batch); err != nil {
		t.Fatal(err)
	}
}

// TestPreludeIsTakenBack has the kernel refuse what follows a prelude: nothing is changed.
func TestPreludeIsTakenBack(t *testing.T) {
	lab.New(t)
	k, r := openKernel(t), NewRuleset(testConfig())
	commit(t, k, Diff(nil, r.Want()))
	chain := &Chain{Name: "new", Rules: []Rule{{Drop}}}
	refused := Batch{Ops: []Op{
		{Verb: Add, Family: IP, Chain: chain},
		{Verb: Add, Family: IP, Chain: chain, Rules: chain.Rules},
		{Verb: Delete, Family: IP, Set: &Set{Name: clusterIPsSet, Key: []Field{FieldAddr}}, Elements: []KeyedElement{{Key: "\x0a\x60\x00\x0a"}}},
	}}
	if err := k.Commit(t.Context(), refused); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("deleting an element that does not exist: %v", err)
	}
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := Diff(tables, r.Want()); !left.Empty() {
		t.Errorf("a refused batch left behind what takes %d operations, first: %s", len(left.Ops), left.Ops[0].Text())
	}
}
