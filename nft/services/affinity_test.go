package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// affinePort is a Service port with session affinity, a cluster IP and that many endpoints.
func affinePort(n, endpoints int) *tracker.ServicePort {
	p := clusterPort(n, endpoints)
	p.Affinity = time.Hour
	return p
}

// TestAffinityNeedsFewObjects: the map of its namespace, and at most four chains for each Service port,
// whatever frontends it has.
func TestAffinityNeedsFewObjects(t *testing.T) {
	base := NewRuleset(testConfig()).Want()[nft.IP]
	for _, tt := range []struct {
		name   string
		change func(*tracker.ServicePort)
		chains int
	}{
		{"cluster IP", func(*tracker.ServicePort) {}, 2},
		{"node port", func(p *tracker.ServicePort) { p.NodePort = 30080 }, 3},
		{"all frontends", everyFrontend, 3},
		{"all frontends, Local", func(p *tracker.ServicePort) {
			everyFrontend(p)
			p.ExternalLocal, p.InternalLocal, p.Local = true, true, p.Cluster[:1]
		}, 3},
		{"a node port that is its port", func(p *tracker.ServicePort) { everyFrontend(p); p.Port = p.NodePort }, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			port := affinePort(1, 2)
			tt.change(port)
			r.Apply(changed(port))
			table := r.Want()[nft.IP]
			if want := len(base.Sets) + 1; len(table.Sets) != want {
				t.Errorf("%d sets, want %d", len(table.Sets), want)
			}
			shared := len(r.families[nft.IP].affinity.SharedChains(0))
			if got := len(table.Chains) - len(base.Chains) - shared; got != tt.chains {
				t.Errorf("%d chains, want %d", got, tt.chains)
			}
			r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{port.ID: true}})
			if table := r.Want()[nft.IP]; len(table.Chains) != len(base.Chains) || len(table.Sets) != len(base.Sets) ||
				len(table.Sets[layout.MembersSet].Map) != 0 || len(r.families[nft.IP].numbers) != 0 {
				t.Errorf("left behind: %d chains, %d members, %d numbers", len(table.Chains)-len(base.Chains),
					len(table.Sets[layout.MembersSet].Map), len(r.families[nft.IP].numbers))
			}
		})
	}
}

// TestStickyChainsStayWithACapacity: a list that gets longer leaves the chains of its Service port as they are, unless
// it gets another capacity: the kernel goes through the affinity map for each such chain.
func TestStickyChainsStayWithACapacity(t *testing.T) {
	r := NewRuleset(testConfig())
	chains := func(n int) string {
		r.Apply(changed(affinePort(1, n)))
		var text []string
		for name, chain := range r.Want()[nft.IP].Chains {
			if strings.Contains(name, "affinity-") {
				text = append(text, fmt.Sprintln(name, chain.Rules))
			}
		}
		slices.Sort(text)
		return strings.Join(text, "")
	}
	before := chains(1)
	for n := 2; n <= 70; n++ {
		after := chains(n)
		if same := tracker.Capacity(n) == tracker.Capacity(n-1); (after == before) != same {
			t.Errorf("%d endpoints after %d: the same chains: %v, the same capacity: %v", n, n-1, !same, same)
		}
		before = after
	}
}

// TestAffinityMapsByNamespace: a namespace has one map, from its first Service port with affinity to its last one.
func TestAffinityMapsByNamespace(t *testing.T) {
	r := NewRuleset(testConfig())
	in := func(namespace string, n int) *tracker.ServicePort {
		p := affinePort(n, 2)
		p.ID.Namespace = namespace
		return p
	}
	ports := []*tracker.ServicePort{in("shop", 1), in("shop", 2), in("bank", 3), in("bank", 4)}
	mapOf := func(p *tracker.ServicePort) string { return r.families[nft.IP].ports[p.ID].affinity.Map() }
	for _, p := range ports {
		r.Apply(changed(p))
		for _, group := range r.families[nft.IP].ports[p.ID].affinity.Groups {
			if layout.AffinityMap(group.Number) != mapOf(p) {
				t.Errorf("%s: a group in %s, the Service port in %s", p.ID, layout.AffinityMap(group.Number), mapOf(p))
			}
		}
	}
	shop, bank := mapOf(ports[0]), mapOf(ports[2])
	if mapOf(ports[1]) != shop || mapOf(ports[3]) != bank || shop == bank {
		t.Fatalf("maps %s, %s, %s, %s", shop, mapOf(ports[1]), bank, mapOf(ports[3]))
	}
	for i, p := range ports {
		r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{p.ID: true}})
		sets := r.Want()[nft.IP].Sets
		if (sets[shop] != nil) != (i < 1) || (sets[bank] != nil) != (i < 3) {
			t.Errorf("%d Service ports removed: shop has a map %v, bank %v", i+1, sets[shop] != nil, sets[bank] != nil)
		}
	}
}

func everyFrontend(p *tracker.ServicePort) {
	p.NodePort = 30080
	p.LoadBalancers = []netip.Addr{netip.MustParseAddr("192.0.2.10")}
	p.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.11")}
}
