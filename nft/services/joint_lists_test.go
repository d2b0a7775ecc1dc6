package services

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// sharingWorld has one Service of many ports that have the same endpoints, as the tracker hands them out: each port has
// another target port, and the lists share memory.
func sharingWorld(ports, endpoints int) tracker.Delta {
	delta := tracker.Delta{}
	list := slices.Clone(clusterPort(0, endpoints).Cluster)
	for i, ep := range list {
		list[i] = netip.AddrPortFrom(ep.Addr(), 0)
	}
	lists := &tracker.Lists{Cluster: list, Serving: list}
	for i := range ports {
		p := clusterPort(0, 0)
		p.ID.Port, p.Port, p.TargetPort = fmt.Sprintf("port-%d", i), uint16(1000+i), uint16(8000+i)
		p.Lists = lists
		delta.Changed = append(delta.Changed, p)
	}
	return delta
}

// lengthen makes the endpoints of a Service of so many ports a number.
func lengthen(t *testing.T, r *Ruleset, ports, endpoints int) (elements int, joint bool) {
	t.Helper()
	r.Apply(sharingWorld(ports, endpoints))
	batch := r.Changes()
	r.Committed()
	checkSharing(t, r.Want()[nft.IP], ports, endpoints)
	return batch.ElementCount(), len(r.families[nft.IP].joints) > 0
}

// checkSharing fails unless connections to each port go to all endpoints, at the port's own target port.
func checkSharing(t *testing.T, table *nft.Table, ports, endpoints int) {
	t.Helper()
	for i := range ports {
		result := table.Trace(nft.Packet{Source: netip.MustParseAddr("10.244.0.9"), Destination: clusterPort(0, 0).ClusterIP,
			Protocol: 6, Port: uint16(1000 + i), Interface: "eth0"})
		if len(result.Endpoints) != endpoints || result.Uneven || result.Holes > 0 {
			t.Fatalf("connections to port %d go to %d of %d endpoints", i, len(result.Endpoints), endpoints)
		}
		for _, ep := range result.Endpoints {
			if ep.Port() != uint16(8000+i) {
				t.Fatalf("a connection to port %d goes to %s", i, ep)
			}
		}
	}
	for _, f := range readback.New(table).Frontends() {
		if f.Cluster.Len() != endpoints || endpoints > 0 && f.Cluster.Sorted()[0].Port() != f.Port-1000+8000 {
			t.Fatalf("%s is read as %v", f.Frontend, f.Cluster)
		}
	}
}

// TestPortsTimesEndpointsAreASum: 500 ports and 500 endpoints are about 1,500 elements, and a change of an endpoint is
// one.
func TestPortsTimesEndpointsAreASum(t *testing.T) {
	r := NewRuleset(testConfig())
	empty := change.Diff(nil, r.Want())
	r.Apply(sharingWorld(500, 500))
	whole := change.Diff(nil, r.Want())
	if n := whole.ElementCount() - empty.ElementCount(); n > 500+500+500+1 { // verdicts, ports, addresses; the cluster IP
		t.Errorf("%d elements", n)
	}
	r.Committed()
	if n, _ := lengthen(t, r, 500, 501); n != 1 {
		t.Errorf("one endpoint more is %d elements", n)
	}
	world := sharingWorld(500, 501)
	id := world.Changed[7].ID
	r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{id: true}})
	if batch := r.Changes(); batch.ElementCount() != 2 { // the verdict and the port
		t.Errorf("one port less is %d elements", batch.ElementCount())
	}
	r.Committed()
	rest := slices.Delete(sharingWorld(500, 500).Changed, 7, 9)
	r.Apply(tracker.Delta{Changed: rest, Removed: map[tracker.PortID]bool{world.Changed[8].ID: true}})
	if batch := r.Changes(); batch.ElementCount() != 3 { // the endpoint, too
		t.Errorf("one port and one endpoint less are %d elements", batch.ElementCount())
	}
}

// TestPortsThatPart: of ports that shared a list, those keep it for which another list would be more elements.
func TestPortsThatPart(t *testing.T) {
	for _, tt := range []struct{ ports, endpoints, moved, to int }{
		{500, 5, 100, 100}, // the few get a longer list than the many keep
		{5, 5000, 3, 1000}, // the few keep a longer list than the many get
	} {
		r := NewRuleset(testConfig())
		r.Apply(sharingWorld(tt.ports, tt.endpoints))
		r.Committed()
		r.Apply(tracker.Delta{Changed: sharingWorld(tt.moved, tt.to).Changed})
		batch := r.Changes()
		if n := batch.ElementCount(); n > 4*tt.moved+tt.to { // verdicts and ports leave and come
			t.Errorf("%d of %d ports get %d instead of %d endpoints with %d elements", tt.moved, tt.ports, tt.to,
				tt.endpoints, n)
		}
	}
}

// TestStartNeedsNoRoomForPortsTimesEndpoints: a start makes room for a list that many ports share, and not for one of
// each port.
func TestStartNeedsNoRoomForPortsTimesEndpoints(t *testing.T) {
	r, world := NewRuleset(testConfig()), sharingWorld(500, 500)
	if n := allocated(func() { r.Apply(world) }); n > 10<<20 {
		t.Errorf("the first Apply takes %.0f MiB", n/(1<<20))
	}
}

// TestSharingBegins: ports share a list from 1,024 elements on, and until it would be a sixteenth. A new process goes
// on as it finds the table.
func TestSharingBegins(t *testing.T) {
	r := NewRuleset(testConfig())
	const ports = 16
	for _, step := range []struct {
		endpoints int
		joint     bool
	}{{31, false}, {63, false}, {64, true}, {63, true}, {4, true}, {3, false}, {63, false}, {100, true}, {0, false},
		{64, true}} {
		if _, joint := lengthen(t, r, ports, step.endpoints); joint != step.joint {
			t.Fatalf("%d endpoints: sharing is %v", step.endpoints, joint)
		}
		next := NewRuleset(testConfig())
		next.Adopt(r.Want())
		next.Apply(sharingWorld(ports, step.endpoints))
		if diff := change.Diff(r.Want(), next.Want()); !diff.Empty() {
			t.Fatalf("%d endpoints: a new process changes %d things, first: %s", step.endpoints, len(diff.Ops),
				diff.Ops[0].Text())
		}
	}
	next := NewRuleset(testConfig()) // most endpoints left while no process ran
	next.Adopt(r.Want())
	next.Apply(sharingWorld(ports, 3))
	for name, set := range next.Want()[nft.IP].Sets {
		if strings.HasPrefix(name, layout.AddressesPrefix) || strings.HasPrefix(name, layout.PortsPrefix) {
			t.Errorf("%s is kept, with %d elements", name, len(set.Map))
		}
	}
	removed := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
	for _, p := range sharingWorld(ports, 1).Changed {
		removed.Removed[p.ID] = true
	}
	r.Apply(removed)
	if diff := change.Diff(NewRuleset(testConfig()).Want(), r.Want()); !diff.Empty() {
		t.Errorf("the deleted Service has left: %s", diff.Ops[0].Text())
	}
	if f := r.families[nft.IP]; len(f.numbers)+len(f.siblings)+len(f.joints) > 0 {
		t.Errorf("%d numbers and %d lists are left", len(f.numbers), len(f.joints))
	}
}

// TestOneOfManyPortsChanges: a port that gets session affinity, as 10,000 do one by one, does not make all others be
// grouped again. A port that gets other endpoints leaves the list.
func TestOneOfManyPortsChanges(t *testing.T) {
	const ports = 2000
	r, world := NewRuleset(testConfig()), sharingWorld(ports, 100)
	r.Apply(world)
	r.Changes()
	r.Committed()
	sticky := *world.Changed[7]
	sticky.PortSpec = new(*sticky.PortSpec)
	sticky.Affinity = 600
	if n := allocated(func() { r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{&sticky}}) }); n > 64<<10 {
		t.Errorf("one port of %d takes %.0f KiB", ports, n/(1<<10))
	}
	checkSharing(t, r.Want()[nft.IP], ports, 100)
	scratch := NewRuleset(testConfig())
	world.Changed[7] = &sticky
	scratch.Apply(world)
	if diff := change.Diff(scratch.Want(), r.Want()); !diff.Empty() {
		t.Errorf("the table differs from a new one: %s", diff.Ops[0].Text())
	}

	moved := *world.Changed[9]
	moved.Lists = sharingWorld(1, 50).Changed[0].Lists
	r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{&moved}})
	for port, endpoints := range map[uint16]int{moved.Port: 50, sticky.Port: 100, 1000: 100} {
		result := r.Want()[nft.IP].Trace(nft.Packet{Source: netip.MustParseAddr("10.244.0.9"),
			Destination: moved.ClusterIP, Protocol: 6, Port: port, Interface: "eth0"})
		if len(result.Endpoints) != endpoints {
			t.Errorf("connections to port %d go to %d endpoints, want %d", port, len(result.Endpoints), endpoints)
		}
	}
}

// TestWeightsOfFrontends: all frontends of a port share a list with weights, which changes with each weight.
func TestWeightsOfFrontends(t *testing.T) {
	weighted := func(weight uint16) *tracker.ServicePort {
		p := *clusterPort(0, 256)
		l := *p.Lists
		l.ClusterWeights = slices.Repeat([]uint16{100}, 256)
		for i := range 128 {
			l.ClusterWeights[i] = weight
		}
		p.Lists, p.ExternalIPs = &l, lab.Addresses(netip.MustParseAddr("192.0.2.1"), 3)
		return &p
	}
	r := NewRuleset(testConfig())
	r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{weighted(100)}})
	r.Changes()
	for _, weight := range []uint16{50, 57} {
		r.Committed()
		r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{weighted(weight)}})
		batch := r.Changes()
		if n := batch.ElementCount(); n > 2*2048+4*256 {
			t.Errorf("a change to weight %d is %d elements", weight, n)
		}
	}
}

// TestNodePortThatIsAnotherPort: where a node port has the number of another port of the Service, connections to each
// still go to their own target port.
func TestNodePortThatIsAnotherPort(t *testing.T) {
	defer func(places int) { manyPlaces = places }(manyPlaces)
	manyPlaces = 100
	world := sharingWorld(20, 10)
	for _, p := range world.Changed {
		p.NodePort = 1000 + (p.Port-1000+1)%20
	}
	r := NewRuleset(testConfig())
	r.SetNodePortAddresses([]netip.Addr{netip.MustParseAddr("192.0.2.1")})
	r.Apply(world)
	table := r.Want()[nft.IP]
	for _, p := range world.Changed {
		for addr, port := range map[netip.Addr]uint16{p.ClusterIP: p.Port, netip.MustParseAddr("192.0.2.1"): p.NodePort} {
			result := table.Trace(nft.Packet{Source: netip.MustParseAddr("10.244.0.9"), Destination: addr, Protocol: 6,
				Port: port, Interface: "eth0"})
			if len(result.Endpoints) != 10 || result.Endpoints[0].Port() != p.TargetPort {
				t.Fatalf("%s port %d goes to %v, want port %d", addr, port, result.Endpoints, p.TargetPort)
			}
		}
	}
	if n := len(r.families[nft.IP].joints[serviceOf(world.Changed[0].ID)]); n < 2 || n > 3 {
		t.Errorf("%d lists", n)
	}
}

// TestSharingInKernel: the kernel takes each batch while a Service crosses the bound both ways, and holds what is
// wanted.
func TestSharingInKernel(t *testing.T) {
	lab.New(t)
	client := lab.Open(t, kernel.Open)
	r := NewRuleset(testConfig())
	commit(t, client, change.Diff(nil, r.Want()))
	r.Committed()
	for _, endpoints := range []int{63, 64, 70, 40, 3, 80} {
		r.Apply(sharingWorld(16, endpoints))
		batch := r.Changes()
		commit(t, client, batch)
		r.Committed()
		tables, _, err := client.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := change.Diff(tables, r.Want()); !diff.Empty() {
			t.Fatalf("%d endpoints: the kernel lacks %s", endpoints, diff.Ops[0].Text())
		}
		checkSharing(t, readback.New(tables[nft.IP]).Table, 16, endpoints)
		next := NewRuleset(testConfig())
		next.Adopt(tables)
		next.Apply(sharingWorld(16, endpoints))
		if diff := change.Diff(tables, next.Want()); !diff.Empty() {
			t.Fatalf("%d endpoints: a new process writes %s", endpoints, diff.Ops[0].Text())
		}
	}
}

// TestSharingPackets: real connections to each of several ports come to the port's own target port, at all endpoints,
// while the Service crosses the bound both ways. None fails.
func TestSharingPackets(t *testing.T) {
	lab.New(t)
	const ports = 16
	client := lab.Open(t, kernel.Open)
	for _, err := range []error{lab.SetUp("lo"), lab.AddAddress("lo", netip.MustParsePrefix("10.128.0.0/16")),
		lab.AddSink("sink"), lab.AddAddress("sink", netip.MustParsePrefix("10.244.0.9/32")),
		lab.AddRoute("sink", netip.MustParsePrefix("10.96.0.0/16"), netip.Addr{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for i := range ports {
		listener, err := net.Listen("tcp4", fmt.Sprintf(":%d", 8000+i))
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		lab.Serve(listener, func(c net.Conn) { fmt.Fprint(c, c.LocalAddr()) })
	}
	r := NewRuleset(testConfig())
	commit(t, client, change.Diff(nil, r.Want()))
	r.Committed()
	apply := func(endpoints int) {
		t.Helper()
		r.Apply(sharingWorld(ports, endpoints))
		batch := r.Changes()
		commit(t, client, batch)
		r.Committed()
	}
	connect := func(port int) netip.AddrPort {
		t.Helper()
		conn, err := net.DialTimeout("tcp4", fmt.Sprintf("10.96.0.0:%d", 1000+port), lab.Patience)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		text, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		at := netip.MustParseAddrPort(string(text))
		if at.Port() != uint16(8000+port) {
			t.Fatalf("a connection to port %d comes to %s", port, at)
		}
		return at
	}
	for _, endpoints := range []int{63, 64, 40, 3, 70, 3, 100} {
		apply(endpoints)
		list, hit := sharingWorld(1, endpoints).Changed[0].Cluster, make(map[netip.Addr]bool)
		for i := range 20 * ports {
			at := connect(i % ports)
			if !slices.Contains(list, netip.AddrPortFrom(at.Addr(), 0)) {
				t.Fatalf("with %d endpoints, a connection comes to %s", endpoints, at)
			}
			hit[at.Addr()] = true
		}
		if len(hit) < endpoints*3/4 {
			t.Errorf("320 connections come to %d of %d endpoints", len(hit), endpoints)
		}
	}
}
