package services

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// found returns the endpoints that packets to a Service's cluster IP may find, and whether a hash of the client
// chooses.
func found(t *testing.T, r *Ruleset, p *tracker.ServicePort) (endpoints []netip.AddrPort, hash layout.Hash) {
	t.Helper()
	for _, f := range readback.New(r.Want()[nft.IP]).Frontends() {
		if f.Address == p.ClusterIP && f.Port == p.Port {
			return f.Cluster.Sorted(), f.Hash
		}
	}
	t.Fatal("there is no such frontend")
	return nil, 0
}

// chosen returns the elements that the chain of a shared list can choose, by index.
func chosen(t *testing.T, r *Ruleset) (list []string) {
	t.Helper()
	table := r.Want()[nft.IP]
	for _, chain := range table.Chains {
		number, ok := layout.ListOfChain(chain.Name)
		if !ok || chain.Name != layout.ListChain(number, false) {
			continue
		}
		endpoints, _ := readback.New(table).SharedList(number, false)
		for _, ep := range endpoints {
			list = append(list, ep.String())
		}
	}
	return list
}

// TestLongChangeIsStaged: a slot table that changes its size is written a bounded number of elements at a time. Until
// it is there, packets find the old one, without the endpoints that have left; then all of the new one.
func TestLongChangeIsStaged(t *testing.T) {
	r := NewRuleset(testConfig())
	large, larger := maglevWorld(cluster(1, 40)), maglevWorld(cluster(1, 42))
	for _, p := range larger.Changed { // one of 40 leaves, two come
		p.Cluster = p.Cluster[1:]
		p.Serving = p.Cluster
	}
	port := larger.Changed[0]
	r.Apply(large)
	old := chosen(t, r)
	r.Committed()
	final := NewRuleset(testConfig())
	final.Apply(larger)
	want := chosen(t, final)
	if len(old) != 4001 || len(want) != 8009 {
		t.Fatalf("%d slots, then %d", len(old), len(want))
	}
	departed, commits := large.Changed[0].Cluster[0].String(), 0
	held := make(map[string]int)
	for r.Apply(larger); ; r.Apply(tracker.Delta{}) {
		commits++
		batch := r.Changes()
		if n := batch.ElementCount(); n > 2*stagedFrom || batch.Empty() && r.Unfinished() {
			t.Fatalf("commit %d has %d elements", commits, n)
		}
		for _, name := range lookedUp(batch) { // the kernel walks over the map that a new rule names
			if held[name] > 0 {
				t.Errorf("commit %d writes a rule for %s, which has %d elements", commits, name, held[name])
			}
		}
		r.Committed()
		for name, set := range r.Want()[nft.IP].Sets {
			held[name] = len(set.Map)
		}
		got := chosen(t, r)
		if slices.Contains(got, departed) {
			t.Fatalf("after commit %d the endpoint that has left is chosen", commits)
		}
		if !slices.Equal(got, want) {
			if len(got) != len(old) {
				t.Fatalf("after commit %d packets find %d slots", commits, len(got))
			}
			for i := range got {
				if got[i] != old[i] && old[i] != departed {
					t.Fatalf("after commit %d slot %d names %s, not %s", commits, i, got[i], old[i])
				}
			}
		}
		if !r.Unfinished() {
			break
		}
	}
	if eps, hash := found(t, r, port); !slices.Equal(eps, port.Cluster) || hash != layout.HashAddressPort {
		t.Errorf("in the end %d endpoints, hash %d", len(eps), hash)
	}
	if want := 8009 / stagedFrom; commits < want || commits > want+4 {
		t.Errorf("%d commits, want about %d", commits, want)
	}
	checkLists(t, r, 8009)
}

// lookedUp lists the maps in which new rules of a batch look up an endpoint.
func lookedUp(batch nft.Batch) (maps []string) {
	for _, op := range batch.Ops {
		for _, rule := range op.Rules {
			if dnat, ok := rule[0].(nft.DNATFrom); ok && op.Verb == nft.Add {
				maps = append(maps, dnat.Map)
			}
		}
	}
	return maps
}

// TestSizesOfTablesComeTogether: where a Service has a slot table, those of others change their sizes without a rule
// that makes the kernel walk over all endpoints.
func TestSizesOfTablesComeTogether(t *testing.T) {
	r := NewRuleset(testConfig())
	r.Committed()
	r.Apply(maglevWorld(cluster(2, 4)))
	if batch := r.Changes(); len(lookedUp(batch)) == 0 {
		t.Fatal("the first Service with a hash gets no rule that chooses an endpoint")
	}
	r.Committed()
	sized := tracker.Delta{}
	for _, n := range []int{1, 5, 6, 10, 3} {
		sized.Changed = maglevWorld(cluster(1, n)).Changed
		r.Apply(sized)
		batch := r.Changes()
		if maps := lookedUp(batch); len(maps) > 0 || batch.Empty() {
			t.Errorf("%d endpoints: the batch has %d elements, and new rules for %v", n, batch.ElementCount(), maps)
		}
		r.Committed()
	}
	r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{sized.Changed[0].ID: true, clusterPort(1, 4).ID: true}})
	for name := range r.Want()[nft.IP].Chains {
		if strings.Contains(name, "maglev") {
			t.Errorf("no Service has a hash, and chain %s is left", name)
		}
	}
}

// TestChangeOfOneSizeIsInPlace: if a slot table keeps its size, only the slots that differ are written, a bounded
// number at a time. Meanwhile each slot names an endpoint that is wanted, also after a restart, a refused commit or one
// more change. Nothing but slots changes.
func TestChangeOfOneSizeIsInPlace(t *testing.T) {
	worlds, tables := make([]tracker.Delta, 4), make([][]string, 4)
	for i, n := range []int{41, 48, 56, 64} { // and one leaves with each change
		worlds[i] = maglevWorld(cluster(1, n))
		for _, p := range worlds[i].Changed {
			p.Cluster = p.Cluster[i:]
			p.Serving = p.Cluster
		}
		final := NewRuleset(testConfig())
		final.Apply(worlds[i])
		if tables[i] = chosen(t, final); len(tables[i]) != 8009 {
			t.Fatalf("%d endpoints have %d slots", n, len(tables[i]))
		}
	}
	r := NewRuleset(testConfig())
	r.Apply(worlds[0])
	r.Committed()
	shown := 0 // the world whose endpoints are wanted
	look := func() (elements int) {
		batch := r.Changes()
		elements = batch.ElementCount()
		if elements > 2*stagedFrom || len(batch.Ops) > 2 {
			t.Fatalf("a commit has %d operations and %d elements", len(batch.Ops), elements)
		}
		checkLists(t, r, 8009)
		for slot, ep := range chosen(t, r) {
			if !slices.Contains(tables[shown], ep) {
				t.Fatalf("slot %d names %s, which has left", slot, ep)
			}
		}
		return elements
	}
	apply := func(world int) {
		shown = world
		if r.Apply(worlds[world]); !r.Unfinished() {
			t.Fatal("the change is not staged")
		}
	}
	finish := func() (elements int) {
		for elements = look(); r.Unfinished(); elements += look() {
			r.Committed()
			r.Apply(tracker.Delta{})
		}
		r.Committed()
		if got := chosen(t, r); !slices.Equal(got, tables[shown]) {
			t.Fatal("in the end slots differ from those of a new ruleset")
		}
		return elements
	}

	apply(1)
	restarted := NewRuleset(testConfig())
	restarted.Adopt(r.Want())
	restarted.Apply(worlds[1])
	if got := chosen(t, restarted); !slices.Equal(got, tables[1]) {
		t.Error("slots differ after a restart")
	}
	differing := 0
	for slot, ep := range tables[0] {
		if ep != tables[1][slot] {
			differing++
		}
	}
	if got := finish(); got < 2*differing || got > 2*differing*11/10 { // slots of the endpoint that left can change twice
		t.Errorf("%d slots change in %d elements", differing, got)
	}
	apply(2)
	look()
	r.Apply(tracker.Delta{}) // the commit was refused
	look()
	r.Committed()
	apply(3)
	finish()
}

// TestMostSlotsLeave: when the endpoints of many slots leave at once, no commit replaces all these slots. Endpoints are
// chosen by chance until the new table is there.
func TestMostSlotsLeave(t *testing.T) {
	r, final := NewRuleset(testConfig()), NewRuleset(testConfig())
	before, after := maglevWorld(cluster(1, 400)), maglevWorld(cluster(1, 700))
	for _, p := range after.Changed { // a quarter stays
		p.Cluster = p.Cluster[300:]
		p.Serving = p.Cluster
	}
	r.Apply(before)
	r.Committed()
	final.Apply(after)
	for commits := 1; ; commits++ {
		r.Apply(after)
		after = tracker.Delta{}
		if batch := r.Changes(); batch.ElementCount() > 2*stagedFrom {
			t.Fatalf("commit %d has %d elements", commits, batch.ElementCount())
		}
		r.Committed()
		if found, _ := found(t, r, before.Changed[0]); commits == 1 && len(found) != 400 {
			t.Fatalf("after the first commit packets find %d endpoints, want the 400 that are there", len(found))
		}
		if !r.Unfinished() {
			break
		}
	}
	if got, want := chosen(t, r), chosen(t, final); !slices.Equal(got, want) {
		t.Errorf("%d slots in the end, not the %d of a fresh table", len(got), len(want))
	}
}

// TestAnotherSizeAtStart: a slot table that has got another size while kube-nft did not run is written beside the one
// that packets find.
func TestAnotherSizeAtStart(t *testing.T) {
	r := NewRuleset(testConfig())
	r.Apply(maglevWorld(cluster(1, 40)))
	for _, tt := range []struct {
		endpoints int
		table     layout.ListTable
	}{{40, 0}, {39, 0}, {42, 1}} {
		restarted := NewRuleset(testConfig())
		restarted.Adopt(r.Want())
		restarted.Apply(maglevWorld(cluster(1, tt.endpoints)))
		if tt.table == 1 { // the first commit is refused, and the size has changed once more
			restarted.Apply(maglevWorld(cluster(1, 2*tt.endpoints)))
		}
		want := restarted.Want()[nft.IP]
		for _, chain := range want.Chains {
			number, ok := layout.ListOfChain(chain.Name)
			if ok && chain.Name != layout.ListChain(number, false) && chain.Name != layout.SlotsChain(number, false, tt.table) {
				t.Errorf("%d endpoints: %s", tt.endpoints, chain.Name)
			}
		}
	}
}

// TestStagedByNamespace: a namespace with one long change does not wait for all those of another one.
func TestStagedByNamespace(t *testing.T) {
	r := NewRuleset(testConfig())
	many, one := maglevWorld(namespaced(cluster(10, 40), "many", 11)), maglevWorld(namespaced(cluster(1, 40), "one", 12))
	for _, delta := range []tracker.Delta{many, one} {
		r.Apply(delta)
	}
	r.Committed()
	for i, delta := range []tracker.Delta{maglevWorld(namespaced(cluster(10, 42), "many", 11)),
		maglevWorld(namespaced(cluster(1, 42), "one", 12))} {
		if r.Apply(delta); i == 0 {
			r.Committed()
		}
	}
	for commits := 1; ; commits++ {
		if r.Committed(); len(r.Want()[nft.IP].Trace(nft.Packet{Source: netip.MustParseAddr("10.244.0.9"), Protocol: 6,
			Destination: one.Changed[0].ClusterIP, Port: 80, Interface: "eth0"}).Endpoints) == 42 {
			break
		}
		if r.Apply(tracker.Delta{}); commits > 3*8009/stagedFrom {
			t.Fatalf("not through after %d commits", commits)
		}
	}
}

// TestMapsOfSharedLists: each Service port has a map of its own for its lists. If hashes of names chose among fewer
// maps, a namespace could choose names so that one map is large.
func TestMapsOfSharedLists(t *testing.T) {
	defer func(places int) { manyPlaces = places }(manyPlaces)
	manyPlaces = 503
	r := NewRuleset(testConfig())
	r.Apply(maglevWorld(cluster(1000, 3)))
	for name, set := range r.Want()[nft.IP].Sets {
		if strings.HasPrefix(name, layout.SlotsPrefix) && len(set.Map) != 503 {
			t.Errorf("%s holds %d elements", name, len(set.Map))
		}
	}
	checkLists(t, r, 1000*503)
}

// checkLists fails if the maps of shared lists hold another number of elements.
func checkLists(t *testing.T, r *Ruleset, want int) {
	t.Helper()
	held := 0
	for name, set := range r.Want()[nft.IP].Sets {
		if strings.HasPrefix(name, layout.ListsPrefix) || strings.HasPrefix(name, layout.SlotsPrefix) {
			if held += len(set.Map); len(set.Map) == 0 {
				t.Errorf("the empty map %s is kept", name)
			}
		}
	}
	if held != want {
		t.Errorf("shared lists hold %d elements, want %d", held, want)
	}
}

// TestStagedChangesThatOvertake: whatever comes while slot tables are written and removed, the last value holds in the
// end, nothing else is left, and a restart finds everything in its place.
func TestStagedChangesThatOvertake(t *testing.T) {
	defer func(from, places int) { stagedFrom, manyPlaces = from, places }(stagedFrom, manyPlaces)
	stagedFrom, manyPlaces = 100, 503
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			r := NewRuleset(testConfig())
			r.Apply(tracker.Delta{})
			r.Committed()
			want := make(map[tracker.PortID]*tracker.ServicePort)
			for range 30 {
				delta := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
				p := clusterPort(random.IntN(3), []int{0, 1, 3, 4, 6, 9, 12}[random.IntN(7)])
				p.Settings.Maglev, p.HasEndpoints = random.IntN(4) > 0, true
				p.Cluster = slices.Clone(p.Cluster[random.IntN(1+len(p.Cluster)/2):])
				p.Serving, p.OnNode = p.Cluster, nil
				if random.IntN(5) == 0 {
					delta.Removed[p.ID] = want[p.ID] != nil
					delete(want, p.ID)
				} else {
					delta.Changed, want[p.ID] = append(delta.Changed, p), p
				}
				if !delta.Removed[p.ID] {
					delete(delta.Removed, p.ID)
				}
				alone := false // nothing else is in the commit
				for r.Apply(delta); random.IntN(3) > 0; r.Apply(tracker.Delta{}) {
					batch := r.Changes()
					if n := batch.ElementCount(); alone && n > stagedFrom {
						t.Fatalf("a commit of slot tables alone has %d elements, want at most %d", n, stagedFrom)
					}
					r.Committed()
					alone = true
				}
				for _, p := range want { // what packets find is never an endpoint that has left
					eps, _ := found(t, r, p)
					for _, ep := range eps {
						if !slices.Contains(p.Cluster, ep) {
							t.Fatalf("%s is found, want one of %v", ep, p.Cluster)
						}
					}
					if len(p.Cluster) > 0 && len(eps) == 0 {
						t.Fatalf("no endpoint is found, want one of %v", p.Cluster)
					}
				}
			}
			for r.Apply(tracker.Delta{}); r.Unfinished(); r.Apply(tracker.Delta{}) {
				r.Committed()
			}
			r.Committed()
			fresh := NewRuleset(testConfig())
			fresh.Adopt(r.Want())
			fresh.Apply(tracker.Delta{Changed: slices.Collect(maps.Values(want))})
			if diff := change.Diff(r.Want(), fresh.Want()); !diff.Empty() {
				for id := range want {
					t.Logf("%v: %+v, %+v", id, r.families[nft.IP].ports[id].list.Number, fresh.families[nft.IP].ports[id].list.Number)
				}
				t.Errorf("a restart writes %d operations, first: %s", len(diff.Ops), diff.Ops[0].Text())
			}
		})
	}
}
