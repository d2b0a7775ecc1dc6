package lists

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestSlotsOfOthersStay: a node that leaves out an endpoint, and one that does not, agree on the slots of all others,
// also where the table without the endpoint would have another size.
func TestSlotsOfOthersStay(t *testing.T) {
	hashed := Method{Hash: layout.HashAddress}
	for _, weights := range [][]uint16{nil, {1, 2, 7, 1, 1, 3}} {
		whole := &tracker.ServicePort{PortSpec: new(tracker.PortSpec), TargetPort: 8080,
			Lists: &tracker.Lists{ClusterWeights: weights}}
		for i := range 6 {
			whole.Cluster = append(whole.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 0))
		}
		for out := range 6 {
			without, lists := *whole, *whole.Lists
			without.Lists = &lists
			left := tracker.LeftOut{Endpoint: whole.Cluster[out], Cluster: true}
			without.Cluster = slices.Delete(slices.Clone(whole.Cluster), out, out+1)
			if weights != nil {
				left.Weight = weights[out]
				without.ClusterWeights = slices.Delete(slices.Clone(weights), out, out+1)
			}
			without.LeftOut = []tracker.LeftOut{left}
			before := Arrange(Places{}, nil, whole, false, hashed)
			now := Arrange(before, whole, &without, false, hashed)
			if now.Len() != before.Len() {
				t.Fatalf("%d slots, want %d", now.Len(), before.Len())
			}
			for slot := range before.Len() {
				was, is := before.At(slot), now.At(slot)
				if was.Addr() == left.Endpoint.Addr() {
					if is == was {
						t.Fatalf("slot %d stays with the endpoint that is left out", slot)
					}
				} else if is != was {
					t.Fatalf("slot %d moves from %v to %v", slot, was, is)
				}
			}
			again := Arrange(now, &without, whole, false, hashed)
			for slot := range before.Len() {
				if again.At(slot) != before.At(slot) {
					t.Fatalf("slot %d has %v after the return, want %v", slot, again.At(slot), before.At(slot))
				}
			}
		}
	}
}

// TestMostWeighted: weights of more endpoints, which a hash follows, do not make lists longer where chance chooses.
func TestMostWeighted(t *testing.T) {
	for _, n := range []int{tracker.MostWeighted, tracker.MostWeighted + 1} {
		p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{}, Lists: new(tracker.Lists)}
		for i := range n {
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 8080))
			p.ClusterWeights = append(p.ClusterWeights, uint16(89+8*(i%2)))
		}
		first := Arrange(Places{}, nil, p, false, Method{})
		again := Arrange(first, p, p, false, Method{})
		if long := first.Len() > n; long != (n <= tracker.MostWeighted) || again.Len() != first.Len() {
			t.Errorf("%d endpoints have %d places, then %d", n, first.Len(), again.Len())
		}
	}
}
