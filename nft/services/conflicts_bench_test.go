package services

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// claimants makes up Service ports with one endpoint each that all claim one external IP, or
// each its own. The oldest has the last name, so that each one that comes takes the address.
func claimants(n int, oneAddress bool) tracker.Delta {
	delta := tracker.Delta{}
	for i := range n {
		p := clusterPort(i, 1)
		p.ID.Service = fmt.Sprintf("service-%06d", i)
		p.Created = time.Unix(int64(n-i), 0)
		p.ExternalIPs = []netip.Addr{netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})}
		if oneAddress {
			p.ExternalIPs[0] = netip.AddrFrom4([4]byte{203, 0, 113, 9})
		}
		delta.Changed = append(delta.Changed, p)
	}
	return delta
}

// BenchmarkClaims compiles Services that all claim one external IP, and beside them as many
// that claim one each.
func BenchmarkClaims(b *testing.B) {
	for _, n := range []int{1000, 2000} {
		for _, oneAddress := range []bool{false, true} {
			b.Run(fmt.Sprintf("services=%d/one=%v", n, oneAddress), func(b *testing.B) {
				delta := claimants(n, oneAddress)
				b.ReportAllocs()
				for b.Loop() {
					r := NewRuleset(testConfig())
					r.Apply(delta)
					if fresh, standing := r.Conflicts(); oneAddress && (len(fresh) == 0 || standing != n-1) {
						b.Fatalf("%d conflicts", standing)
					}
				}
			})
		}
	}
}
