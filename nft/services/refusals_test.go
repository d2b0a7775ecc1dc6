package services

import (
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// uncounted makes tables as they were before refusals were counted: every chain drops by itself.
func uncounted(tables nft.Tables) {
	for _, t := range tables {
		chains := make(map[string]*nft.Chain)
		for name, chain := range t.Chains {
			old := &nft.Chain{Name: chain.Name, Hook: chain.Hook}
			for _, rule := range chain.Rules {
				switch end := rule[len(rule)-1]; end {
				case nft.Goto(layout.DropSourceChain), nft.Goto(layout.DropNotLocalChain), nft.Goto(layout.DropUnusedAddressChain):
					rule = append(slices.Clone(rule[:len(rule)-1]), nft.Drop)
				case nft.Goto(layout.RejectUnusedPortChain):
					rule = append(slices.Clone(rule[:len(rule)-1]), nft.Goto(layout.RejectChain))
				case nft.Stmt(nft.Counter{}):
					continue
				}
				old.Rules = append(old.Rules, rule)
			}
			chains[name] = old
		}
		for _, refusal := range layout.Refusals() {
			if refusal.Chain != layout.RejectChain {
				delete(chains, refusal.Chain)
			}
		}
		t.Chains = chains
		for _, held := range t.Sets {
			for key, element := range held.Map {
				if element.Verdict != nil && *element.Verdict == nft.Goto(layout.DropNotLocalChain) {
					element.Verdict = &nft.Drop
					held.Map[key] = element
				}
			}
		}
	}
}

// TestRefusalsOfYesterdaysTables adopts tables that do not count refusals. The chains that count are there before
// anything leads to them, and the next start has nothing to write.
func TestRefusalsOfYesterdaysTables(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	w, before, r := newWorld(3), NewRuleset(testConfig()), NewRuleset(testConfig())
	for range 20 {
		delta := w.change()
		before.Apply(delta)
		r.Apply(delta)
	}
	local := countingPort()
	local.HasEndpoints, local.InternalLocal = true, true
	delta := tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{local.ID: local}}
	before.Apply(delta)
	r.Apply(delta)
	old := before.Want()
	uncounted(old)
	commit(t, k, change.Diff(nft.Tables{}, old))
	have, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if counts, err := readback.ReadRefusals(t.Context(), k, nft.IP); err != nil || len(counts) != 0 {
		t.Errorf("yesterday's table counts %v, %v", counts, err)
	}
	batch := change.Diff(have, r.Want())
	first, rest := change.TwoPhases(&batch)
	made := make(map[string]bool)
	for _, op := range first.Ops {
		if op.Verb == nft.Add && op.Chain != nil {
			made[op.Chain.Name] = true
		}
	}
	for _, refusal := range layout.Refusals() {
		if refusal.Chain != layout.RejectChain && !made[refusal.Chain] {
			t.Errorf("the first phase does not make %s", refusal.Chain)
		}
	}
	dropped := 0
	for _, op := range rest.Ops {
		for _, element := range op.Elements {
			if op.Verb == nft.Add && element.Verdict != nil && *element.Verdict == nft.Goto(layout.DropNotLocalChain) {
				dropped++
			}
		}
	}
	if dropped == 0 {
		t.Error("no element of this world drops")
	}
	commit(t, k, first)
	commit(t, k, rest)
	checkNothingToWrite(t, k, r)
	for _, f := range nft.Families {
		if counts, err := readback.ReadRefusals(t.Context(), k, f); err != nil || len(counts) != len(layout.Refusals()) {
			t.Errorf("%s counts %v, %v", f, counts, err)
		}
	}
}
