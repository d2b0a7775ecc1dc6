package services

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// claimant is a Service port created in some year, with one endpoint.
func claimant(name string, year int, clusterIP string, endpoint byte) *tracker.ServicePort {
	return &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID:  tracker.PortID{Namespace: "ns", Service: name, Protocol: tracker.TCP, Family: tracker.IPv4},
		UID: name, Created: time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC),
		Port: 80, ClusterIP: netip.MustParseAddr(clusterIP),
	},
		Lists: &tracker.Lists{Cluster: endpoints(endpoint), Serving: endpoints(endpoint)}, HasEndpoints: true,
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
			external(claimant("younger", 2024, "10.96.0.1", 1), shared), external(claimant("older", 2021, "10.96.0.2", 2),
				shared)}, shared, "older"},
		{"load balancer's address against an older external IP", []*tracker.ServicePort{
			balanced(claimant("younger", 2024, "10.96.0.1", 1)), external(claimant("older", 2021, "10.96.0.2", 2), shared)},
			shared, "younger"},
		{"load balancer's address that comes after an older external IP", []*tracker.ServicePort{
			external(claimant("older", 2021, "10.96.0.2", 2), shared), balanced(claimant("younger", 2024, "10.96.0.1", 1))},
			shared, "younger"},
		{"older of two load balancers' addresses", []*tracker.ServicePort{
			balanced(claimant("younger", 2024, "10.96.0.1", 1)), balanced(claimant("older", 2021, "10.96.0.2", 2))},
			shared, "older"},
		{"cluster IP against an older load balancer's address", []*tracker.ServicePort{
			balanced(claimant("thief", 2021, "10.96.0.2", 2)), claimant("victim", 2024, shared.String(), 1)}, shared, "victim"},
		{"same age: smaller UID", []*tracker.ServicePort{
			external(claimant("b", 2021, "10.96.0.1", 1), shared), external(claimant("a", 2021, "10.96.0.2", 2), shared)},
			shared, "a"},
		{"cluster IP against a younger external IP", []*tracker.ServicePort{
			claimant("victim", 2021, "10.96.0.1", 1), external(claimant("thief", 2024, "10.96.0.2", 2), victim)},
			victim, "victim"},
		{"cluster IP against an older external IP", []*tracker.ServicePort{
			claimant("victim", 2024, "10.96.0.1", 1), external(claimant("thief", 2021, "10.96.0.2", 2), victim)},
			victim, "victim"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			for _, port := range tt.ports {
				r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{port}})
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
			var owners []string
			for _, s := range r.OwnerChanges() {
				if s.Frontend == at && s.Before.Service == tt.owner {
					owners = append(owners, s.Now.Service)
				}
			}
			if len(owners) != 1 || len(r.OwnerChanges()) != 0 {
				t.Errorf("owners become %v", owners)
			}
		})
	}
}

// nodePortOf makes up a claimant with a node port.
func nodePortOf(name string, year int, port uint16) *tracker.ServicePort {
	p := claimant(name, year, "10.96.0."+name, 1)
	p.NodePort = port
	return p
}

// changed is the delta of these ports.
func changed(ports ...*tracker.ServicePort) tracker.Delta {
	delta := tracker.Delta{Changed: ports}
	return delta
}

// TestRemovedFrontendGoesToOthers: a Service port that is being removed, or that gives up an address, loses it to any
// other that claims it, and that is no conflict.
func TestRemovedFrontendGoesToOthers(t *testing.T) {
	shared := netip.MustParseAddr("203.0.113.9")
	for name, leave := range map[string]func(*tracker.ServicePort){
		"the Service is removed":  nil,
		"the port is removed":     func(p *tracker.ServicePort) { p.Leaving = true },
		"the address is given up": func(p *tracker.ServicePort) { p.GivenUp = []netip.Addr{shared} },
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			apply := func(p *tracker.ServicePort) {
				p.LoadBalancers = []netip.Addr{shared}
				r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
			}
			owner := func() string {
				return r.families[nft.IP].frontends[tracker.Frontend{Address: shared, Protocol: tracker.TCP,
					Port: 80}].shown.id.Service
			}
			apply(claimant("older", 2021, "10.96.0.1", 1))
			leaving := claimant("older", 2021, "10.96.0.1", 1)
			if leave == nil {
				r.Apply(tracker.Delta{Leaving: map[tracker.ServiceID]bool{{Namespace: "ns", Service: "older"}: true}})
			} else {
				leave(leaving)
				apply(leaving)
			}
			if got := owner(); got != "older" {
				t.Errorf("without another claim the address is served for %q, want the Service that is being removed", got)
			}
			apply(claimant("younger", 2024, "10.96.0.2", 2))
			if got := owner(); got != "younger" {
				t.Errorf("served for %q, want the Service that stays", got)
			}
			if fresh, _ := r.Conflicts(); len(fresh) > 0 {
				t.Errorf("reported as a conflict: %v", fresh)
			}
			r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{leaving.ID: true}})
			if got := owner(); got != "younger" {
				t.Errorf("after the removal served for %q", got)
			}
		})
	}
}

// TestRemovedServiceGivesWay: a Service that is being removed loses what others claim already, and what they claim
// later. If it comes back, it is the oldest again.
func TestRemovedServiceGivesWay(t *testing.T) {
	r := NewRuleset(testConfig())
	port := func(name string, year int, ip string, at ...uint16) (ports []*tracker.ServicePort) {
		for _, number := range at {
			p := claimant(name, year, ip, 1)
			p.Port, p.ID.Port, p.ExternalIPs = number, fmt.Sprint(number), []netip.Addr{netip.MustParseAddr("203.0.113.9")}
			ports = append(ports, p)
		}
		return ports
	}
	owners := func(step, want string) {
		t.Helper()
		var got []string
		for _, number := range []uint16{80, 81, 82} {
			got = append(got, r.families[nft.IP].frontends[tracker.Frontend{Address: netip.MustParseAddr("203.0.113.9"),
				Protocol: tracker.TCP, Port: number}].shown.id.Service)
		}
		if fmt.Sprint(got) != want {
			t.Errorf("%s: served for %v, want %s", step, got, want)
		}
	}
	r.Apply(changed(port("oldest", 2020, "10.96.0.1", 80, 81, 82)...))
	r.Apply(changed(port("second", 2021, "10.96.0.2", 80)...))
	r.Committed()
	owners("at first", "[oldest oldest oldest]")
	r.Apply(tracker.Delta{Leaving: map[tracker.ServiceID]bool{{Namespace: "ns", Service: "oldest"}: true}})
	owners("it is removed", "[second oldest oldest]")
	if changes := r.PortChanges(); len(changes) != 1 {
		t.Errorf("%d ports change, want the one that others claim", len(changes))
	}
	r.Committed()
	r.Apply(changed(port("third", 2022, "10.96.0.3", 80, 81)...))
	owners("another Service comes", "[second third oldest]")
	r.Apply(changed(port("oldest", 2020, "10.96.0.1", 80, 81, 82)...))
	owners("it comes back", "[oldest oldest oldest]")
	r.Apply(changed(port("fourth", 2023, "10.96.0.4", 82)...))
	owners("one more comes", "[oldest oldest oldest]")
}

// TestManyFrontendsChangeHands: a Service with many ports gives up what another one claims. No commit is large, and
// what a small Service gives up in another namespace does not wait.
func TestManyFrontendsChangeHands(t *testing.T) {
	defer func(n int) { stagedFrom = n }(stagedFrom)
	stagedFrom = 20
	const many = 100
	shared := netip.MustParseAddr("203.0.113.9")
	ports := func(namespace, name string, year int, ip string, first, count int) (list []*tracker.ServicePort) {
		for i := range count {
			p := claimant(name, year, ip, 1)
			p.ID.Namespace, p.ID.Port, p.Port = namespace, fmt.Sprintf("%03d", i), uint16(first+i)
			p.ExternalIPs = []netip.Addr{shared}
			list = append(list, p)
		}
		return list
	}
	older := func() []*tracker.ServicePort { return ports("large", "older", 2020, "10.96.0.1", 1000, many) }
	for name, leave := range map[string]func() tracker.Delta{
		"the Services are removed": func() tracker.Delta {
			return tracker.Delta{Leaving: map[tracker.ServiceID]bool{
				{Namespace: "large", Service: "older"}: true, {Namespace: "small", Service: "older"}: true}}
		},
		"the address is given up": func() tracker.Delta {
			d := changed(append(older(), ports("small", "older", 2020, "10.96.0.3", 80, 1)...)...)
			for _, p := range d.Changed {
				p.GivenUp = []netip.Addr{shared}
			}
			return d
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			owned := func(first, count int) (younger int) {
				for i := range count {
					at := tracker.Frontend{Address: shared, Protocol: tracker.TCP, Port: uint16(first + i)}
					if r.families[nft.IP].frontends[at].shown.id.Service == "younger" {
						younger++
					}
				}
				return younger
			}
			step := func(d tracker.Delta) {
				t.Helper()
				r.Apply(d)
				if b := r.Changes(); b.ElementCount() > 4*stagedFrom {
					t.Errorf("a commit has %d elements", b.ElementCount())
				}
				r.Committed()
			}
			r.Apply(changed(slices.Concat(older(), ports("large", "younger", 2021, "10.96.0.2", 1000, many),
				ports("small", "older", 2020, "10.96.0.3", 80, 1), ports("small", "younger", 2021, "10.96.0.4", 80, 1))...))
			r.Found(nft.Tables{})
			r.Advance(math.MaxInt)
			r.Committed()
			step(leave())
			if owned(80, 1) != 1 {
				t.Error("a small Service waits for a large one")
			}
			before := owned(1000, many)
			if before == 0 || before > stagedFrom {
				t.Errorf("%d of %d frontends change hands at once", before, many)
			}
			if name != "the address is given up" {
				r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{older()[0].ID: true, older()[many-1].ID: true}})
				step(tracker.Delta{})
			}
			for r.Unfinished() {
				step(tracker.Delta{})
				now := owned(1000, many)
				if now <= before {
					t.Fatalf("%d of %d frontends have changed hands, and then no more", now, many)
				}
				before = now
			}
			if before != many || r.Unfinished() {
				t.Errorf("%d of %d frontends have changed hands", before, many)
			}
			back := func() {
				step(changed(older()...))
				for i := 0; r.Unfinished() && i < many; i++ {
					step(tracker.Delta{})
				}
			}
			if back(); owned(1000, many) != 0 {
				t.Errorf("an older Service comes back, and %d frontends are served for others", owned(1000, many))
			}
			step(leave())
			if back(); owned(1000, many) != 0 || r.Unfinished() {
				t.Errorf("a Service comes back before it has gone, and %d frontends are served for others", owned(1000, many))
			}
		})
	}
}

// TestFrontendsWithLongLists: a Service without endpoints takes addresses from others, and gives them up. Each of them
// has long lists, which no delta counts. No commit is large, endpoints that leave meanwhile leave at once, and in
// the end the tables are those of a start.
func TestFrontendsWithLongLists(t *testing.T) {
	defer func(n int) { stagedFrom = n }(stagedFrom)
	stagedFrom = 20
	const many, length = 30, 10
	lists := func(n int) *tracker.Lists {
		l := new(tracker.Lists)
		for i := range n {
			l.Cluster = append(l.Cluster, endpoints(byte(1+i))...)
		}
		l.Serving = l.Cluster
		return l
	}
	address := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}) }
	younger := func(i, length int) *tracker.ServicePort {
		p := claimant(fmt.Sprintf("younger-%02d", i), 2021, fmt.Sprintf("10.96.1.%d", i), 1)
		p.Lists = lists(length)
		p.ExternalIPs = []netip.Addr{address(i)}
		return p
	}
	older := func(n int) *tracker.ServicePort {
		p := claimant("older", 2020, "10.96.0.1", 1)
		p.Lists, p.HasEndpoints = lists(0), false
		for i := range n {
			p.ExternalIPs = append(p.ExternalIPs, address(i))
		}
		return p
	}
	var all []*tracker.ServicePort
	for i := range many {
		all = append(all, younger(i, length))
	}
	for name, gone := range map[string]tracker.Delta{
		"the addresses are given up": changed(older(0)),
		"the Service is removed":     {Removed: map[tracker.PortID]bool{older(0).ID: true}},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			r.Apply(changed(append([]*tracker.ServicePort{older(0)}, all...)...))
			r.Found(nft.Tables{})
			r.Advance(math.MaxInt)
			r.Committed()
			text := r.Want().Text()
			step := func(d tracker.Delta) {
				t.Helper()
				r.Apply(d)
				b := r.Changes()
				if n := b.ElementCount(); n > 4*stagedFrom {
					t.Errorf("a commit has %d elements", n)
				}
				r.Committed()
			}
			shown := func(i int) int {
				state := r.families[nft.IP].frontends[tracker.Frontend{Address: address(i), Protocol: tracker.TCP, Port: 80}]
				return state.shown.cluster.Len()
			}
			if step(changed(older(many))); !r.Unfinished() || shown(many-1) != length {
				t.Fatalf("the last address has %d endpoints after one commit", shown(many-1))
			}
			small := func(name string, year int, ip string) *tracker.ServicePort {
				p := claimant(name, year, ip, 1)
				p.ID.Namespace, p.ExternalIPs = "small", []netip.Addr{address(200)}
				return p
			}
			step(changed(small("first", 2020, "10.96.2.1"), small("second", 2021, "10.96.2.2")))
			step(tracker.Delta{Leaving: map[tracker.ServiceID]bool{{Namespace: "small", Service: "first"}: true}})
			at := tracker.Frontend{Address: address(200), Protocol: tracker.TCP, Port: 80}
			if got := r.families[nft.IP].frontends[at].shown.id.Service; got != "second" || !r.Unfinished() {
				t.Errorf("%s has what a small Service gives up while the others wait", got)
			}
			step(tracker.Delta{Removed: map[tracker.PortID]bool{small("first", 0, "10.96.2.1").ID: true,
				small("second", 0, "10.96.2.2").ID: true}})
			if step(changed(younger(many-1, length-1))); shown(many-1) != length-1 {
				t.Errorf("an endpoint has left, and the address has %d", shown(many-1))
			}
			for i := 0; r.Unfinished() && i < many; i++ {
				step(tracker.Delta{})
			}
			if shown(0)+shown(many-1) != 0 || r.Unfinished() {
				t.Errorf("addresses that others had have %d and %d endpoints", shown(0), shown(many-1))
			}
			step(changed(younger(many-1, length)))
			step(gone)
			for i := 0; r.Unfinished() && i < many; i++ {
				step(tracker.Delta{})
			}
			if shown(0) != length || shown(many-1) != length {
				t.Errorf("addresses that come back have %d and %d endpoints", shown(0), shown(many-1))
			}
			step(changed(older(0)))
			if got := r.Want().Text(); got != text {
				t.Errorf("got\n%s\nwant\n%s", got, text)
			}
		})
	}
}

// TestAddressHidesNodePort: an external IP that is an address of this node hides another Service's node port there.
func TestAddressHidesNodePort(t *testing.T) {
	r := NewRuleset(testConfig())
	node := netip.MustParseAddr("192.168.0.2")
	r.ReportOverlaps([]netip.Addr{node})
	external := func(port uint16) *tracker.ServicePort {
		p := claimant("2", 2024, "10.96.0.2", 1)
		p.Port, p.ExternalIPs = port, []netip.Addr{node}
		return p
	}
	own := external(30001)
	own.NodePort = 30001
	for _, step := range []struct {
		what            string
		delta           tracker.Delta
		fresh, standing int
	}{
		{"the node port alone", changed(nodePortOf("1", 2021, 30001)), 0, 0},
		{"an external IP with another port", changed(external(30002)), 0, 0},
		{"with that port", changed(external(30001)), 1, 1},
		{"nothing new", changed(nodePortOf("3", 2021, 30003)), 0, 1},
		{"the node port goes", tracker.Delta{Removed: map[tracker.PortID]bool{nodePortOf("1", 2021, 0).ID: true}}, 0, 0},
		{"the Service's own node port", changed(own), 0, 0},
		{"the node port comes back, and loses to the other node port as well", changed(nodePortOf("1", 2025, 30001)), 1, 1},
	} {
		r.Apply(step.delta)
		fresh, standing := r.Conflicts()
		if len(fresh) != step.fresh || standing != step.standing {
			t.Errorf("%s: new %v, %d standing; want %d and %d", step.what, fresh, standing, step.fresh, step.standing)
		}
	}
	r.Apply(changed(nodePortOf("3", 2021, 30003), external(30003)))
	r.Conflicts()
	r.ReportOverlaps(nil)
	if fresh, standing := r.Conflicts(); len(fresh) > 0 || standing > 0 {
		t.Errorf("at an address that the node has lost: %v, %d standing", fresh, standing)
	}
}

// TestTransientConflictsAreNotReported: what comes up within one change and is over at its end, or
// between two reports, is not reported.
func TestTransientConflictsAreNotReported(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after []tracker.Delta
	}{
		{"two node ports change places", []tracker.Delta{changed(nodePortOf("1", 2021, 30002),
			nodePortOf("2", 2024, 30001))}},
		{"three do", []tracker.Delta{changed(nodePortOf("1", 2021, 30003), nodePortOf("2", 2024, 30001),
			nodePortOf("3", 2022, 30002))}},
		{"one moves to the place of another that moves away",
			[]tracker.Delta{changed(nodePortOf("1", 2021, 30002), nodePortOf("2", 2024, 30004))}},
		{"a conflict that is over before it is reported", []tracker.Delta{
			changed(nodePortOf("1", 2021, 30002)), changed(nodePortOf("1", 2021, 30001))}},
		{"a conflict whose loser goes before it is reported", []tracker.Delta{
			changed(nodePortOf("4", 2025, 30001)), {Removed: map[tracker.PortID]bool{nodePortOf("4", 2025, 0).ID: true}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			r.Apply(changed(nodePortOf("1", 2021, 30001), nodePortOf("2", 2024, 30002), nodePortOf("3", 2022, 30003)))
			r.Conflicts()
			for _, delta := range tt.after {
				r.Apply(delta)
			}
			if fresh, standing := r.Conflicts(); len(fresh) != 0 || standing != 0 {
				t.Errorf("conflicts %v, %d standing", fresh, standing)
			}
			if ownerChanges := r.OwnerChanges(); len(ownerChanges) != 0 {
				t.Errorf("ownerChanges %v", ownerChanges)
			}
		})
	}
}

// TestConflictIsReportedOnce: neither a change of the loser nor a change of winners tells it again;
// when the loser has had the frontend or has given it up, the next conflict is a new one.
func TestConflictIsReportedOnce(t *testing.T) {
	r := NewRuleset(testConfig())
	one, two, three := nodePortOf("1", 2021, 30001), nodePortOf("2", 2022, 30001), nodePortOf("3", 2023, 30001)
	moved := *three
	moved.Lists = &tracker.Lists{Cluster: endpoints(9), Serving: endpoints(9)}
	away := nodePortOf("3", 2023, 30002)
	for _, step := range []struct {
		name     string
		delta    tracker.Delta
		fresh    []string // "winner loser"
		owners   []string // "before now"
		standing int
	}{
		{"two come", changed(two, three), []string{"2 3"}, nil, 1},
		{"the loser's endpoints move", changed(&moved), nil, nil, 1}, // at its cluster IP
		{"an older one comes", changed(one), []string{"1 2"}, nil, 2},
		{"it goes", tracker.Delta{Removed: map[tracker.PortID]bool{one.ID: true}}, nil, []string{"1 2"}, 1},
		{"it comes again", changed(one), []string{"1 2"}, nil, 2},
		{"the last one gives up", changed(away), nil, nil, 1},
		{"and wants it again", changed(three), []string{"1 3"}, nil, 2},
		{"both winners go at once", tracker.Delta{Removed: map[tracker.PortID]bool{one.ID: true, two.ID: true}}, nil,
			[]string{"1 3"}, 0},
	} {
		r.Apply(step.delta)
		conflicts, standing := r.Conflicts()
		var fresh, owners []string
		for _, c := range conflicts {
			fresh = append(fresh, c.Winner.Service+" "+c.Loser.Service)
		}
		for _, s := range r.OwnerChanges() {
			owners = append(owners, s.Before.Service+" "+s.Now.Service)
		}
		if !slices.Equal(fresh, step.fresh) || !slices.Equal(owners, step.owners) || standing != step.standing {
			t.Errorf("%s: conflicts %v, ownerChanges %v, %d standing; want %v, %v, %d", step.name, fresh, owners, standing,
				step.fresh, step.owners, step.standing)
		}
		r.Committed()
	}
}

// TestRandomGivingWay holds who is served at each frontend against all claims, while Services come, leave, give up
// addresses and come back, and frontends change hands a few at a time.
func TestRandomGivingWay(t *testing.T) {
	defer func(n int) { stagedFrom = n }(stagedFrom)
	stagedFrom = 4
	addrs := []netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("203.0.113.2")}
	for seed := range uint64(100) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		ports, leaving := make(map[tracker.PortID]*tracker.ServicePort), make(map[string]bool)
		r := NewRuleset(testConfig())
		r.Found(nft.Tables{})
		for step := range 80 {
			service := rnd.IntN(12)
			name := fmt.Sprint("service-", service)
			var delta tracker.Delta
			id := claimant(name, 0, "10.96.0.1", 1).ID
			switch has := ports[id] != nil; {
			case has && rnd.IntN(3) == 0:
				leaving[name], delta.Leaving = true, map[tracker.ServiceID]bool{{Namespace: "ns", Service: name}: true}
			case has && leaving[name] && rnd.IntN(2) == 0:
				delta.Removed = make(map[tracker.PortID]bool)
				for number := range 3 {
					id.Port = strings.Repeat("p", number)
					delete(ports, id)
					delta.Removed[id] = true
				}
				delete(leaving, name)
			default:
				delete(leaving, name)
				for number := range 3 {
					p := claimant(name, 2020+service, fmt.Sprint("10.96.0.", service), 1)
					p.ID.Port, p.Port = strings.Repeat("p", number), uint16(80+number)
					for _, addr := range addrs {
						list := []*[]netip.Addr{&p.LoadBalancers, &p.ExternalIPs}[rnd.IntN(2)]
						*list = append(*list, addr)
						if rnd.IntN(3) == 0 {
							p.GivenUp = append(p.GivenUp, addr)
						}
					}
					ports[p.ID] = p
					delta.Changed = append(delta.Changed, p)
				}
			}
			r.Apply(delta)
			r.Committed()
			if rnd.IntN(2) == 0 { // the next change comes in between
				continue
			}
			for r.Unfinished() {
				r.Apply(tracker.Delta{})
				r.Committed()
			}
			for _, addr := range addrs {
				for number := range 3 {
					var best *tracker.ServicePort
					rank := func(p *tracker.ServicePort) (giving, external int) {
						if leaving[p.ID.Service] || slices.Contains(p.GivenUp, addr) {
							giving = 1
						}
						if slices.Contains(p.ExternalIPs, addr) {
							external = 1
						}
						return giving, external
					}
					for _, p := range ports {
						if p.Port != uint16(80+number) {
							continue
						}
						if best == nil {
							best = p
						}
						giving, external := rank(p)
						bestGiving, bestExternal := rank(best)
						if cmp.Or(giving-bestGiving, external-bestExternal, p.Created.Compare(best.Created)) < 0 {
							best = p
						}
					}
					at := tracker.Frontend{Address: addr, Protocol: tracker.TCP, Port: uint16(80 + number)}
					state := r.families[nft.IP].frontends[at]
					if best == nil && state == nil {
						continue
					}
					if best == nil || state == nil || state.shown.id != best.ID {
						t.Fatalf("seed %d, step %d: %s: served for %+v, want %v", seed, step, at, state, best)
					}
				}
			}
		}
	}
}

// TestRandomConflicts holds the conflicts of random worlds against all claims: who has each
// frontend, how many go without, and that each of these has been told exactly once since.
func TestRandomConflicts(t *testing.T) {
	type loss struct {
		place
		loser tracker.PortID
	}
	for seed := range uint64(20) {
		w, r, told := newWorld(t, seed), NewRuleset(testConfig()), make(map[loss]bool)
		for range 40 {
			before := maps.Clone(w.ports)
			r.Apply(w.change())
			for id := range before {
				if w.ports[id] == nil { // one that comes back is told again
					maps.DeleteFunc(told, func(l loss, _ bool) bool { return l.loser == id })
				}
			}
			fresh, standing := r.Conflicts()
			lost := make(map[loss]bool)
			for at, claims := range w.claims() {
				winner := slices.MinFunc(claims, first).port.ID
				if got := r.families[at.family].frontends[at.Frontend].shown.id; got != winner {
					t.Fatalf("seed %d: %s is served for %s, want %s", seed, at.Frontend, got, winner)
				}
				for _, c := range claims {
					if c.port.ID != winner {
						lost[loss{at, c.port.ID}] = true
					}
				}
			}
			maps.DeleteFunc(told, func(l loss, _ bool) bool { return !lost[l] })
			for _, c := range fresh {
				l := loss{place{c.Frontend, c.Loser.Family}, c.Loser}
				if told[l] || !lost[l] {
					t.Fatalf("seed %d: %s: told before: %v, stands: %v", seed, c, told[l], lost[l])
				}
				told[l] = true
			}
			if standing != len(lost) || len(told) != len(lost) {
				t.Fatalf("seed %d: %d conflicts standing, %d told, want %d", seed, standing, len(told), len(lost))
			}
		}
	}
}

// TestCostOfClaims counts allocated bytes and operations where many Service ports claim one
// frontend: the whole grows as their number does, and one change does not grow at all.
func TestCostOfClaims(t *testing.T) {
	type cost struct{ compile, drain, one float64 }
	costs := func(n int) (c cost) {
		delta := claimants(n, true)
		ports := delta.Changed // the last one is the oldest
		r := NewRuleset(testConfig())
		c.compile = allocated(func() {
			r.Apply(delta)
			r.Conflicts()
		})
		r.Committed()
		for _, i := range []int{n - 1, n / 2} { // winner, loser
			moved := *ports[i]
			moved.Lists = &tracker.Lists{Cluster: endpoints(7), Serving: endpoints(7)}
			shapes := []tracker.Delta{changed(&moved), changed(ports[i])}
			c.one += testing.AllocsPerRun(20, func() {
				for _, shape := range shapes {
					r.Apply(shape)
					want := 1 // at its cluster IP
					if i == n-1 {
						want = 2
					}
					if batch := r.Changes(); batch.ElementCount() != 2*want {
						t.Errorf("%d elements change, want %d deleted and %d added", batch.ElementCount(), want, want)
					}
					if fresh, standing := r.Conflicts(); len(fresh) != 0 || standing != n-1 {
						t.Errorf("%d conflicts, %d standing", len(fresh), standing)
					}
					r.Committed()
				}
			})
		}
		c.drain = allocated(func() {
			for i := n - 1; i > 0; i-- {
				r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{ports[i].ID: true}})
				fresh, standing := r.Conflicts()
				if owners := r.OwnerChanges(); len(fresh) != 0 || standing != i-1 || len(owners) != 1 ||
					owners[0].Now != ports[i-1].ID {
					t.Fatalf("after the removal of winner %d: %d conflicts, %d standing, owners %v", i, len(fresh), standing, owners)
				}
				r.Changes()
				r.Committed()
			}
		})
		return c
	}
	few, many := costs(1000), costs(2000)
	t.Logf("1,000 claims %.0f, 2,000 claims %.0f", few, many)
	if many.compile > 2.5*few.compile || many.drain > 2.5*few.drain || many.one > few.one {
		t.Errorf("1,000 claims cost %.0f, 2,000 cost %.0f: bytes to compile and to remove winners one by one, allocations "+
			"of one change", few, many)
	}
}

// TestCostOfGivingUp counts allocated bytes where a port gives up many addresses, takes them back before a later step
// has removed them, or goes: nothing is worked out again for each.
func TestCostOfGivingUp(t *testing.T) {
	const addresses = 1000
	port := clusterPort(0, 2)
	for i := range addresses {
		port.LoadBalancers = append(port.LoadBalancers, netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)}))
	}
	r := NewRuleset(testConfig())
	r.Apply(changed(port))
	r.Found(nft.Tables{})
	r.Advance(1 << 20)
	r.Committed()
	giving := port.With(func(spec *tracker.PortSpec) { spec.GivenUp = port.LoadBalancers })
	leaving := port.With(func(spec *tracker.PortSpec) { spec.Leaving = true })
	for _, next := range []*tracker.ServicePort{giving, port, leaving} {
		if bytes := allocated(func() { r.Apply(changed(next)) }); bytes > 20*addresses {
			t.Errorf("%d of %d addresses are given up: %.0f bytes", len(next.GivenUp), addresses, bytes)
		}
		for _, f := range r.families[nft.IP].ports[port.ID].frontends {
			givenUp := next.Leaving || len(next.GivenUp) > 0 && f.kind == loadBalancerIP
			if f.state.claims.first().givenUp != givenUp {
				t.Errorf("%s: given up is not %v", f.Frontend, givenUp)
			}
		}
		if len(r.Changes().Ops) > 0 {
			t.Error("an address that is given up is not served any more")
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) float64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc - before.TotalAlloc)
}
