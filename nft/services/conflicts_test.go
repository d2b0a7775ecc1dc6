package services

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// claimant is a Service port created in some year, with one endpoint.
func claimant(name string, year int, clusterIP string, endpoint byte) *tracker.ServicePort {
	return &tracker.ServicePort{
		ID:  tracker.PortID{Namespace: "ns", Service: name, Protocol: tracker.TCP, Family: tracker.IPv4},
		UID: name, Created: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC),
		Port: 80, ClusterIP: netip.MustParseAddr(clusterIP),
		Cluster: endpoints(endpoint), Serving: endpoints(endpoint), HasEndpoints: true,
	}
}

// TestClaims holds who is served where two Services claim one frontend.
func TestClaims(t *testing.T) {
	shared := netip.MustParseAddr("203.0.113.9")
	external := func(p *tracker.ServicePort, addr netip.Addr) *tracker.ServicePort {
		p.ExternalIPs = []netip.Addr{addr}
		return p
	}
	balanced := func(p *tracker.ServicePort) *tracker.ServicePort {
		p.LoadBalancers = []netip.Addr{shared}
		return p
	}
	victim := netip.MustParseAddr("10.96.0.1")
	for _, tt := range []struct {
		name  string
		ports []*tracker.ServicePort
		at    netip.Addr
		owner string
	}{
		{"older of two external IPs", []*tracker.ServicePort{
			external(claimant("younger", 2024, "10.96.0.1", 1), shared), external(claimant("older", 2021, "10.96.0.2", 2), shared)}, shared, "older"},
		{"older external IP against load-balancer IP", []*tracker.ServicePort{
			balanced(claimant("younger", 2024, "10.96.0.1", 1)), external(claimant("older", 2021, "10.96.0.2", 2), shared)}, shared, "older"},
		{"same age: smaller UID", []*tracker.ServicePort{
			external(claimant("b", 2021, "10.96.0.1", 1), shared), external(claimant("a", 2021, "10.96.0.2", 2), shared)}, shared, "a"},
		{"cluster IP against a younger external IP", []*tracker.ServicePort{
			claimant("victim", 2021, "10.96.0.1", 1), external(claimant("thief", 2024, "10.96.0.2", 2), victim)}, victim, "victim"},
		{"cluster IP against an older external IP", []*tracker.ServicePort{
			claimant("victim", 2024, "10.96.0.1", 1), external(claimant("thief", 2021, "10.96.0.2", 2), victim)}, victim, "victim"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			for _, port := range tt.ports {
				r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: port}})
			}
			at := tracker.Frontend{Address: tt.at, Protocol: tracker.TCP, Port: 80}
			if got := r.families[nft.IP].frontends[at].shown.id.Service; got != tt.owner {
				t.Errorf("served for %s, want %s", got, tt.owner)
			}
			fresh, standing := r.Conflicts()
			if standing != 1 || fresh[len(fresh)-1].Winner.Service != tt.owner {
				t.Errorf("%d conflicts, latest %v", standing, fresh)
			}
			// When the owner goes, the other takes over in the same batch.
			r.Committed()
			for _, port := range tt.ports {
				if port.ID.Service == tt.owner {
					r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{port.ID: true}})
				}
			}
			if got := r.families[nft.IP].frontends[at].shown.id.Service; got == tt.owner {
				t.Errorf("still served for %s", got)
			}
			var heirs []string
			for _, s := range r.Successions() {
				if s.Frontend == at && s.Before.Service == tt.owner {
					heirs = append(heirs, s.Heir.Service)
				}
			}
			if len(heirs) != 1 || len(r.Successions()) != 0 {
				t.Errorf("successions to %v", heirs)
			}
		})
	}
}
