package services

import (
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
		for _, step := range tt.steps {
			r.Apply(changed(step))
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
		for _, set := range r.AffinityMaps(nft.IP) {
			r.Settle(nft.IP, set.Name, r.Commits())
		}
		if got := departedIn(table); len(got) != 0 {
			t.Errorf("%s: departed %v when all is settled", tt.name, got)
		}
	}
}

// TestDropDeparted: connections are dropped to endpoints that leave with the next commit, of large
// maps alone, until all departures of the address are settled.
func TestDropDeparted(t *testing.T) {
	port, other := affinePort(1, 2), affinePort(2, 2)
	other.Cluster = port.Cluster
	r := NewRuleset(testConfig())
	r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: port, other.ID: other}})
	r.Committed()
	dropped := func() int { return len(r.Want()[nft.IP].Sets[layout.DroppedSet].Map) }
	leave := func(p *tracker.ServicePort) {
		fewer := *p
		fewer.Cluster = p.Cluster[:1]
		r.Apply(changed(&fewer))
	}
	leave(port)
	r.Committed()
	for _, set := range r.AffinityMaps(nft.IP) {
		r.DropDeparted(nft.IP, set.Name) // committed before
	}
	if dropped() != 0 {
		t.Error("an endpoint that left before is dropped")
	}
	leave(other)
	for _, set := range r.AffinityMaps(nft.IP) {
		r.DropDeparted(nft.IP, set.Name)
	}
	number := r.families[nft.IP].ports[port.ID].affinity.groups[0].number
	if dropped() != 1 || !r.StrayEntries(nft.IP, number, netip.MustParseAddr("192.0.2.1")) || dropped() != 2 {
		t.Errorf("%d addresses are dropped, want 1, then 2", dropped())
	}
	if r.StrayEntries(nft.IP, number, port.Cluster[1].Addr()) {
		t.Error("an endpoint that is known to have left is news")
	}
	r.Committed()
	for _, set := range r.AffinityMaps(nft.IP) {
		r.Settle(nft.IP, set.Name, r.Commits()-1)
	}
	if dropped() != 2 {
		t.Errorf("%d addresses are dropped before their commit is settled, want 2", dropped())
	}
	for _, set := range r.AffinityMaps(nft.IP) {
		r.Settle(nft.IP, set.Name, r.Commits())
	}
	if dropped() != 0 || len(r.families[nft.IP].departures.list) != 0 {
		t.Errorf("%d addresses are dropped when all is settled", dropped())
	}
}

// TestDepartedPackets sends packets of a client whose entry names an endpoint that has left: none
// arrives there where the map is large. Otherwise one may have been under way; it makes no entry. Where both lists
// are in use, it takes the entry with it.
func TestDepartedPackets(t *testing.T) {
	for variant := range 4 {
		large, both := variant&1 > 0, variant&2 > 0
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
		p.Serving, p.HasEndpoints, p.Affinity = p.Cluster, true, time.Hour
		if both {
			p.Local, p.NodePort, p.ExternalLocal = p.Cluster, 30080, true
		}
		config := testConfig()
		config.Pods = map[nft.Family]layout.PodMatch{nft.IP: {CIDR: netip.MustParsePrefix("127.0.0.0/8")}} // nobody is masqueraded
		r := NewRuleset(config)
		r.Apply(changed(p))
		commit(t, k, change.Diff(nil, r.Want()))
		r.Committed()
		number := r.families[nft.IP].ports[p.ID].affinity.groups.find(group{port: 8080}).number
		set := r.AffinityMaps(nft.IP)[number/2%layout.AffinityMaps]
		client := netip.MustParseAddr("127.1.0.9")
		key := nft.NumberedKey(nft.IP, number, client)
		entry := nft.Element{Data: nft.AddrKey(p.Cluster[1].Addr()), Life: &nft.Life{Timeout: time.Hour, Expires: time.Minute}}
		commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{{Key: key, Element: entry}}}}})

		fewer := *p
		fewer.Cluster, fewer.Serving = p.Cluster[:1], p.Cluster[:1]
		if both {
			fewer.Local = p.Local[:1]
		}
		r.Apply(changed(&fewer))
		if large {
			r.DropDeparted(nft.IP, set.Name)
		}
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
			if err != nil && err != unix.EPERM { // a drop
				t.Fatal(err)
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
		if got := arrives(1, !large); got == large {
			t.Errorf("map large %v, both lists %v: a packet arrives at the endpoint that has left: %v", large, both, got)
		}
		held, err := k.Elements(t.Context(), nft.IP, set)
		switch _, found := held[key]; {
		case err != nil || found == both:
			t.Errorf("map large %v, both lists %v: the entry is there: %v, %v", large, both, found, err)
		case found && held[key].Life.Expires > time.Minute:
			t.Errorf("map large %v: a packet has refreshed the entry: %+v", large, held[key])
		case found:
			commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{{Key: key, Element: entry}}}}})
		}
		if !arrives(0, true) {
			t.Errorf("map large %v, both lists %v: without the entry, a packet does not arrive at the other endpoint", large, both)
		}
	}
}
