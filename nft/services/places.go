package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/maglev"
	"github.com/kube-nft/kube-nft/tracker"
)

// places are a list of endpoints as it is programmed: which endpoint stands under which index. The zero
// value is the empty list.
//
// Without weights each endpoint has one place. With weights and a random choice, an endpoint has as
// many as its share asks for. Where the client's hash chooses, places are the slots of a Maglev
// table. So both need no maps of their own, and no chains for each Service port: a list is a list,
// and chance or hash is a matter of the chains that choose.
type places struct {
	endpoints []netip.AddrPort
	slots     []uint16 // by index: which of endpoints; nil: they are in the order of their indexes
}

func (l places) len() int {
	if l.slots != nil {
		return len(l.slots)
	}
	return len(l.endpoints)
}

func (l places) at(i int) netip.AddrPort {
	if l.slots != nil {
		return l.endpoints[l.slots[i]]
	}
	return l.endpoints[i]
}

// is reports whether l and m are the same list, as far as that is known at once.
func (l places) is(m places) bool {
	return l.len() == m.len() && sameMemory(l.endpoints, m.endpoints) && sameMemory(l.slots, m.slots)
}

func sameMemory[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// hashOf is what the endpoints of a Service port follow from.
func hashOf(p *tracker.ServicePort) layout.Hash {
	switch {
	case !p.Settings.Maglev:
		return layout.NoHash
	case p.Settings.HashAddress:
		return layout.HashAddress
	}
	return layout.HashAddressPort
}

// listing is one of the two lists of a Service port, with its weights.
func listing(p *tracker.ServicePort, local bool) (endpoints []netip.AddrPort, weights []uint16) {
	switch {
	case p == nil:
		return nil, nil
	case local:
		return p.Local, p.LocalWeights
	}
	return p.Cluster, p.ClusterWeights
}

// arrange gives the endpoints of one of the two lists their places. have are the places that they had
// when the Service port was shown; shown is nil if have was found in the kernel.
func arrange(have places, shown, p *tracker.ServicePort, local bool) places {
	want, weights := listing(p, local)
	before, beforeWeights := listing(shown, local)
	switch {
	case hashOf(p) != layout.NoHash:
		if have.slots != nil && slices.Equal(before, want) && slices.Equal(beforeWeights, weights) {
			return have
		}
		if len(want) == 0 {
			return places{}
		}
		return places{endpoints: want, slots: maglev.Table(want, weights)}
	case have.slots != nil:
		have = places{}
	}
	switch {
	case weights != nil:
		return places{endpoints: spread(have.endpoints, want, maglev.Places(weights))}
	case beforeWeights != nil:
		return places{endpoints: spread(have.endpoints, want, slices.Repeat([]int{1}, len(want)))}
	case shown == nil:
		return places{endpoints: reorderAdopted(have.endpoints, want)}
	}
	return places{endpoints: reorder(have.endpoints, before, want)}
}

// spread gives the endpoints of want, which is sorted, as many places as each is to have. What is in
// order in have stays where it is.
func spread(have, want []netip.AddrPort, due []int) []netip.AddrPort {
	n := 0
	for _, places := range due {
		n += places
	}
	list := make([]netip.AddrPort, n)
	for i := range min(n, len(have)) {
		if j, ok := slices.BinarySearchFunc(want, have[i], netip.AddrPort.Compare); ok && due[j] > 0 {
			list[i] = have[i]
			due[j]--
		}
	}
	j := 0
	for i := range list {
		if list[i].IsValid() {
			continue
		}
		for due[j] == 0 {
			j++
		}
		list[i] = want[j]
		due[j]--
	}
	return list
}

// capacityOf is the number of places that the choice from a list reckons with. A hash leads to every
// slot of its table, and to no other.
func capacityOf(l places, hash layout.Hash) int {
	if hash != layout.NoHash {
		return l.len()
	}
	return capacity(l.len())
}
