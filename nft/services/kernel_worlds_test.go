package services

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestPhasesOfRandomWorlds takes random changes apart: the phases, one after the other, do what the whole does,
// nothing leads from what was there to what the first makes, and it can be taken back. A packet that is under way at
// any of the commits is translated, if it was before and is afterwards.
func TestPhasesOfRandomWorlds(t *testing.T) {
	firsts, lasts := 0, 0
	for seed := range uint64(10) {
		w, r, applied := newWorld(t, seed), NewRuleset(testConfig()), nft.Tables{}
		r.SetNodePortAddresses(nodeAddresses)
		whole := change.Diff(nil, r.Want())
		if first, _, last := change.Phases(&whole); !first.Empty() || !last.Empty() {
			t.Fatalf("seed %d: new tables need one phase", seed)
		}
		mustApply(t, applied, whole)
		r.Committed()
		for range 20 {
			claims := w.claims()
			r.Apply(w.change())
			batch := r.Changes()
			first, rest, last := change.Phases(&batch)
			if !first.Empty() {
				firsts++
				mustApply(t, applied, first)
				mustApply(t, applied, change.Reverse(&first))
				mustApply(t, applied, first)
			}
			if again, whole, _ := change.Phases(&rest); rest.ElementCount()+last.ElementCount() != batch.ElementCount() ||
				len(whole.Ops) != len(rest.Ops) || !again.Empty() {
				t.Fatalf("seed %d: %d operations became %d, %d and %d", seed, len(batch.Ops), len(first.Ops), len(rest.Ops),
					len(last.Ops))
			}
			for _, phase := range []nft.Batch{rest, last} {
				before := cloned(t, applied)
				mustApply(t, applied, phase)
				checkUnderWay(t, seed, claims, w.claims(), before, applied)
			}
			if !last.Empty() {
				lasts++
			}
			r.Committed()
			checkEqual(t, seed, applied, r.Want())
		}
	}
	if firsts < 50 || lasts < 50 {
		t.Errorf("only %d and %d batches had a first and a last phase", firsts, lasts)
	}
}

// cloned returns tables of their own with the same contents.
func cloned(t *testing.T, tables nft.Tables) nft.Tables {
	t.Helper()
	clone := nft.Tables{}
	mustApply(t, clone, change.Diff(nil, tables))
	return clone
}

// checkUnderWay sends packets that are between two lookups while a commit turns before into after: they follow the
// rules and verdicts of before, and find the endpoints of after. With session affinity a packet may be dropped
// (decision 53).
func checkUnderWay(t *testing.T, seed uint64, was, is map[place][]expectation, before, after nft.Tables) {
	t.Helper()
	crossing := nft.Tables{}
	for f, table := range before {
		crossing[f] = nft.NewTable(f)
		crossing[f].Chains = table.Chains
		for name, held := range table.Sets {
			if held.Set.Data != nil {
				held = &nft.Elements{Set: held.Set, Map: after[f].Elements(name)}
			}
			crossing[f].Sets[name] = held
		}
	}
	for f, claims := range was {
		if slices.ContainsFunc(slices.Concat(claims, is[f]), func(e expectation) bool { return e.port.Affinity != 0 }) {
			continue
		}
		family := claims[0].port.ID.Family
		for _, client := range clients(family) {
			p := client.packet(f, family)
			if before[family].Trace(p).Outcome != "dnat" || after[family].Trace(p).Outcome != "dnat" {
				continue
			}
			if got := crossing[family].Trace(p); got.Outcome != "dnat" {
				t.Fatalf("seed %d: %s from %s: %v", seed, f, client.name, got)
			}
		}
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
	w, r := newWorld(t, 3), NewRuleset(testConfig())
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
	w := newWorld(t, 1)
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
