package services

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestLargeDifferenceGoesInParts restarts over the tables of another time, with another mark now and then, and brings
// them up to date a few elements at a time, while Services change. After each batch, what a frontend does is what it
// did at the start, or was to do at some time since.
func TestLargeDifferenceGoesInParts(t *testing.T) {
	parts, kept := 0, 0
	for seed := range worlds(8) {
		random := rand.New(rand.NewPCG(seed, 3))
		w, old, applied := startWorld(t, seed)
		for range 10 {
			old.Apply(w.change())
		}
		commitChanges(t, seed, old, applied)
		for range 10 {
			w.change()
		}
		config := testConfig()
		config.MasqueradeBit += uint8(seed % 2)
		r := NewRuleset(config)
		r.Adopt(applied)
		r.SetNodePortAddresses(nodeAddresses)
		r.Apply(w.everything())
		var seen results
		seen.add(w, applied)
		seen.add(w, r.Want())
		r.Found(applied)
		for r.Advance(5); ; r.Advance(5) {
			if random.IntN(3) == 0 {
				r.Apply(w.change())
				seen.add(w, r.Want())
			}
			mustApply(t, applied, r.Changes())
			r.Committed()
			if !r.Behind() {
				break
			}
			parts++
			kept += seen.check(t, seed, applied, false)
			for family, table := range applied {
				checkMembers(t, table, stickyIn(r.Want()[family]))
			}
		}
		checkEqual(t, seed, applied, r.Want())
		if batch := r.Changes(); !batch.Empty() {
			t.Fatalf("seed %d: %d operations are left over", seed, len(batch.Ops))
		}
		r.Apply(w.change())
		commitChanges(t, seed, r, applied)
	}
	if parts == 0 || kept == 0 {
		t.Errorf("%d parts, and %d results as before: the test shows nothing", parts, kept)
	}
}

// TestLargeChangeGoesInParts changes Services, each time more than one commit may have, also before all of the last
// change is committed. After each batch, what a frontend does is what it did, or was to do, at some time since the last
// time when nothing was left.
func TestLargeChangeGoesInParts(t *testing.T) {
	divideChanges(t)
	parts, kept := 0, 0
	for seed := range worlds(8) {
		random := rand.New(rand.NewPCG(seed, 4))
		w, r, applied := startWorld(t, seed)
		commitChanges(t, seed, r, applied)
		for range 3 {
			var seen results
			seen.add(w, applied)
			for range 5 {
				delta := w.change()
				seen.add(w, applied) // with the frontends that come
				r.Apply(delta)
			}
			seen.add(w, r.Want())
			wants := make(map[nft.Family][]sticky)
			for r.Advance(10); ; r.Advance(10) {
				for family, table := range r.Want() {
					wants[family] = append(wants[family], stickyIn(table))
				}
				mustApply(t, applied, r.Changes())
				r.Committed()
				if !r.Behind() {
					break
				}
				parts++
				kept += seen.check(t, seed, applied, true)
				for family, table := range applied {
					checkMembers(t, table, wants[family]...)
				}
				if random.IntN(12) == 0 {
					delta := w.change()
					seen.add(w, applied)
					r.Apply(delta)
					seen.add(w, r.Want())
				}
			}
			commitChanges(t, seed, r, applied) // what is staged
			checkEqual(t, seed, applied, r.Want())
		}
	}
	if parts == 0 || kept == 0 {
		t.Errorf("%d parts, and %d results as before: the test shows nothing", parts, kept)
	}
}

// results are what each frontend has done, or was to do, for each client.
type results map[place]map[string]*outcomes

type outcomes struct {
	results []nft.TraceResult
	varies  bool // source ranges and shared lists change before the frontends that use them come or go
}

func (s *results) add(w *world, tables nft.Tables) {
	if *s == nil {
		*s = make(results)
	}
	for f := range w.claims() {
		if (*s)[f] == nil {
			(*s)[f] = make(map[string]*outcomes)
		}
	}
	for f, of := range *s {
		for _, c := range clients(f.family) {
			if of[c.name] == nil {
				of[c.name] = new(outcomes)
			}
			result := tables[f.family].Trace(c.packet(f, f.family))
			steps := fmt.Sprint(result.Steps)
			of[c.name].results = append(of[c.name].results, result)
			of[c.name].varies = of[c.name].varies || strings.Contains(steps, "source-ranges-") ||
				strings.Contains(steps, "pick-list-")
		}
	}
}

// check fails the test if a frontend does something that it never did. It returns how many still do what they did
// first.
func (s *results) check(t *testing.T, seed uint64, tables nft.Tables, smallFirst bool) (first int) {
	t.Helper()
	for f, of := range *s {
		for _, c := range clients(f.family) {
			if of[c.name].varies {
				continue
			}
			got, of := tables[f.family].Trace(c.packet(f, f.family)), of[c.name].results
			var outcomes []string
			endpoints := make(map[netip.AddrPort]bool)
			for _, result := range of {
				outcomes = append(outcomes, result.Outcome)
				for _, ep := range result.Endpoints {
					endpoints[ep] = true
				}
			}
			foreign := slices.ContainsFunc(got.Endpoints, func(ep netip.AddrPort) bool { return !endpoints[ep] })
			if slices.Contains(outcomes, "reject") { // cluster IPs are the last that comes
				outcomes = append(outcomes, "accept")
			}
			if smallFirst && slices.Contains(outcomes, "accept") { // small changes come before cluster IPs that go
				outcomes = append(outcomes, "reject")
			}
			if !slices.Contains(outcomes, got.Outcome) || foreign || got.Outcome == "dnat" && len(got.Endpoints) == 0 {
				t.Fatalf("seed %d: %s from %s: %+v\nwant one of %+v", seed, f, c.name, got, of)
			}
			if slices.Equal(got.Endpoints, of[0].Endpoints) {
				first++
			}
		}
	}
	return first
}

// TestLargeDifferenceInKernel is TestLargeDifferenceGoesInParts in the kernel.
func TestLargeDifferenceInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	for seed := range uint64(4) {
		lab.Run(t, "", "nft", "flush", "ruleset")
		w, old := newWorld(t, seed), NewRuleset(testConfig())
		for range 10 {
			old.Apply(w.change())
		}
		commit(t, k, change.Diff(nil, old.Want()))
		for range 10 {
			w.change()
		}
		r := NewRuleset(testConfig())
		have, _, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		r.Adopt(have)
		r.SetNodePortAddresses(nodeAddresses)
		r.Apply(w.everything())
		r.Found(have)
		parts := 0
		for r.Advance(10); ; r.Advance(10) {
			if parts%3 == 1 {
				r.Apply(w.change())
			}
			commit(t, k, r.Changes())
			r.Committed()
			if parts++; !r.Behind() {
				break
			}
		}
		if parts < 5 {
			t.Errorf("seed %d: %d parts: the test shows nothing", seed, parts)
		}
		checkNothingToWrite(t, k, r)
	}
}

// TestLargeChangeInKernel is TestLargeChangeGoesInParts in the kernel.
func TestLargeChangeInKernel(t *testing.T) {
	divideChanges(t)
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	for seed := range uint64(4) {
		lab.Run(t, "", "nft", "flush", "ruleset")
		w, r := newWorld(t, seed), NewRuleset(testConfig())
		r.SetNodePortAddresses(nodeAddresses)
		commit(t, k, change.Diff(nil, r.Want()))
		r.Committed()
		parts, changes := 0, 0
		for range 30 {
			r.Apply(w.change())
			for r.Advance(10); ; r.Advance(10) {
				commit(t, k, r.Changes())
				r.Committed()
				if !r.Behind() {
					break
				}
				if parts++; parts%4 == 1 && changes < 100 {
					changes++
					r.Apply(w.change())
				}
			}
		}
		if parts < 50 {
			t.Errorf("seed %d: %d parts: the test shows nothing", seed, parts)
		}
		checkNothingToWrite(t, k, r)
	}
}

// TestLargeChangeBesideLostTable: another program has deleted the table of one family, and a change of both is too
// large for one commit. The lost table is made as a whole.
func TestLargeChangeBesideLostTable(t *testing.T) {
	divideChanges(t)
	parts := 0
	for seed := range worlds(8) {
		w, r, applied := startWorld(t, seed)
		for range 10 {
			r.Apply(w.change())
		}
		commitChanges(t, seed, r, applied)
		lost := change.Event{Op: nft.Op{Verb: nft.Delete, Family: nft.IP6, Table: &nft.Table{Family: nft.IP6}}}
		if _, known := r.Record(&change.ForeignChange{Events: []change.Event{lost}}); !known {
			t.Fatal("the notification is not understood")
		}
		delete(applied, nft.IP6)
		for range 10 {
			r.Apply(w.change())
		}
		for r.Advance(10); ; r.Advance(10) {
			mustApply(t, applied, r.Changes())
			r.Committed()
			if parts++; !r.Behind() {
				break
			}
		}
		checkEqual(t, seed, applied, r.Want())
	}
	if parts < 20 {
		t.Errorf("%d parts: the test shows nothing", parts)
	}
}

// divideChanges has changes of 20 elements divided into parts of about ten.
func divideChanges(t *testing.T) {
	most, staged := mostAtOnce, stagedFrom
	t.Cleanup(func() { mostAtOnce, stagedFrom = most, staged })
	mostAtOnce, stagedFrom = 20, 10
}
