package services

import (
	"net/netip"
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

// TestAffinityNeedsFewObjects: no sets of its own, and at most three chains for each Service port,
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
			if want := len(base.Sets) + layout.AffinityMaps; len(table.Sets) != want {
				t.Errorf("%d sets, want %d", len(table.Sets), want)
			}
			shared := len(r.families[nft.IP].affinity.SharedChains(0))
			if got := len(table.Chains) - len(base.Chains) - shared; got != tt.chains {
				t.Errorf("%d chains, want %d", got, tt.chains)
			}
			r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{port.ID: true}})
			if table := r.Want()[nft.IP]; len(table.Chains) != len(base.Chains) || len(table.Sets) != len(base.Sets) || len(table.Sets[layout.MembersSet].Map) != 0 || len(r.families[nft.IP].numbers) != 0 {
				t.Errorf("left behind: %d chains, %d members, %d numbers", len(table.Chains)-len(base.Chains), len(table.Sets[layout.MembersSet].Map), len(r.families[nft.IP].numbers))
			}
		})
	}
}

func everyFrontend(p *tracker.ServicePort) {
	p.NodePort = 30080
	p.LoadBalancers = []netip.Addr{netip.MustParseAddr("192.0.2.10")}
	p.ExternalIPs = []netip.Addr{netip.MustParseAddr("192.0.2.11")}
}
