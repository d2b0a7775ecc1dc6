package services

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// maglevWorld gives the Service ports of a world a hash in place of chance.
func maglevWorld(delta tracker.Delta) tracker.Delta {
	for _, p := range delta.Changed {
		p.Settings.Maglev = true
	}
	return delta
}

// weightedWorld gives the endpoints of a world the weights 1, 2, 7, 1, 2, 7 and so on; shift begins
// elsewhere.
func weightedWorld(delta tracker.Delta, shift int) tracker.Delta {
	for _, p := range delta.Changed {
		p.ClusterWeights = nil
		for i := range p.Cluster {
			p.ClusterWeights = append(p.ClusterWeights, []uint16{1, 2, 7}[(i+shift)%3])
		}
	}
	return delta
}

// TestNodesAgree: two nodes that hear of the same endpoints in another order, one of them over a
// detour, have the same slot tables at all frontends.
func TestNodesAgree(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, n := range []int{1, 2, 5, 6, 30} {
		want := maglevWorld(everywhere(cluster(3, n)))
		direct, detour := NewRuleset(testConfig()), NewRuleset(testConfig())
		direct.Apply(want)
		for range 5 {
			for _, p := range want.Changed {
				q := *p
				q.PortSpec = new(*q.PortSpec)
				q.Lists = &tracker.Lists{Cluster: slices.DeleteFunc(slices.Clone(p.Cluster), func(netip.AddrPort) bool {
					return random.IntN(3) == 0
				})}
				q.Settings.Maglev = random.IntN(2) == 0
				q.Serving, q.HasEndpoints = q.Cluster, len(q.Cluster) > 0
				detour.Apply(tracker.Delta{Changed: []*tracker.ServicePort{&q}})
			}
		}
		detour.Apply(want)
		if diff := change.Diff(direct.Want(), detour.Want()); !diff.Empty() {
			t.Errorf("%d endpoints: %d operations between two nodes, first: %s", n, len(diff.Ops), diff.Ops[0].Text())
		}
	}
}

// TestSlotsThatChange: when an endpoint leaves, the changed slots are written and nothing else.
func TestSlotsThatChange(t *testing.T) {
	r := NewRuleset(testConfig())
	r.Apply(maglevWorld(cluster(1, 100)))
	table := func() (slots []string) {
		for name, set := range r.Want()[nft.IP].Sets {
			if strings.HasPrefix(name, layout.SlotsPrefix) {
				for key, element := range set.Map {
					slots = append(slots, key+element.Data)
				}
			}
		}
		slices.Sort(slots)
		return slots
	}
	before := table()
	r.Committed()
	r.Apply(maglevWorld(cluster(1, 99)))
	after, batch := table(), r.Changes()
	changed := 0
	for _, slot := range after {
		if _, same := slices.BinarySearch(before, slot); !same {
			changed++
		}
	}
	if len(before) != 16001 || len(after) != 16001 {
		t.Fatalf("%d slots, then %d", len(before), len(after))
	}
	if got := batch.ElementCount(); got != 2*changed || changed < 160 || changed > 160+16001*3/100 {
		t.Errorf("%d slots change in %d elements", changed, got)
	}
}

// TestWeightedChoice follows chance through the chains: shares are as the weights say.
func TestWeightedChoice(t *testing.T) {
	for _, weights := range [][]uint16{{1, 2, 7}, {1, 1, 1, 5}, {1, 30}, {10, 20, 30, 40, 50, 60, 70}, {65535, 1}} {
		p := clusterPort(0, len(weights))
		p.ClusterWeights = weights
		r := NewRuleset(testConfig())
		r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
		result := r.Want()[nft.IP].Trace(nft.Packet{Source: netip.MustParseAddr("10.244.0.9"), Destination: p.ClusterIP,
			Protocol: 6, Port: 80, Interface: "eth0"})
		if result.Uneven || len(result.Endpoints) != len(weights) || result.Shares == nil {
			t.Fatalf("weights %d: %+v", weights, result)
		}
		sum := 0.0
		for _, w := range weights {
			sum += float64(w)
		}
		for i, ep := range result.Endpoints {
			want := float64(weights[slices.Index(p.Cluster, ep)]) / sum
			if off := math.Abs(result.Shares[i] - want); off > 1.0/64/float64(len(weights))+0.001 {
				t.Errorf("weights %d: %v has a share of %.4f, want %.4f", weights, ep, result.Shares[i], want)
			}
		}
	}
}

// BenchmarkSlotsChange is one endpoint that leaves and comes back, from the Service port to the kernel's
// commit.
func BenchmarkSlotsChange(b *testing.B) {
	for _, n := range []int{5, 100, 500} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			lab.New(b)
			client := lab.Open(b, kernel.Open)
			worlds := []tracker.Delta{maglevWorld(cluster(1, n)), maglevWorld(cluster(1, n-1))}
			r := NewRuleset(testConfig())
			r.Apply(worlds[0])
			commit(b, client, change.Diff(nil, r.Want()))
			r.Committed()
			elements, compiling := 0, time.Duration(0)
			for i := 0; b.Loop(); i++ {
				begun := time.Now()
				r.Apply(worlds[(i+1)%2])
				batch := r.Changes()
				compiling += time.Since(begun)
				elements = batch.ElementCount()
				commit(b, client, batch)
				r.Committed()
			}
			b.ReportMetric(float64(elements), "elements/op")
			b.ReportMetric(float64(compiling.Nanoseconds())/float64(b.N), "compile-ns/op")
		})
	}
}
