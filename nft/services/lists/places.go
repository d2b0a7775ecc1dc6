package lists

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/maglev"
	"github.com/kube-nft/kube-nft/tracker"
)

// Places are a list of endpoints as it is programmed: which endpoint stands under which index. The zero
// value is the empty list.
//
// Without weights each endpoint has one place. With weights and a random choice, an endpoint has as
// many as its share asks for. Where the client's hash chooses, places are the slots of a Maglev
// table. So both need no maps of their own, and no chains for each Service port: a list is a list,
// and chance or hash is a matter of the chains that choose.
type Places struct {
	// Endpoints are in the order of their indexes, unless the places are slots. The port of an endpoint is 0 if it is
	// the target port, see tracker.ServicePort.TargetPort.
	Endpoints []netip.AddrPort
	target    uint16
	slots     []uint16    // by index: which of Endpoints; nil: there are no slots
	hash      layout.Hash // of the client, chooses among slots
	joint     bool        // written without ports, which stand in a map of their own
}

// Len returns the number of places.
func (l Places) Len() int {
	if l.slots != nil {
		return len(l.slots)
	}
	return len(l.Endpoints)
}

// At returns the endpoint at an index, with its port.
func (l Places) At(i int) netip.AddrPort {
	if l.slots != nil {
		i = int(l.slots[i])
	}
	if ep := l.Endpoints[i]; ep.Port() != 0 {
		return ep
	}
	return netip.AddrPortFrom(l.Endpoints[i].Addr(), l.target)
}

// Capacity is the number of places that the choice from a list reckons with. A hash leads to every
// slot of its table, and to no other.
func (l Places) Capacity() int {
	if l.slots != nil {
		return len(l.slots)
	}
	return tracker.Capacity(len(l.Endpoints))
}

// is reports whether l and m are the same list, as far as that is known at once.
func (l Places) is(m Places) bool {
	return l.Len() == m.Len() && l.target == m.target && l.hash == m.hash &&
		tracker.SameMemory(l.Endpoints, m.Endpoints) && tracker.SameMemory(l.slots, m.slots)
}

// sameTable reports whether the chain of a table of slots can choose from l and m alike.
func (l Places) sameTable(m Places) bool {
	return l.slots != nil && len(l.slots) == len(m.slots) && l.hash == m.hash
}

// all lists the endpoints with their ports.
func (l Places) all() []netip.AddrPort { return withTarget(l.Endpoints, l.target, 0) }

// A Method is how an endpoint of a list is chosen. The zero value is chance.
type Method struct {
	Hash layout.Hash // of the client
	// Rough says that an endpoint has few places (maglev.FewPlacesEach) for its weight where chance chooses.
	Rough bool
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

// Arrange gives the endpoints of one of the two lists of a Service port their places. have are the places that they had
// when the port was shown; shown is nil if have was found in the kernel.
func Arrange(have Places, shown, p *tracker.ServicePort, local bool, by Method) Places {
	want, weights := listing(p, local)
	if len(want) == 0 { // all ports of a Service may lose a long list at once
		return Places{}
	}
	before, beforeWeights := listing(shown, local)
	target := uint16(0) // of before
	if shown != nil {
		target = shown.TargetPort
	}
	if by.Hash != layout.NoHash {
		if have.slots != nil && target == p.TargetPort && slices.Equal(before, want) &&
			slices.Equal(beforeWeights, weights) && slices.Equal(shown.LeftOut, p.LeftOut) {
			have.hash = by.Hash
			return have
		}
		return Places{Endpoints: want, slots: slotTable(p, local), hash: by.Hash, target: p.TargetPort}
	}
	held := have.Endpoints
	if have.slots != nil {
		held = nil
	}
	if (target == 0) != (p.TargetPort == 0) {
		held, before = withTarget(held, target, p.TargetPort), withTarget(before, target, p.TargetPort)
		slices.SortFunc(before, netip.AddrPort.Compare)
	}
	list := Places{target: p.TargetPort}
	switch {
	case weights != nil && len(want) <= tracker.MostWeighted: // a hash that the kernel lacks would follow more
		each := maglev.PlacesEach(len(weights))
		if by.Rough {
			each = maglev.FewPlacesEach
		}
		list.Endpoints = spread(held, want, maglev.Places(weights, each))
	case beforeWeights != nil:
		list.Endpoints = spread(held, want, slices.Repeat([]int{1}, len(want)))
	case shown == nil:
		list.Endpoints = keepFound(held, want)
	default:
		list.Endpoints = keep(held, before, want)
	}
	return list
}

// slotTable returns the slot table of one of the two lists of a Service port. It is made of all endpoints, also of
// those that are left out because they do not answer: the slots of the others stay where they are, on nodes that leave
// out the same ones and on nodes that do not.
func slotTable(p *tracker.ServicePort, local bool) []uint16 {
	list, weights := listing(p, local)
	if len(p.LeftOut) == 0 {
		return maglev.Table(p.Endpoints(list), weights)
	}
	type member struct {
		endpoint netip.AddrPort
		weight   uint16
		index    uint16 // in the list
		out      bool
	}
	var all []member
	for i, ep := range list[:min(len(list), maglev.MaxSize)] {
		all = append(all, member{endpoint: ep, index: uint16(i)})
		if weights != nil {
			all[i].weight = weights[i]
		}
	}
	for _, left := range p.LeftOut {
		in := left.Cluster
		if local {
			in = left.Local
		}
		if _, found := slices.BinarySearchFunc(list, left.Endpoint, netip.AddrPort.Compare); in && !found {
			all = append(all, member{endpoint: left.Endpoint, weight: left.Weight, out: true})
		}
	}
	slices.SortFunc(all, func(a, b member) int { return a.endpoint.Compare(b.endpoint) })
	endpoints, every := make([]netip.AddrPort, len(all)), make([]uint16, len(all))
	for i, m := range all {
		endpoints[i], every[i] = m.endpoint, m.weight
	}
	if weights == nil {
		every = nil
	}
	table := maglev.Reassign(maglev.Table(p.Endpoints(endpoints), every), func(i uint16) bool { return all[i].out })
	for slot, i := range table {
		table[slot] = all[i].index
	}
	return table
}

// withTarget returns endpoints as a Service port with another TargetPort has them in its lists.
func withTarget(list []netip.AddrPort, from, to uint16) []netip.AddrPort {
	list = slices.Clone(list)
	for i, ep := range list {
		port := ep.Port()
		if port == 0 {
			port = from
		}
		if port == to {
			port = 0
		}
		list[i] = netip.AddrPortFrom(ep.Addr(), port)
	}
	return list
}
