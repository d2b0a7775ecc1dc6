package services

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// checkMembers fails unless entries may name all endpoints to which Service ports with affinity send connections: the
// chain that updates entries drops connections to others. It leaves out frontends whose chain is to become another one,
// see docs/limits.md.
func checkMembers(t *testing.T, table *nft.Table, wants ...sticky) {
	t.Helper()
	for _, f := range readback.New(table).Frontends() {
		update := stickyIn(table).chain(f.Frontend)
		if update == nil || slices.ContainsFunc(wants, func(want sticky) bool {
			wanted := want.chain(f.Frontend)
			return wanted == nil || !update.EqualRules(table.Family, wanted)
		}) {
			continue
		}
		isMember := func(ep netip.AddrPort) (is bool) {
			for _, rule := range update.Rules {
				there, member := true, false
				for _, stmt := range rule {
					switch s := stmt.(type) {
					case nft.PortIs:
						there = s.Port == ep.Port()
					case nft.InSet:
						number, _ := s.Key[0].Constant()
						_, found := table.Sets[s.Set].Map[layout.NumberedAddr(number, ep.Addr())]
						member = member || found
					}
				}
				is = is || there && member
			}
			return is
		}
		for _, ep := range f.Endpoints().All() {
			if !isMember(ep) {
				t.Fatalf("%s: connections to %s are dropped: %v", f.Frontend, ep, update.Rules)
			}
		}
	}
}

// sticky are what updates the affinity entries of frontends: of those with an address, and of node ports.
type sticky struct {
	frontends [2]map[string]nft.Element
	chains    map[string]*nft.Chain
}

func stickyIn(table *nft.Table) (s sticky) {
	for i, set := range []string{layout.AffinityFrontendsMap, layout.AffinityNodePortsMap} {
		s.frontends[i] = maps.Clone(table.Elements(set))
	}
	s.chains = maps.Clone(table.Chains)
	return s
}

// chain returns the chain that updates the affinity entries of a frontend; nil if none does.
func (s sticky) chain(f tracker.Frontend) *nft.Chain {
	i := 0
	if f.NodePort() {
		i = 1
	}
	if v := s.frontends[i][layout.FrontendKeyOf(f)].Verdict; v != nil {
		return s.chains[v.Chain]
	}
	return nil
}

// membersIn lists the endpoints in a set of members.
func membersIn(table *nft.Table) (list []string) {
	for key := range table.Sets[layout.MembersSet].Map {
		number, _ := layout.NumberIn(table.Family, layout.MembersSet, key)
		addr, _ := netip.AddrFromSlice([]byte(key[4:]))
		list = append(list, fmt.Sprint(addr, map[bool]string{true: " local"}[layout.IsLocalNumber(number)]))
	}
	slices.Sort(list)
	return list
}

// TestMembers: the endpoints that entries of a Service port may name, and which changes of lists may leave wrong
// entries behind.
func TestMembers(t *testing.T) {
	port := affinePort(1, 3)
	fewer, another, local, without := *port, *port, *port, *port
	fewer.Lists = &tracker.Lists{Cluster: port.Cluster[:2]}
	another.Lists = &tracker.Lists{Cluster: slices.Clone(port.Cluster)}
	another.Cluster[2] = netip.AddrPortFrom(port.Cluster[2].Addr(), 9090)
	local.PortSpec, without.PortSpec = new(*port.PortSpec), new(*port.PortSpec)
	local.InternalLocal, local.Lists = true, &tracker.Lists{Cluster: port.Cluster, Local: port.Cluster[:1]}
	without.Affinity = 0
	name := func(i int) string { return port.Cluster[i].Addr().String() }
	first, second, third := name(0), name(1), name(2)
	for _, tt := range []struct {
		name  string
		steps []*tracker.ServicePort
		want  []string
		left  int // lists that an endpoint has left
	}{
		{"nothing", nil, []string{first, second, third}, 0},
		{"an endpoint leaves", []*tracker.ServicePort{&fewer}, []string{first, second}, 1},
		{"it comes back", []*tracker.ServicePort{&fewer, port}, []string{first, second, third}, 1},
		{"its port changes", []*tracker.ServicePort{&another}, []string{first, second, third}, 1},
		{"its port changes back", []*tracker.ServicePort{&another, port}, []string{first, second, third}, 2},
		{"only this node's are chosen", []*tracker.ServicePort{&local}, []string{first + " local"}, 1},
		{"affinity goes", []*tracker.ServicePort{&without}, nil, 1},
		{"affinity goes and comes back for fewer", []*tracker.ServicePort{&without, &fewer}, []string{first, second}, 1},
	} {
		r := NewRuleset(testConfig())
		r.Apply(changed(port))
		r.Committed()
		for _, step := range tt.steps {
			r.Apply(changed(step))
		}
		table, left := r.Want()[nft.IP], 0
		for _, l := range r.AffinityChanges().Lists {
			if l.Left {
				left++
			}
		}
		if got := membersIn(table); !slices.Equal(got, tt.want) || left != tt.left {
			t.Errorf("%s: members %v, want %v; endpoints left %d lists, want %d", tt.name, got, tt.want, left, tt.left)
		}
	}
}

// TestMembersOfManyPorts: ports of a Service that share their endpoints share the members, too. An endpoint that is
// replaced is a few elements, whatever the ports.
func TestMembersOfManyPorts(t *testing.T) {
	const ports = 200
	sticky := func(endpoints, at int) tracker.Delta {
		world := sharingWorld(ports, endpoints)
		list := clusterPort(at, endpoints).Cluster
		for i, ep := range list {
			list[i] = netip.AddrPortFrom(ep.Addr(), 0)
		}
		lists := &tracker.Lists{Cluster: list, Serving: list}
		for _, p := range world.Changed {
			p.Affinity, p.Several, p.Lists = time.Hour, true, lists
		}
		return world
	}
	r := NewRuleset(testConfig())
	r.Apply(sticky(10, 0))
	r.Committed()
	world := sticky(11, 0)
	var others *tracker.Lists // without the first one
	for _, p := range world.Changed {
		if others == nil {
			others = &tracker.Lists{Cluster: p.Cluster[1:], Serving: p.Serving[1:]}
		}
		p.Lists = others
	}
	r.Apply(world)
	if batch := r.Changes(); batch.ElementCount() > 4 {
		t.Errorf("an endpoint that is replaced is %d elements", batch.ElementCount())
	}
	changes := r.AffinityChanges()
	if len(changes.Groups) > 0 || len(changes.Lists) != 1 || !changes.Lists[0].Left ||
		len(changes.Lists[0].Members) != 10 {
		t.Errorf("groups %d, lists %+v, want one list", len(changes.Groups), changes.Lists)
	}
	checkMembers(t, r.Want()[nft.IP], stickyIn(r.Want()[nft.IP]))
}

// TestMembersOfSharedListInParts: the endpoints of a port with many frontends changed while kube-nft did not run. At a
// restart that goes in parts, no new connection to an endpoint of its list is dropped.
func TestMembersOfSharedListInParts(t *testing.T) {
	for _, maglev := range []bool{false, true} {
		before, after := affinePort(1, 10), affinePort(1, 11)
		for i := range byte(6) {
			addr := netip.AddrFrom4([4]byte{203, 0, 113, i + 1})
			before.ExternalIPs, after.ExternalIPs = append(before.ExternalIPs, addr), append(after.ExternalIPs, addr)
		}
		before.Settings.Maglev, after.Settings.Maglev = maglev, maglev
		before.Lists = &tracker.Lists{Cluster: after.Cluster[:10], Serving: after.Cluster[:10]}
		after.Lists = &tracker.Lists{Cluster: after.Cluster[1:], Serving: after.Cluster[1:]}
		old, r, applied := NewRuleset(testConfig()), NewRuleset(testConfig()), nft.Tables{}
		old.Apply(changed(before))
		mustApply(t, applied, change.Diff(nil, old.Want()))
		r.Adopt(applied)
		r.Apply(changed(after))
		r.Found(applied)
		for behind := true; behind; behind = r.Behind() {
			r.Advance(1)
			mustApply(t, applied, r.Changes())
			r.Committed()
			checkMembers(t, applied[nft.IP], stickyIn(applied[nft.IP]))
		}
	}
}

// TestStickyNodePortInParts: node ports are served at an address of a load balancer since a restart that goes in parts.
// Before connections to the address get into what updates affinity maps of a node port with its number, the address is
// kept apart from the node port.
func TestStickyNodePortInParts(t *testing.T) {
	sticky, other := affinePort(1, 3), affinePort(2, 3)
	other.Affinity, other.LoadBalancers = 0, []netip.Addr{netip.MustParseAddr("203.0.113.1")}
	published := *sticky
	published.PortSpec = new(*published.PortSpec)
	published.NodePort = other.Port
	for _, before := range []*tracker.ServicePort{sticky, &published} {
		old, r, applied := NewRuleset(testConfig()), NewRuleset(testConfig()), nft.Tables{}
		old.Apply(changed(before, other))
		mustApply(t, applied, change.Diff(nil, old.Want()))
		r.Adopt(applied)
		r.SetNodePortAddresses(other.LoadBalancers)
		r.Apply(changed(&published, other))
		r.Found(applied)
		for behind := true; behind; behind = r.Behind() {
			r.Advance(1)
			mustApply(t, applied, r.Changes())
			r.Committed()
			table := applied[nft.IP]
			_, served := table.Sets[layout.NodePortAddressesSet].Map[nft.AddrKey(other.LoadBalancers[0])]
			updates := table.Sets[layout.AffinityNodePortsMap].Map
			if len(table.Sets[layout.BeforeNodePortsSet].Map) == 0 && served && len(updates) > 0 {
				t.Fatal("connections to the load balancer are taken for some to the node port")
			}
		}
	}
}

// TestNumberOfStickyNodePort sends packets to Services that have a port with the number of a node port with session
// affinity: they are none of its connections.
func TestNumberOfStickyNodePort(t *testing.T) {
	for _, f := range nft.Families {
		for _, all := range []bool{false, true} {
			for _, kind := range []frontendKind{clusterIP, loadBalancerIP, externalIP} {
				for _, ofNode := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s, node ports at all addresses %v, frontend of kind %d, node port address %v", f, all, kind,
						ofNode), func(t *testing.T) { testNumberOfStickyNodePort(t, f, all, kind, ofNode) })
				}
			}
		}
	}
}

func testNumberOfStickyNodePort(t *testing.T, f nft.Family, all bool, kind frontendKind, ofNode bool) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	client, node, frontend, endpoint := testAddr(f, 1), testAddr(f, 2), testAddr(f, 3), testAddr(f, 4)
	// The local route of an IPv6 address comes late.
	if err := lab.AddLocal(netip.PrefixFrom(client, client.BitLen()-8).Masked()); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []netip.Addr{client, node, frontend, endpoint} {
		if err := lab.AddAddress("lo", netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			t.Fatal(err)
		}
	}
	sticky, other := countingPort(), countingPort()
	sticky.ID.Family, sticky.ClusterIP, sticky.Affinity = f, testAddr(f, 5), time.Hour
	sticky.Cluster, sticky.HasEndpoints = []netip.AddrPort{netip.AddrPortFrom(testAddr(f, 6), 8080)}, true
	other.ID.Family, other.ID.Service, other.UID, other.ClusterIP, other.Port = f, "other", "2", testAddr(f, 7), 30080
	other.Cluster, other.HasEndpoints = []netip.AddrPort{netip.AddrPortFrom(endpoint, 8081)}, true
	switch kind {
	case clusterIP:
		other.ClusterIP = frontend
	case loadBalancerIP:
		other.LoadBalancers = []netip.Addr{frontend}
	case externalIP:
		other.ExternalIPs = []netip.Addr{frontend}
	}
	config := testConfig()
	config.AllNodePorts = map[nft.Family]bool{f: all}
	r := NewRuleset(config)
	setNodeAddresses := func(addrs ...netip.Addr) {
		if !all {
			r.SetNodePortAddresses(addrs)
		}
	}
	setNodeAddresses(node)
	r.Apply(changed(sticky, other))
	commit(t, k, change.Diff(nil, r.Want()))
	r.Committed()
	if ofNode {
		setNodeAddresses(node, frontend)
	}
	receiver, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(other.Cluster[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	for _, nodePort := range []uint16{30080, 30081, 30080, 0} {
		published := *sticky
		published.PortSpec = new(*published.PortSpec)
		published.NodePort = nodePort
		r.Apply(changed(&published))
		commit(t, k, r.Changes())
		r.Committed()
		sender, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(client, 0)),
			net.UDPAddrFromAddrPort(netip.AddrPortFrom(frontend, 30080)))
		if err != nil {
			t.Fatal(err)
		}
		defer sender.Close()
		_, err = sender.Write([]byte{0})
		_ = receiver.SetReadDeadline(time.Now().Add(lab.Patience))
		if err == nil {
			_, err = receiver.Read(make([]byte, 1))
		}
		if err != nil {
			t.Fatalf("node port %d: %v", nodePort, err)
		}
	}
}

// TestStickyNodePortOfManyAddresses: a node port with session affinity costs the same however many addresses have its
// number. Each of them has one element for that, if node ports are served there.
func TestStickyNodePortOfManyAddresses(t *testing.T) {
	const addresses = 500
	sticky := affinePort(1, 3)
	sticky.NodePort = 80
	plain := *sticky
	plain.PortSpec = new(*plain.PortSpec)
	plain.Affinity, plain.NodePort = 0, 0
	for _, all := range []bool{false, true} {
		config := testConfig()
		config.AllNodePorts = map[nft.Family]bool{nft.IP: all}
		r := NewRuleset(config)
		world := externalWorld(addresses, 3)
		r.Apply(world)
		r.Apply(changed(affinePort(2, 3))) // the chains that all ports with affinity share stay
		r.Committed()
		for _, p := range []*tracker.ServicePort{sticky, &plain, sticky} {
			r.Apply(changed(p))
			if batch := r.Changes(); batch.ElementCount() > 20 {
				t.Errorf("node ports at all addresses %v: a toggle is %d elements", all, batch.ElementCount())
			}
			r.Committed()
		}
		hidden := func(want int) {
			t.Helper()
			if n := len(r.Want()[nft.IP].Sets[layout.BeforeNodePortsSet].Map); n != want {
				t.Errorf("node ports at all addresses %v: %d elements, want %d", all, n, want)
			}
		}
		if all {
			hidden(addresses)
		} else {
			at := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.AddrFrom4([4]byte{203, 0, 0, 1})}
			for n := range 3 {
				r.SetNodePortAddresses(at[:n])
				hidden(max(n-1, 0))
			}
			r.SetNodePortAddresses(nil)
			hidden(0)
			r.SetNodePortAddresses(at)
		}
		r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{clusterPort(0, 3).ID: true}})
		hidden(0)
	}
}

// TestDepartedPackets sends a packet of a client whose entry names an endpoint that has left: it does not arrive
// there and takes the entry with it, so that the next packet goes to another endpoint. A packet to the departed
// endpoint that follows no entry, as one that was under way at the commit, makes no entry.
func TestDepartedPackets(t *testing.T) {
	for _, both := range []bool{false, true} {
		for _, several := range []bool{false, true} {
			t.Run(fmt.Sprintf("both lists %v, several ports %v", both, several), func(t *testing.T) {
				testDepartedPackets(t, both, several)
			})
		}
	}
}

func testDepartedPackets(t *testing.T, both, several bool) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	p := countingPort()
	var receivers []*net.UDPConn
	for i := range byte(2) {
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 2, i + 1}), 8080)
		p.Cluster = append(p.Cluster, at)
		conn, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		receivers = append(receivers, conn)
	}
	p.Serving, p.HasEndpoints, p.Affinity, p.Several = p.Cluster, true, time.Hour, several
	if both {
		p.Local, p.NodePort, p.ExternalLocal = p.Cluster, 30080, true
	}
	config := testConfig()
	// all clients are pods
	config.Pods = map[nft.Family]layout.PodMatch{nft.IP: {CIDR: netip.MustParsePrefix("127.0.0.0/8")}}
	r := NewRuleset(config)
	r.Apply(changed(p))
	commit(t, k, change.Diff(nil, r.Want()))
	r.Committed()
	group := r.families[nft.IP].ports[p.ID].affinity.Find(false, 8080)
	set := r.AffinityMaps(nft.IP)[group.Number/2%layout.AffinityMaps]
	client := netip.MustParseAddr("127.1.0.9")
	key := nft.NumberedKey(nft.IP, group.Number, client)
	entry := nft.Element{Data: nft.AddrKey(p.Cluster[1].Addr()), Life: &nft.Life{Timeout: time.Hour, Expires: time.Minute}}
	enter := nft.Batch{
		Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{{Key: key, Element: entry}}}},
	}
	commit(t, k, enter)
	fewer := *p
	fewer.Lists = &tracker.Lists{Cluster: p.Cluster[:1], Serving: p.Cluster[:1]}
	if both {
		fewer.Local = p.Local[:1]
	}
	r.Apply(changed(&fewer))
	commit(t, k, r.Changes())
	r.Committed()
	arrives := func(at int, wanted bool) bool { // it waits long only for what is wanted
		t.Helper()
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: client.As4()}); err != nil {
			t.Fatal(err)
		}
		err = unix.Sendto(fd, []byte("x"), 0, &unix.SockaddrInet4{Addr: p.ClusterIP.As4(), Port: int(p.Port)})
		if dropped := err == unix.EPERM; err != nil && !dropped || dropped == wanted {
			t.Fatalf("a write says %v, and is to arrive: %t", err, wanted)
		}
		var b [1]byte
		patience := 100 * time.Millisecond
		if wanted {
			patience = lab.Patience
		}
		receivers[at].SetReadDeadline(time.Now().Add(patience))
		_, err = receivers[at].Read(b[:])
		return err == nil
	}
	held := func() map[string]nft.Element {
		t.Helper()
		entries, err := k.Elements(t.Context(), nft.IP, set)
		if err != nil {
			t.Fatal(err)
		}
		return entries
	}
	explained := func(outcome, reason string, to, dropped []netip.AddrPort) {
		t.Helper()
		tables, _, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tables[nft.IP].Sets[set.Name].Map = held()
		e := readback.New(tables[nft.IP]).Explain(nft.Packet{Source: client, Destination: p.ClusterIP,
			Protocol: unix.IPPROTO_UDP, Port: p.Port})
		if e.Outcome != outcome || !strings.Contains(e.Reason, reason) || !slices.Equal(e.Endpoints, to) ||
			!slices.Equal(e.Dropped, dropped) {
			t.Errorf("explained as %s because of %q, to %v, dropped to %v", e.Outcome, e.Reason, e.Endpoints, e.Dropped)
		}
	}
	explained("drop", "the client's affinity entry names 127.0.2.2:8080, which has left", nil, p.Cluster[1:])
	if arrives(1, false) {
		t.Error("a packet arrives at the endpoint that has left")
	}
	if entries := held(); len(entries) != 0 {
		t.Errorf("the packet has left entries: %+v", entries)
	}
	explained("dnat", "", p.Cluster[:1], nil)
	// A packet that was under way at the commit has been translated to the endpoint without an entry: here, by
	// the list of the kernel, which still has it.
	name := layout.EndpointMap{Protocol: p.ID.Protocol}.Name()
	list := nft.Op{Verb: nft.Add, Family: nft.IP, Set: r.Want()[nft.IP].Sets[name].Set,
		Elements: []nft.KeyedElement{{
			Key:     layout.FrontendKey(p.ClusterIP, uint8(p.ID.Protocol), p.Port) + string(nft.AppendNumber(nil, 0)),
			Element: nft.Element{Data: nfttest.AddrPortData(p.Cluster[1])},
		}}}
	first := list
	first.Verb, first.Elements = nft.Delete, slices.Clone(list.Elements)
	first.Elements[0].Data = nfttest.AddrPortData(p.Cluster[0])
	commit(t, k, nft.Batch{Ops: []nft.Op{first, list}})
	explained("drop", "a rule drops connections to 127.0.2.2:8080", nil, p.Cluster[1:])
	if arrives(1, false) || len(held()) != 0 {
		t.Errorf("a packet under way to the endpoint has made entries: %+v", held())
	}
	back := list
	back.Verb = nft.Delete
	first.Verb = nft.Add
	commit(t, k, nft.Batch{Ops: []nft.Op{back, first}})
	explained("dnat", "", p.Cluster[:1], nil)
	if !arrives(0, true) {
		t.Error("without the entry, a packet does not arrive at the other endpoint")
	}
}
