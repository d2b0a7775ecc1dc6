package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/maglev"
	"github.com/kube-nft/kube-nft/nft/services/order"
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
	port      uint16   // of endpoints whose port is 0, see tracker.ServicePort.TargetPort
	slots     []uint16 // by index: which of endpoints; nil: they are in the order of their indexes
	joint     bool     // written without ports, which stand in a map of their own
}

func (l places) len() int {
	if l.slots != nil {
		return len(l.slots)
	}
	return len(l.endpoints)
}

func (l places) at(i int) netip.AddrPort {
	if l.slots != nil {
		i = int(l.slots[i])
	}
	if ep := l.endpoints[i]; ep.Port() != 0 {
		return ep
	}
	return netip.AddrPortFrom(l.endpoints[i].Addr(), l.port)
}

// is reports whether l and m are the same list, as far as that is known at once.
func (l places) is(m places) bool {
	return l.len() == m.len() && l.port == m.port && sameMemory(l.endpoints, m.endpoints) && sameMemory(l.slots, m.slots)
}

// with returns a joint list as a Service port has it whose endpoints have a port.
func (l places) with(port uint16) places {
	l.port, l.joint = port, false
	return l
}

func sameMemory[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
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

// arrange gives the endpoints of one of the two lists of a Service port their places, by the hash or by chance. have
// are the places that they had when the port was shown; shown is nil if have was found in the kernel.
func (l limits) arrange(have places, shown, p *tracker.ServicePort, hash layout.Hash, local bool) places {
	want, weights := listing(p, local)
	before, beforeWeights := listing(shown, local)
	port := uint16(0) // of before
	if shown != nil {
		port = shown.TargetPort
	}
	if hash != layout.NoHash {
		if have.slots != nil && port == p.TargetPort && slices.Equal(before, want) &&
			slices.Equal(beforeWeights, weights) && slices.Equal(shown.LeftOut, p.LeftOut) {
			return have
		}
		if len(want) == 0 {
			return places{}
		}
		return places{endpoints: want, slots: slotTable(p, local), port: p.TargetPort}
	}
	held := have.endpoints
	if have.slots != nil {
		held = nil
	}
	if (port == 0) != (p.TargetPort == 0) {
		held, before = withTargetPort(held, port, p.TargetPort), withTargetPort(before, port, p.TargetPort)
		slices.SortFunc(before, netip.AddrPort.Compare)
	}
	list := places{port: p.TargetPort}
	switch {
	case weights != nil:
		list.endpoints = order.Spread(held, want, maglev.Places(weights, l.placesEach(len(weights))))
	case beforeWeights != nil:
		list.endpoints = order.Spread(held, want, slices.Repeat([]int{1}, len(want)))
	case shown == nil:
		list.endpoints = order.KeepFound(held, want)
	default:
		list.endpoints = order.Keep(held, before, want)
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

// withTargetPort returns endpoints as a Service port with another TargetPort has them in its lists.
func withTargetPort(list []netip.AddrPort, from, to uint16) []netip.AddrPort {
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

// all lists the endpoints with their ports.
func (l places) all() []netip.AddrPort { return withTargetPort(l.endpoints, l.port, 0) }

// capacityOf is the number of places that the choice from a list reckons with. A hash leads to every
// slot of its table, and to no other.
func capacityOf(l places, hash layout.Hash) int {
	if hash != layout.NoHash {
		return l.len()
	}
	return tracker.Capacity(l.len())
}

// A listWriter writes places into the lists of a table.
type listWriter struct {
	journal   *change.Journal
	text      []byte // reused, as differing is
	differing []int
}

// write writes the elements in which two lists under one key differ, index by index.
func (w *listWriter) write(set, key, comment string, have, want places) {
	if have.is(want) {
		return
	}
	w.differing = w.differing[:0]
	for i := range want.len() {
		if i >= have.len() || have.at(i) != want.at(i) {
			w.differing = append(w.differing, i)
		}
	}
	w.put(set, key, comment, want)
	for i := want.len(); i < have.len(); i++ {
		w.journal.Remove(set, nft.IndexedKey(key, i))
	}
}

// writeFrom writes the elements of a list from one index to another, which is not included.
func (w *listWriter) writeFrom(set, key, comment string, list places, from, to int) {
	w.differing = w.differing[:0]
	for i := from; i < to; i++ {
		w.differing = append(w.differing, i)
	}
	w.put(set, key, comment, list)
}

// put writes the elements of a list whose indexes stand in w.differing. Keys and data are parts of one string: one
// allocation instead of two for each endpoint.
func (w *listWriter) put(set, key, comment string, list places) {
	w.text = w.text[:0]
	for _, i := range w.differing {
		ep := list.at(i)
		w.text = nft.AppendNumber(append(w.text, key...), uint32(i))
		if w.text = nft.AppendAddr(w.text, ep.Addr()); !list.joint {
			w.text = nft.AppendPort(w.text, ep.Port())
		}
	}
	text, indexed, port := string(w.text), len(key)+4, 4
	if list.joint {
		port = 0
	}
	for _, i := range w.differing {
		end := indexed + list.at(i).Addr().BitLen()/8 + port // of its own family: the kernel refuses another
		w.journal.Put(set, text[:indexed], nft.Element{Data: text[indexed:end], Comment: comment})
		text = text[end:]
	}
}

// manyFrontends is from how many frontends on a Service port may have shared lists: a cluster IP, a node port, an
// address of a load balancer and an external IP are fewer.
const manyFrontends = tracker.ManyFrontends

// manyPlaces is from how many elements of direct lists on a Service port with manyFrontends has shared lists. It has
// them until they would be half of that, so that an endpoint that comes and goes does not move them each time. Where a
// hash chooses, a table of manySlots or more is always shared, so that a change of its size can be staged; most tables
// are smaller, and their Service ports share chains. Random tests lower both.
var manyPlaces, manySlots = tracker.JointFrom, tracker.StagedSlots
