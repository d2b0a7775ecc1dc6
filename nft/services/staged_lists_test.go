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
			slices.SortFunc(f.Cluster, netip.AddrPort.Compare)
			return f.Cluster, f.Hash
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
		number, local, ok := layout.ListOfChain(chain.Name)
		if !ok || len(chain.Rules) == 0 {
			continue
		}
		endpoints, _ := readback.New(table).SharedList(number, local)
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
	for r.Apply(larger); ; r.Apply(tracker.Delta{}) {
		commits++
		batch := r.Changes()
		if n := batch.ElementCount(); n > 2*stagedFrom || n == 0 && r.Unfinished() {
			t.Fatalf("commit %d has %d elements", commits, n)
		}
		r.Committed()
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
	if want := (8009 + 4001) / stagedFrom; commits < want || commits > want+4 {
		t.Errorf("%d commits, want about %d", commits, want)
	}
	checkLists(t, r, 8009)
}

// checkLists fails if the maps of shared lists hold another number of elements.
func checkLists(t *testing.T, r *Ruleset, want int) {
	t.Helper()
	held := 0
	for name, set := range r.Want()[nft.IP].Sets {
		if strings.HasPrefix(name, layout.ListsPrefix) {
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
	defer func(from, slots int) { stagedFrom, manySlots = from, slots }(stagedFrom, manySlots)
	stagedFrom, manySlots = 100, 503
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
