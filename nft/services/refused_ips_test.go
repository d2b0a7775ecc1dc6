package services

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestTablesFromBeforeKinds: over tables of a kube-nft that did not tell load-balancer IPs from external
// IPs, two sets and their elements come, and nothing that serves is written.
func TestTablesFromBeforeKinds(t *testing.T) {
	w, r := newWorld(3), NewRuleset(testConfig())
	for range 20 {
		r.Apply(w.change())
	}
	kinds := []string{layout.LoadBalancersSet, layout.RefusedExternalIPsSet}
	before, elements := make(nft.Tables), 0
	for f, table := range r.Want() {
		old := *table
		old.Sets = maps.Clone(table.Sets)
		for _, name := range kinds {
			elements += len(old.Sets[name].Map)
			delete(old.Sets, name)
		}
		before[f] = &old
		for _, s := range readback.New(&old).Frontends() {
			if s.Kind == readback.KindLoadBalancerIP {
				t.Errorf("an old table tells that %s is a load balancer's", s.Frontend)
			}
		}
	}
	if elements == 0 {
		t.Fatal("the world has neither load balancers nor refused external IPs")
	}
	again := NewRuleset(testConfig())
	again.Adopt(before)
	again.Apply(w.everything())
	for _, op := range change.Diff(before, again.Want()).Ops {
		if op.Set == nil || !slices.Contains(kinds, op.Set.Name) || op.Verb != nft.Add {
			t.Errorf("the upgrade says %+v", op)
		}
		elements -= len(op.Elements)
	}
	if elements != 0 {
		t.Errorf("%d elements are missing", elements)
	}
}

// TestRefusedIPsMoveOn: the element of a refused external IP names the oldest Service that asks for it,
// and goes with the last one.
func TestRefusedIPsMoveOn(t *testing.T) {
	addr := netip.MustParseAddr("203.0.113.9")
	asks := func(p *tracker.ServicePort) *tracker.ServicePort {
		p.RefusedExternalIPs = []netip.Addr{addr}
		return p
	}
	older, younger := asks(claimant("older", 2021, "10.96.0.2", 2)), asks(claimant("younger", 2024, "10.96.0.1", 1))
	r := NewRuleset(testConfig())
	check := func(after string, want ...string) {
		t.Helper()
		var names []string
		for _, s := range readback.New(r.Want()[nft.IP]).RefusedIPs() {
			names = append(names, s.Name.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s: %q, want %q", after, names, want)
		}
	}
	apply := func(changed ...*tracker.ServicePort) {
		delta := tracker.Delta{Changed: make(map[tracker.PortID]*tracker.ServicePort)}
		for _, p := range changed {
			delta.Changed[p.ID] = p
		}
		r.Apply(delta)
	}
	apply(younger)
	check("one Service", "younger")
	apply(older)
	check("an older one", "older")
	if id, ok := r.Attributed(nft.IP, layout.RefusedExternalIPsSet, layout.FrontendKeyOf(layout.RefusedFrontend(older, addr))); !ok || id != older.ID {
		t.Errorf("the element is attributed to %v, %v", id, ok)
	}
	moved := *older
	moved.Port++
	apply(&moved)
	check("it has another port", "older", "younger")
	none := moved
	none.RefusedExternalIPs = nil
	apply(&none)
	check("it asks no more", "younger")
	r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{younger.ID: true}})
	check("nobody asks")
	if _, ok := r.Attributed(nft.IP, layout.RefusedExternalIPsSet, layout.FrontendKeyOf(layout.RefusedFrontend(older, addr))); ok || len(r.families[nft.IP].refused) > 0 {
		t.Error("something is left")
	}
}
