package services

import (
	"fmt"
	"maps"
	"net/netip"
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

// affinityClients is how many clients have an entry while new connections are counted.
const affinityClients = 10000

// BenchmarkAffinity is a new connection of a client with an affinity entry: a socket, its first packet,
// and its end. The cost must not depend on how many endpoints there are; endpoints=0 is the
// same without session affinity, over two of them.
func BenchmarkAffinity(b *testing.B) {
	for _, endpoints := range []int{0, 200, 2} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			lab.New(b)
			lab.Sysctl(b, "net.netfilter.nf_conntrack_udp_timeout", "1")
			k := lab.Open(b, kernel.Open)
			loadAffinity(b, k, endpoints)
			to := &unix.SockaddrInet4{Addr: [4]byte{127, 96, 0, 1}, Port: 80}
			for i := range affinityClients {
				connectFrom(b, i, to)
			}
			for i := 0; b.Loop(); i++ {
				connectFrom(b, i%affinityClients, to)
			}
			checkEntries(b, k, endpoints)
		})
	}
}

// loadAffinity commits a Service port with session affinity and that many endpoints.
func loadAffinity(b *testing.B, k *kernel.Client, endpoints int) {
	b.Helper()
	config := testConfig()
	config.AffinitySize = 2 * affinityClients
	config.Pods = map[nft.Family]layout.PodMatch{nft.IP: {CIDR: netip.MustParsePrefix("127.0.0.0/8")}}
	p := countingPort()
	for i := range max(endpoints, 2) {
		addr := netip.AddrFrom4([4]byte{127, 0, 2, byte(i + 1)})
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(addr, 8080))
	}
	p.Serving, p.HasEndpoints = p.Cluster, true
	if endpoints > 0 {
		p.Affinity = time.Hour
	}
	r := NewRuleset(config)
	r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{p}})
	commit(b, k, change.Diff(nft.Tables{}, r.Want()))
}

// connectFrom sends the first packet of a connection of client i.
func connectFrom(b *testing.B, i int, to *unix.SockaddrInet4) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 1, byte(i >> 8), byte(i)}})
	}
	if err == nil {
		err = unix.Sendto(fd, []byte("x"), 0, to)
	}
	if err != nil {
		b.Fatal(err)
	}
	unix.Close(fd)
}

// checkEntries makes sure that the clients have entries, so that what was measured is
// what it is called.
func checkEntries(b *testing.B, k *kernel.Client, endpoints int) {
	b.Helper()
	if endpoints == 0 {
		return
	}
	entries := make(map[string]nft.Element)
	var err error
	for _, set := range NewRuleset(testConfig()).AffinityMaps(nft.IP) {
		var held map[string]nft.Element
		held, err = k.Elements(b.Context(), nft.IP, set)
		maps.Copy(entries, held)
	}
	if err != nil || len(entries) != affinityClients {
		b.Fatalf("%d clients have an entry, want %d: %v", len(entries), affinityClients, err)
	}
}
