package services

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
	"github.com/kube-nft/kube-nft/tracker"
)

// departedIn lists the endpoints that stand in a table as departed, without their numbers.
func departedIn(table *nft.Table) (endpoints []netip.Addr) {
	for key := range table.Sets[layout.DepartedSet].Map {
		addr, _ := netip.AddrFromSlice([]byte(key[4:]))
		endpoints = append(endpoints, addr)
	}
	slices.SortFunc(endpoints, netip.Addr.Compare)
	return endpoints
}

// TestDepartures: endpoints that leave are noted until they come back or have been settled.
func TestDepartures(t *testing.T) {
	port := affinePort(1, 3)
	fewer, another, local, without := *port, *port, *port, *port
	fewer.Cluster = port.Cluster[:2]
	another.Cluster = slices.Clone(port.Cluster)
	another.Cluster[2] = netip.AddrPortFrom(port.Cluster[2].Addr(), 9090)
	local.InternalLocal, local.Local = true, port.Cluster[:1]
	without.Affinity = 0
	first, second, third := port.Cluster[0].Addr(), port.Cluster[1].Addr(), port.Cluster[2].Addr()
	for _, tt := range []struct {
		name  string
		steps []*tracker.ServicePort
		want  []netip.Addr
	}{
		{"nothing", nil, nil},
		{"an endpoint leaves", []*tracker.ServicePort{&fewer}, []netip.Addr{third}},
		{"it comes back", []*tracker.ServicePort{&fewer, port}, nil},
		{"its port changes", []*tracker.ServicePort{&another}, []netip.Addr{third}},
		{"its port changes back", []*tracker.ServicePort{&another, port}, []netip.Addr{third}}, // at the other port
		{"only this node's are chosen", []*tracker.ServicePort{&local}, []netip.Addr{first, second, second, third, third}},
		{"affinity goes and comes back for fewer", []*tracker.ServicePort{&without, &fewer}, []netip.Addr{third}},
	} {
		r := NewRuleset(testConfig())
		r.Apply(changed(port))
		r.Committed()
		var begun []affinity.Departure
		for _, step := range tt.steps {
			r.Apply(changed(step))
			begun = append(begun, r.AffinityChanges().Departed...)
			r.Committed()
		}
		table := r.Want()[nft.IP]
		if got := departedIn(table); !slices.Equal(got, tt.want) {
			t.Errorf("%s: departed %v, want %v", tt.name, got, tt.want)
		}
		again := NewRuleset(testConfig())
		again.Adopt(nft.Tables{nft.IP: table})
		if got := departedIn(again.Want()[nft.IP]); !slices.Equal(got, tt.want) {
			t.Errorf("%s: after a restart departed %v, want %v", tt.name, got, tt.want)
		}
		if n := len(again.AffinityChanges().Departed); n != len(tt.want) {
			t.Errorf("%s: after a restart %d departures begin, want %d", tt.name, n, len(tt.want))
		}
		if r.EndDepartures(begun); len(departedIn(table)) != 0 {
			t.Errorf("%s: departed %v when all have ended", tt.name, departedIn(table))
		}
	}
}

// TestEarlierDepartureDoesNotEndALaterOne: an endpoint that has come back and left again stays in the set until
// its latest departure ends.
func TestEarlierDepartureDoesNotEndALaterOne(t *testing.T) {
	port := affinePort(1, 2)
	fewer := *port
	fewer.Cluster = port.Cluster[:1]
	r := NewRuleset(testConfig())
	var begun []affinity.Departure
	for _, step := range []*tracker.ServicePort{port, &fewer, port, &fewer} {
		r.Apply(changed(step))
		begun = append(begun, r.AffinityChanges().Departed...)
		r.Committed()
	}
	if len(begun) != 2 {
		t.Fatalf("%d departures, want 2", len(begun))
	}
	if r.EndDepartures(begun[:1]); len(departedIn(r.Want()[nft.IP])) != 1 {
		t.Error("the first departure has ended the second one")
	}
	if r.EndDepartures(begun); len(departedIn(r.Want()[nft.IP])) != 0 {
		t.Error("the second departure has not ended")
	}
}

// TestEndpointsThatLeftWhileStopped: an endpoint that the kernel's lists have and the wanted ones have not is a
// departed one from the first commit on.
func TestEndpointsThatLeftWhileStopped(t *testing.T) {
	port := affinePort(1, 3)
	fewer := *port
	fewer.Cluster = port.Cluster[:2]
	before := NewRuleset(testConfig())
	before.Apply(changed(port))
	r := NewRuleset(testConfig())
	r.Adopt(before.Want())
	r.Apply(changed(&fewer))
	if got, want := departedIn(r.Want()[nft.IP]), []netip.Addr{port.Cluster[2].Addr()}; !slices.Equal(got, want) {
		t.Errorf("departed %v, want %v", got, want)
	}
	if groups := r.AffinityChanges().Groups; len(groups) != 1 || len(groups[0].Members) != 2 {
		t.Errorf("groups %+v, want one of two endpoints", groups)
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
	fewer.Cluster, fewer.Serving = p.Cluster[:1], p.Cluster[:1]
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
	if arrives(1, false) {
		t.Error("a packet arrives at the endpoint that has left")
	}
	if entries := held(); len(entries) != 0 {
		t.Errorf("the packet has left entries: %+v", entries)
	}
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
	if arrives(1, false) || len(held()) != 0 {
		t.Errorf("a packet under way to the endpoint has made entries: %+v", held())
	}
	back := list
	back.Verb = nft.Delete
	first.Verb = nft.Add
	commit(t, k, nft.Batch{Ops: []nft.Op{back, first}})
	if !arrives(0, true) {
		t.Error("without the entry, a packet does not arrive at the other endpoint")
	}
}
