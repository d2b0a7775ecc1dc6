package services

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// served is what the touched frontends and cluster IPs of each commit add up to.
type served struct {
	endpoints  map[tracker.Frontend][]netip.AddrPort
	clusterIPs map[netip.Addr]bool
	owners     map[tracker.Frontend]tracker.PortID
}

func newServed() served {
	return served{endpoints: make(map[tracker.Frontend][]netip.AddrPort), clusterIPs: make(map[netip.Addr]bool),
		owners: make(map[tracker.Frontend]tracker.PortID)}
}

func (s *served) follow(r *Ruleset) (looked int) {
	for f, reached := range r.TouchedFrontends() {
		looked++
		delete(s.endpoints, f)
		delete(s.owners, f)
		if reached.Port != (tracker.PortID{}) {
			s.owners[f], s.endpoints[f] = reached.Port, reached.Serving.All()
		}
	}
	for _, addr := range r.TouchedClusterIPs() {
		looked++
		delete(s.clusterIPs, addr)
		if r.HasClusterIP(addr) {
			s.clusterIPs[addr] = true
		}
	}
	return looked
}

// TestFlowChangesOfRandomWorlds takes worlds through random changes, some of which are committed together: who
// looks at what was touched knows all frontends with their endpoints, and all cluster IPs.
func TestFlowChangesOfRandomWorlds(t *testing.T) {
	for seed := range uint64(20) {
		w, r, _ := startWorld(t, seed)
		s := newServed()
		for step := range 40 {
			r.Apply(w.change())
			if step%3 == 0 { // this one goes with the next
				continue
			}
			s.follow(r)
			r.Committed()
			want := newServed()
			for _, family := range r.families {
				for f, state := range family.frontends {
					want.endpoints[f] = state.shown.serving.All()
					want.owners[f] = state.claims.first().port.current.ID
				}
				for _, port := range family.ports {
					want.clusterIPs[port.current.ClusterIP] = true
				}
			}
			if !maps.EqualFunc(s.endpoints, want.endpoints, slices.Equal) || !maps.Equal(s.clusterIPs, want.clusterIPs) {
				t.Fatalf("seed %d, step %d:\n got %v\nwant %v", seed, step, s, want)
			}
			if n := s.follow(r); n != 0 {
				t.Fatalf("seed %d, step %d: %d touched after the commit", seed, step, n)
			}
		}
	}
}

// TestTouchedIsWhatChanged: one endpoint of one Service among many is one frontend to look at.
func TestTouchedIsWhatChanged(t *testing.T) {
	for _, services := range []int{10, 1000} {
		r := NewRuleset(Config{Families: []nft.Family{nft.IP}})
		port := func(i int, endpoint byte) *tracker.ServicePort {
			p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
				ID: tracker.PortID{Namespace: "ns", Service: "svc", Port: string(rune('a' + i)), Protocol: tracker.UDP,
					Family: tracker.IPv4},
				Port: 53, ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
			}, HasEndpoints: true,
				Lists: new(tracker.Lists),
			}
			p.Cluster = []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, endpoint}), 53)}
			p.Serving = p.Cluster
			return p
		}
		delta := tracker.Delta{}
		for i := range services {
			p := port(i, 1)
			delta.Changed = append(delta.Changed, p)
		}
		delta.CIDRsChanged, delta.ServiceCIDRs = true, []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"),
			netip.MustParsePrefix("fd00::/112")}
		r.Apply(delta)
		r.Committed()
		if got := r.ServiceCIDRs(); len(got) != 1 || got[0] != delta.ServiceCIDRs[0] {
			t.Errorf("Service CIDRs %v, want the one of IPv4: IPv6 is not served", got)
		}
		p := port(3, 2)
		r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
		at := tracker.Frontend{Address: p.ClusterIP, Protocol: tracker.UDP, Port: 53}
		if got := maps.Collect(r.TouchedFrontends()); len(got) != 1 || got[at].Port != p.ID {
			t.Errorf("%d Services: touched %v, want %v of %v", services, got, at, p.ID)
		}
		if got := r.TouchedClusterIPs(); len(got) != 0 {
			t.Errorf("%d Services: touched cluster IPs %v", services, got)
		}
	}
}

// TestFlowsOfRemovedFrontends: the tables have frontends that no Service has any more. The tables do not have draining
// endpoints, so every flow to a cluster IP counts. At other frontends only flows to listed endpoints do.
func TestFlowsOfRemovedFrontends(t *testing.T) {
	dns := claimant("dns", 2024, "10.96.0.10", 1)
	dns.ID.Protocol, dns.NodePort, dns.ExternalIPs = tracker.UDP, 30053, []netip.Addr{netip.MustParseAddr("203.0.113.9")}
	dns.Serving = endpoints(1, 2) // 2 is draining
	stays := claimant("stays", 2024, "10.96.0.11", 1)
	stays.ID.Protocol = tracker.UDP
	before := NewRuleset(testConfig())
	before.Apply(changed(dns, stays, claimant("tcp", 2024, "10.96.0.12", 1)))
	after := NewRuleset(testConfig())
	after.Apply(changed(stays))
	got := after.Vanished(before.Want())
	slices.SortFunc(got, func(a, b tracker.FlowChange) int { return a.Frontend.Compare(b.Frontend) })
	removed := []tracker.Served{{List: endpoints(1)}}
	want := []tracker.FlowChange{
		{Frontend: tracker.NodePort(tracker.IPv4, tracker.UDP, 30053), Gone: true, Removed: removed},
		{Frontend: tracker.Frontend{Address: dns.ClusterIP, Protocol: tracker.UDP, Port: 80}, Gone: true},
		{Frontend: tracker.Frontend{Address: dns.ExternalIPs[0], Protocol: tracker.UDP, Port: 80}, Gone: true,
			Removed: removed},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestFlowsThatPassedARouter: packets to an address of ipMode Router pass while no endpoint serves their client. The
// first endpoint of the cluster takes those of pods, the first one on this node those of outside clients, too: flows
// that passed before would go on passing.
func TestFlowsThatPassedARouter(t *testing.T) {
	r, addr := NewRuleset(testConfig()), netip.MustParseAddr("198.51.100.9")
	for _, step := range []struct {
		cluster, local []byte
		appeared       bool
	}{{nil, nil, true}, {[]byte{1}, nil, true}, {[]byte{1, 2}, nil, false}, {[]byte{1, 2}, []byte{2}, true},
		{[]byte{1, 2, 3}, []byte{2, 3}, false}, {[]byte{1}, nil, false}, {[]byte{1, 2}, []byte{2}, true}} {
		p := claimant("dns", 2024, "10.96.0.10", 1)
		p.ID.Protocol, p.ExternalLocal = tracker.UDP, true
		p.LoadBalancers, p.Routers = []netip.Addr{addr}, []netip.Addr{addr}
		p.Serving = endpoints(1, 2, 3)
		p.Cluster, p.Local, p.HasEndpoints = endpoints(step.cluster...), endpoints(step.local...), len(step.cluster) > 0
		r.Apply(changed(p))
		appeared := slices.ContainsFunc(r.FlowChanges(), func(c tracker.FlowChange) bool {
			return c.Address == addr && c.Appeared
		})
		if r.Committed(); appeared != step.appeared {
			t.Errorf("endpoints %v, %v here: appeared %t, want %t", step.cluster, step.local, appeared, step.appeared)
		}
	}
}

// TestFlowsOfRemovedPortsThatShareEndpoints: the kernel has the frontends of ports that share a list, and no Service
// has them any more. All changes name the endpoints of one list, each with the target port of its own port.
func TestFlowsOfRemovedPortsThatShareEndpoints(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	const ports, size = 200, 100
	delta, external := sharingWorld(ports, size), netip.MustParseAddr("203.0.113.9")
	for _, p := range delta.Changed {
		p.ID.Protocol, p.ExternalIPs = tracker.UDP, []netip.Addr{external}
	}
	before := NewRuleset(testConfig())
	before.Apply(delta)
	if err := k.Commit(t.Context(), change.Diff(nil, before.Want())); err != nil {
		t.Fatal(err)
	}
	have, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[uint16]tracker.Served) // by the port of the frontend
	for _, c := range NewRuleset(testConfig()).Vanished(have) {
		if c.Address == external && len(c.Removed) == 1 {
			found[c.Port] = c.Removed[0]
		}
	}
	for i := range uint16(ports) {
		s := found[1000+i]
		if s.Len() != size || s.Port != 8000+i || !slices.IsSortedFunc(s.List, netip.AddrPort.Compare) {
			t.Fatalf("of port %d, %d endpoints with port %d have gone", 1000+i, s.Len(), s.Port)
		}
		if &s.List[0] != &found[1000].List[0] {
			t.Fatalf("port %d has a list of its own", 1000+i)
		}
	}
	frontends := readback.New(have[nft.IP]).Frontends()
	for i := range frontends {
		if &frontends[i].Cluster.Endpoints[0] != &frontends[0].Cluster.Endpoints[0] {
			t.Fatalf("%s is read with a list of its own", frontends[i].Frontend)
		}
	}
	if n := readback.Distinct(frontends); n != ports*size {
		t.Errorf("%d endpoints, want %d", n, ports*size)
	}
}

// TestFlowsOfPortsThatShareEndpoints: what has left is worked out once for all ports that share it, and what several
// commits have removed, too.
func TestFlowsOfPortsThatShareEndpoints(t *testing.T) {
	const ports = 1000
	r := NewRuleset(testConfig())
	world := func(endpoints int) tracker.Delta {
		world := sharingWorld(ports, endpoints)
		for _, p := range world.Changed {
			p.ID.Protocol = tracker.UDP
		}
		return world
	}
	r.Apply(world(1000))
	r.Committed()
	for _, step := range []struct{ endpoints, removed int }{{999, 1}, {998, 2}, {500, 500}, {0, 1000}} {
		delta := world(step.endpoints)
		if n := allocated(func() { r.Apply(delta) }); n > 10<<20 {
			t.Errorf("the step to %d endpoints takes %.0f MiB", step.endpoints, n/(1<<20))
		}
		changes := r.FlowChanges()
		if len(changes) != ports {
			t.Fatalf("%d endpoints: %d changes", step.endpoints, len(changes))
		}
		for _, c := range changes {
			if len(c.Removed) != 1 || c.Removed[0].Len() != step.removed || c.Gone != (step.endpoints == 0) {
				t.Fatalf("%d endpoints: %d lists, gone %t", step.endpoints, len(c.Removed), c.Gone)
			}
		}
	}
}
