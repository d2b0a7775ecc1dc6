package services

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// seeded shows the entries that operations make.
func seeded(ops []nft.Op) (list []string) {
	for _, op := range ops {
		for _, e := range op.Elements {
			number, client, _ := nft.SplitNumberedKey(op.Family, e.Key)
			endpoint, _ := netip.AddrFromSlice([]byte(e.Data))
			list = append(list, fmt.Sprintf("%v %v %v of %v, %v, local %v", op.Verb, client, endpoint, e.Life.Timeout, e.Life.Expires, layout.IsLocalNumber(number)))
		}
	}
	slices.Sort(list)
	return list
}

// TestSeedEntries: a seed becomes an entry if the frontend's Service port has the endpoint.
func TestSeedEntries(t *testing.T) {
	port, without := affinePort(1, 3), clusterPort(2, 3)
	port.NodePort, port.ExternalLocal, port.Local = 30080, true, port.Cluster[1:2]
	r := NewRuleset(testConfig())
	r.Apply(changed(port, without))
	client := netip.MustParseAddr("192.0.2.7")
	at := tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port}
	first, here := port.Cluster[0], port.Cluster[1]
	entry := func(ep netip.AddrPort, left time.Duration, local bool) string {
		return fmt.Sprintf("add %v %v of 1h0m0s, %v, local %v", client, ep.Addr(), left, local)
	}
	for _, tt := range []struct {
		name string
		seed Seed
		want []string
	}{
		{"an endpoint elsewhere", Seed{at, client, first, time.Minute}, []string{entry(first, time.Minute, false)}},
		{"one on this node", Seed{at, client, here, time.Minute}, []string{entry(here, time.Minute, false), entry(here, time.Minute, true)}},
		{"by the node port", Seed{tracker.NodePort(tracker.IPv4, port.ID.Protocol, 30080), client, first, time.Minute}, []string{entry(first, time.Minute, false)}},
		{"a longer time than the timeout", Seed{at, client, first, 2 * time.Hour}, []string{entry(first, time.Hour, false)}},
		{"no time", Seed{at, client, first, 0}, nil},
		{"another port of the endpoint", Seed{at, client, netip.AddrPortFrom(first.Addr(), 81), time.Minute}, nil},
		{"no endpoint any more", Seed{at, client, netip.MustParseAddrPort("10.244.99.99:8080"), time.Minute}, nil},
		{"a client of the other family", Seed{at, netip.MustParseAddr("2001:db8::1"), first, time.Minute}, nil},
		{"no such frontend", Seed{tracker.Frontend{Address: port.ClusterIP, Protocol: tracker.UDP, Port: port.Port}, client, first, time.Minute}, nil},
		{"without affinity", Seed{tracker.Frontend{Address: without.ClusterIP, Protocol: tracker.TCP, Port: without.Port}, client, without.Cluster[0], time.Minute}, nil},
		{"nothing at all", Seed{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ops, used := r.SeedEntries([]Seed{tt.seed}, nil)
			if diff := cmp.Diff(tt.want, seeded(ops)); diff != "" || (used == 1) != (len(tt.want) > 0) {
				t.Errorf("%d seeds used (-want +got):\n%s", used, diff)
			}
		})
	}
	t.Run("an entry that is there stays", func(t *testing.T) {
		ops, _ := r.SeedEntries([]Seed{{at, client, here, time.Minute}}, nil)
		have := nft.Tables{nft.IP: nft.NewTable(nft.IP)}
		for _, op := range ops {
			held := map[string]nft.Element{}
			for _, e := range op.Elements {
				if number, _, _ := nft.SplitNumberedKey(nft.IP, e.Key); !layout.IsLocalNumber(number) {
					held[e.Key] = e.Element
				}
			}
			have[nft.IP].Sets[op.Set.Name] = &nft.Elements{Set: op.Set, Map: held}
		}
		ops, used := r.SeedEntries([]Seed{{at, client, here, time.Minute}}, have)
		if diff := cmp.Diff([]string{entry(here, time.Minute, true)}, seeded(ops)); diff != "" || used != 1 {
			t.Errorf("%d seeds used (-want +got):\n%s", used, diff)
		}
	})
}

// TestSeedEntriesOfOneClient: two IPv6 clients that an affinity map cannot tell apart are the later one.
func TestSeedEntriesOfOneClient(t *testing.T) {
	port := affinePort(1, 0)
	port.ID.Family, port.ClusterIP = tracker.IPv6, netip.MustParseAddr("fd00:10:96::1")
	for n := range 3 {
		port.Cluster = append(port.Cluster, netip.AddrPortFrom(testAddr(nft.IP6, byte(n+1)), 8080))
	}
	r := NewRuleset(testConfig())
	r.Apply(changed(port))
	at := tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port}
	seed := func(client string, ep int, left time.Duration) Seed {
		return Seed{at, netip.MustParseAddr(client), port.Cluster[ep], left}
	}
	ops, _ := r.SeedEntries([]Seed{seed("2001:db8::1:0:1", 0, time.Minute), seed("2001:db8::2:0:1", 1, 2*time.Minute), seed("2001:db8::3:0:1", 2, time.Second)}, nil)
	want := []string{fmt.Sprintf("add 2001:db8::1 %v of 1h0m0s, 2m0s, local false", port.Cluster[1].Addr())}
	if diff := cmp.Diff(want, seeded(ops)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestSeedEntriesFillNoMap: of too many seeds the latest count, and a Service with many leaves others room.
func TestSeedEntriesFillNoMap(t *testing.T) {
	config := testConfig()
	config.AffinitySize = 400
	r := NewRuleset(config)
	var ports []*tracker.ServicePort
	for n := range 9 {
		ports = append(ports, affinePort(1+n, 1))
	}
	r.Apply(changed(ports...))
	var seeds []Seed
	for n, port := range ports {
		for i := range 3000 / (1 + n*n) {
			seeds = append(seeds, Seed{
				tracker.Frontend{Address: port.ClusterIP, Protocol: port.ID.Protocol, Port: port.Port},
				netip.AddrFrom4([4]byte{10, byte(n), byte(i >> 8), byte(i)}), port.Cluster[0], time.Duration(1+i) * time.Second,
			})
		}
	}
	ops, used := r.SeedEntries(seeds, nil)
	counts, all := make(map[uint32]int), 0
	for _, op := range ops {
		if len(op.Elements) > 300 {
			t.Errorf("map %s is filled with %d entries of %d", op.Set.Name, len(op.Elements), op.Set.Size)
		}
		for _, e := range op.Elements {
			number, _, _ := nft.SplitNumberedKey(op.Family, e.Key)
			counts[number]++
			all++
		}
	}
	if used != all { // each seed has one entry
		t.Errorf("%d seeds count, %d have an entry", used, all)
	}
	if len(counts) != len(ports) {
		t.Errorf("%d of %d Service ports have entries: %v", len(counts), len(ports), counts)
	}
}

func testAddr(f nft.Family, last byte) netip.Addr {
	if f == nft.IP6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 15: last})
	}
	return netip.AddrFrom4([4]byte{10, 0, 0, last})
}
