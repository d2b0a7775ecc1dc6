package services

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// A countingWay says which elements count.
type countingWay struct {
	name                string
	services, endpoints bool
}

// counting are the ways to count.
var counting = []countingWay{{"none", false, false}, {"services", true, false}, {"endpoints", true, true}}

// countingRuleset is a committed ruleset of services Service ports, and the one that
// countingPort makes up.
func countingRuleset(b *testing.B, k *kernel.Client, services int, counters, endpoints bool) *Ruleset {
	b.Helper()
	config := testConfig()
	config.Counters, config.EndpointCounters = counters, endpoints
	config.Pods = map[nft.Family]layout.PodMatch{nft.IP: {CIDR: netip.MustParsePrefix("127.0.0.0/8")}}
	r := NewRuleset(config)
	delta := cluster(services, 10)
	p := countingPort("127.0.1.1:8080", "127.0.1.2:8080")
	delta.Changed = append(delta.Changed, p)
	r.Apply(delta)
	commit(b, k, change.Diff(nft.Tables{}, r.Want()))
	r.Committed()
	return r
}

// BenchmarkFirstPacket is a new connection of this machine to a Service: a socket, its first
// packet, and its end. Nothing answers. With maglev the client's hash chooses the endpoint.
func BenchmarkFirstPacket(b *testing.B) {
	for _, way := range append(counting[:len(counting):len(counting)], countingWay{name: "maglev"}) {
		b.Run(way.name, func(b *testing.B) {
			lab.New(b)
			lab.Sysctl(b, "net.netfilter.nf_conntrack_udp_timeout", "1")
			client := lab.Open(b, kernel.Open)
			r := countingRuleset(b, client, 1000, way.services, way.endpoints)
			if way.name == "maglev" {
				p := countingPort("127.0.1.1:8080", "127.0.1.2:8080")
				p.Settings.Maglev = true
				r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
				commit(b, client, r.Changes())
			}
			to := &unix.SockaddrInet4{Addr: [4]byte{127, 96, 0, 1}, Port: 80}
			for b.Loop() {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
				if err == nil {
					err = unix.Sendto(fd, []byte("x"), 0, to)
				}
				if err != nil {
					b.Fatal(err)
				}
				unix.Close(fd)
			}
		})
	}
}

// BenchmarkCommitCounted is a list that grows and shrinks so that its verdict changes, among
// 10,000 Services.
func BenchmarkCommitCounted(b *testing.B) {
	for _, way := range counting {
		b.Run(way.name, func(b *testing.B) {
			lab.New(b)
			k := lab.Open(b, kernel.Open)
			r := countingRuleset(b, k, 10_000, way.services, way.endpoints)
			sizes := [][]string{{"127.0.1.1:8080"}, {"127.0.1.1:8080", "127.0.1.2:8080"}}
			for i := 0; b.Loop(); i++ {
				p := countingPort(sizes[i%2]...)
				r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
				commit(b, k, r.Changes())
				r.Committed()
			}
		})
	}
}

// BenchmarkScrape reads the counts of 10,000 Services with 10 endpoints each.
func BenchmarkScrape(b *testing.B) {
	for _, endpoints := range []bool{false, true} {
		name := map[bool]string{false: "services", true: "endpoints"}[endpoints]
		b.Run(name, func(b *testing.B) {
			lab.New(b)
			k := lab.Open(b, kernel.Open)
			countingRuleset(b, k, 10_000, true, true)
			for b.Loop() {
				if list, err := readback.ReadConnections(b.Context(), k, nft.IP, endpoints); err != nil || len(list) < 10_000 {
					b.Fatal(len(list), err)
				}
			}
		})
	}
}

// BenchmarkLoadCounted is the commit of a cold start of 10,000 Services with 10 endpoints each.
func BenchmarkLoadCounted(b *testing.B) {
	for _, way := range counting {
		b.Run(way.name, func(b *testing.B) {
			config := testConfig()
			config.Counters, config.EndpointCounters = way.services, way.endpoints
			r := NewRuleset(config)
			r.Apply(cluster(10_000, 10))
			batch := change.Diff(nft.Tables{}, r.Want())
			lab.New(b)
			k := lab.Open(b, kernel.Open)
			for b.Loop() {
				commit(b, k, batch)
				b.StopTimer()
				lab.Run(b, "", "nft", "flush", "ruleset")
				b.StartTimer()
			}
		})
	}
}
