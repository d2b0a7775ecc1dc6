package services

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestTwoPhasesOfRandomWorlds takes random changes apart: both phases, one after the other, do what
// the whole does, nothing leads from what was there to what the first makes, and it can be taken
// back.
func TestTwoPhasesOfRandomWorlds(t *testing.T) {
	twoPhases := 0
	for seed := range uint64(10) {
		w, r, applied := newWorld(seed), NewRuleset(testConfig()), nft.Tables{}
		whole := change.Diff(nil, r.Want())
		if first, _ := change.TwoPhases(&whole); !first.Empty() {
			t.Fatalf("seed %d: new tables need one phase", seed)
		}
		mustApply(t, applied, whole)
		r.Committed()
		for range 20 {
			r.Apply(w.change())
			batch := r.Changes()
			first, rest := change.TwoPhases(&batch)
			if !first.Empty() {
				twoPhases++
				mustApply(t, applied, first)
				mustApply(t, applied, change.Reverse(&first))
				mustApply(t, applied, first)
			}
			if again, _ := change.TwoPhases(&rest); len(first.Ops)+len(rest.Ops) != len(batch.Ops) || !again.Empty() {
				t.Fatalf("seed %d: %d operations became %d and %d", seed, len(batch.Ops), len(first.Ops), len(rest.Ops))
			}
			mustApply(t, applied, rest)
			r.Committed()
			checkEqual(t, seed, applied, r.Want())
		}
	}
	if twoPhases < 50 {
		t.Errorf("only %d batches had two phases", twoPhases)
	}
}

func mustApply(t *testing.T, tables nft.Tables, batch nft.Batch) {
	t.Helper()
	if err := apply(tables, batch); err != nil {
		t.Fatal(err)
	}
}

// TestTypedReadsWholeRulesets reads statements out of the rules of a random world, as the kernel
// lists them.
func TestTypedReadsWholeRulesets(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	w, r := newWorld(3), NewRuleset(testConfig())
	for range 20 {
		r.Apply(w.change())
	}
	commit(t, k, change.Diff(nft.Tables{}, r.Want()))
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range r.Want() {
		for name, chain := range tables[f].Typed().Chains {
			if diff := cmp.Diff(ruleTexts(f, want.Chains[name].Rules), ruleTexts(f, chain.Rules)); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", f, name, diff)
			}
		}
	}
}

func ruleTexts(f nft.Family, rules []nft.Rule) (texts []string) {
	for _, rule := range rules {
		texts = append(texts, rule.Text(f))
	}
	return texts
}

func TestLengths(t *testing.T) {
	w := newWorld(1)
	r := NewRuleset(testConfig())
	for range 50 {
		r.Apply(w.change())
	}
	external := externalWorld(40, 40)
	for _, p := range external.Changed {
		p.ID.Service = "external"
		r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
	}
	r.Apply(sharingWorld(40, 40))
	lengths := r.Lengths()
	for f, table := range r.Want() {
		all, counted := 0, 0
		for name, set := range table.Sets {
			if n, fixed := lengths[f][name]; fixed && n != len(set.Map) {
				t.Errorf("%s %s: %d, want %d", f, name, n, len(set.Map))
			}
			all += len(set.Map)
		}
		for _, n := range lengths[f] {
			counted += n
		}
		if counted != all {
			t.Errorf("%s: %d elements, want %d", f, counted, all)
		}
	}
	for _, name := range []string{layout.ServicesMap, "allowed", "lists", "addresses", "ports"} {
		if lengths[nft.IP][name] == 0 {
			t.Errorf("nothing in %s", name)
		}
	}
}
