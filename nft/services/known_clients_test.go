package services

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// entriesIn shows the entries that operations make.
func entriesIn(ops []nft.Op) (list []string) {
	for _, op := range ops {
		for _, e := range op.Elements {
			number, client, _ := nft.SplitNumberedKey(op.Family, e.Key)
			endpoint, _ := netip.AddrFromSlice([]byte(e.Data))
			list = append(list, fmt.Sprintf("%v %v %v of %v, %v, local %v", op.Verb, client, endpoint, e.Life.Timeout,
				e.Life.Expires, layout.IsLocalNumber(number)))
		}
	}
	slices.Sort(list)
	return list
}

// TestEntriesOfKnownClients: a client of kube-proxy gets an entry if the frontend's Service port has the endpoint.
func TestEntriesOfKnownClients(t *testing.T) {
	port, without := affinePort(1, 3), clusterPort(2, 3)
	port.NodePort, port.ExternalLocal, port.Local = 30080, true, port.Cluster[1:2]
	r := NewRuleset(testConfig())
	r.Apply(changed(port, without))
	client := netip.MustParseAddr("192.0.2.7")
	at := tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port}
	first, here := port.Cluster[0], port.Cluster[1]
	entry := func(ep netip.AddrPort, local bool) string {
		return fmt.Sprintf("add %v %v of 1h0m0s, 1h0m0s, local %v", client, ep.Addr(), local)
	}
	for _, tt := range []struct {
		name  string
		known KnownClient
		want  []string
	}{
		{"an endpoint elsewhere", KnownClient{at, client, first}, []string{entry(first, false)}},
		{"one on this node", KnownClient{at, client, here}, []string{entry(here, false), entry(here, true)}},
		{"by the node port", KnownClient{tracker.NodePort(tracker.IPv4, port.ID.Protocol, 30080), client, first},
			[]string{entry(first, false)}},
		{"another port of the endpoint", KnownClient{at, client, netip.AddrPortFrom(first.Addr(), 81)}, nil},
		{"no endpoint any more", KnownClient{at, client, netip.MustParseAddrPort("10.244.99.99:8080")}, nil},
		{"a client of the other family", KnownClient{at, netip.MustParseAddr("2001:db8::1"), first}, nil},
		{"no such frontend", KnownClient{
			tracker.Frontend{Address: port.ClusterIP, Protocol: tracker.UDP, Port: port.Port}, client,
			first}, nil},
		{"without affinity", KnownClient{
			tracker.Frontend{Address: without.ClusterIP, Protocol: tracker.TCP, Port: without.Port},
			client, without.Cluster[0]}, nil},
		{"nothing at all", KnownClient{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ops, used := r.EntriesOfClients([]KnownClient{tt.known}, nil)
			if diff := cmp.Diff(tt.want, entriesIn(ops)); diff != "" || (used == 1) != (len(tt.want) > 0) {
				t.Errorf("%d clients used (-want +got):\n%s", used, diff)
			}
		})
	}
	t.Run("a table keeps its own entries", func(t *testing.T) {
		if ops, used := r.EntriesOfClients([]KnownClient{{at, client, here}}, r.Want()); len(ops) != 0 || used != 0 {
			t.Errorf("%d clients used, %v", used, entriesIn(ops))
		}
	})
}

// TestKnownClientsOfOneEntry: IPv6 clients that an affinity map cannot tell apart have one entry.
func TestKnownClientsOfOneEntry(t *testing.T) {
	port := affinePort(1, 0)
	port.ID.Family, port.ClusterIP = tracker.IPv6, netip.MustParseAddr("fd00:10:96::1")
	for n := range 3 {
		port.Cluster = append(port.Cluster, netip.AddrPortFrom(testAddr(nft.IP6, byte(n+1)), 8080))
	}
	r := NewRuleset(testConfig())
	r.Apply(changed(port))
	at := tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port}
	known := func(client string, ep int) KnownClient {
		return KnownClient{at, netip.MustParseAddr(client), port.Cluster[ep]}
	}
	ops, used := r.EntriesOfClients([]KnownClient{known("2001:db8::1:0:1", 1), known("2001:db8::2:0:1", 0)}, nil)
	want := []string{fmt.Sprintf("add 2001:db8::1 %v of 1h0m0s, 1h0m0s, local false", port.Cluster[1].Addr())}
	if diff := cmp.Diff(want, entriesIn(ops)); diff != "" || used != 1 {
		t.Errorf("%d clients used (-want +got):\n%s", used, diff)
	}
}

// TestKnownClientsLeaveRoom: known clients fill no more than three quarters of an affinity map.
func TestKnownClientsLeaveRoom(t *testing.T) {
	config := testConfig()
	config.AffinitySize = 400
	r := NewRuleset(config)
	port := affinePort(1, 1)
	r.Apply(changed(port))
	var knownClients []KnownClient
	for i := range 3000 {
		knownClients = append(knownClients, KnownClient{
			tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port},
			netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), port.Cluster[0],
		})
	}
	if ops, used := r.EntriesOfClients(knownClients, nil); used != 300 || len(ops) != 1 || len(ops[0].Elements) != 300 {
		t.Errorf("%d of 3,000 knownClients are used in %d operations, want 300 in one", used, len(ops))
	}
}

func testAddr(f nft.Family, last byte) netip.Addr {
	if f == nft.IP6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, last})
}
