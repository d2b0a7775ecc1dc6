package services

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// BenchmarkSourceRangesFirstPacket is a new connection of this machine to a load balancer's address
// whose source ranges have so many prefix lengths, a hundred ranges of each; the range that lets the
// connection in is looked up last. lengths=0 is the same without source ranges.
func BenchmarkSourceRangesFirstPacket(b *testing.B) {
	for _, lengths := range []int{0, 1, 2, 4, 8, 16} {
		b.Run(fmt.Sprintf("lengths=%d", lengths), func(b *testing.B) {
			lab.New(b)
			lab.Sysctl(b, "net.netfilter.nf_conntrack_udp_timeout", "1")
			k := lab.Open(b, kernel.Open)
			err := errors.Join(lab.AddSink("sink"), lab.AddAddress("sink", netip.MustParsePrefix("172.16.0.1/12")))
			if err != nil {
				b.Fatal(err)
			}
			config := testConfig()
			config.Pods = map[nft.Family]layout.PodMatch{nft.IP: {CIDR: netip.MustParsePrefix("172.16.0.0/16")}}
			delta := cluster(1000, 10)
			p := countingPort("172.18.1.1:8080", "172.18.1.2:8080")
			p.LoadBalancers = []netip.Addr{netip.MustParseAddr("172.17.0.1")}
			p.ExternalLocal = true // for pods: no masquerading, which costs more than all else
			p.HasSourceRanges = lengths > 0
			for bits := 9; bits < 8+lengths; bits++ {
				for i := range 100 {
					p.Sources = append(p.Sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(1 + i), byte(bits)}), bits).Masked())
				}
			}
			if p.HasSourceRanges {
				p.Sources = append(p.Sources, netip.MustParsePrefix("172.0.0.0/8"))
			}
			delta.Changed = append(delta.Changed, p)
			r := NewRuleset(config)
			r.Apply(delta)
			if chain := sourceRangesChainOf(r); lengths > 0 && len(chain.Rules) != lengths+1 {
				b.Fatalf("%d rules, want a lookup for each of %d lengths and the end", len(chain.Rules), lengths)
			}
			commit(b, k, change.Diff(nft.Tables{}, r.Want()))
			to := &unix.SockaddrInet4{Addr: [4]byte{172, 17, 0, 1}, Port: 80}
			for b.Loop() {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
				if err == nil {
					err = unix.Sendto(fd, []byte("x"), 0, to)
				}
				if err != nil { // the packet was dropped, which is not what is to be measured
					b.Fatal(err)
				}
				unix.Close(fd)
			}
		})
	}
}

// sourceRangesChainOf returns the chain of the only source ranges.
func sourceRangesChainOf(r *Ruleset) *nft.Chain {
	for number := range r.families[nft.IP].sourceRanges {
		return r.Want()[nft.IP].Chains[layout.SourceRangesChain(number)]
	}
	return new(nft.Chain)
}
