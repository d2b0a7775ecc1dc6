package tracker

import (
	"net/netip"
	"slices"
)

// Lists are the endpoints of Service ports, sorted. The port of an endpoint is 0 if ServicePort.TargetPort has it. The
// four lists may share memory.
type Lists struct {
	// Cluster is the cluster-wide list; empty also if no frontend uses it, as with a cluster IP
	// restricted to Local and no other frontend, unless the list stands in for an empty Local (see
	// Settings.LocalFallback). Local is the list for Local policies; empty also if no policy uses it.
	Cluster, Local []netip.AddrPort

	// ClusterWeights and LocalWeights are the weights of the endpoints of Cluster and of Local, at least
	// 1; nil if they are equal, with those that are left out. Endpoints of weight 0 are in neither list.
	ClusterWeights, LocalWeights []uint16

	// Unweighted says that the endpoints have no weights because they are more than MostWeighted.
	Unweighted bool

	// LeftOut are endpoints that Cluster or Local lacks because they do not answer. See Tracker.LeaveOut.
	LeftOut []LeftOut

	// OnNode are the endpoints of Cluster and Local on this node. Their own connections through the
	// Service need masquerading (hairpin).
	OnNode []netip.AddrPort

	// Serving are all endpoints that are serving or ready, on any node, whatever the topology:
	// connection tracking entries to them stay. Ready endpoints that are not serving belong to
	// Serving because new connections go to them (publishNotReadyAddresses). Settings may add
	// endpoints to Serving that are neither: with KeepUnreadyUDP all of a UDP port, with
	// ResetDeparted the terminating ones of another.
	Serving []netip.AddrPort

	placed *placedLists // what number makes them of
}

// placedLists are lists whose endpoints have places in numbers instead of ports, see portGroup. There are endpoints.
type placedLists struct {
	*Lists  // ports of a group share them
	numbers []uint16
}

// noLists are those of a port without endpoints.
var noLists = new(Lists)

// equal reports whether l and m have the same endpoints. Mostly they are the same.
func (l *Lists) equal(m *Lists) bool {
	return l == m || !l.unnumbered() && !m.unnumbered() &&
		sameList(l.Cluster, m.Cluster) && sameList(l.Local, m.Local) &&
		slices.Equal(l.ClusterWeights, m.ClusterWeights) && slices.Equal(l.LocalWeights, m.LocalWeights) &&
		l.Unweighted == m.Unweighted &&
		sameList(l.OnNode, m.OnNode) && sameList(l.Serving, m.Serving) && slices.Equal(l.LeftOut, m.LeftOut)
}

// length is how many endpoints the lists have together.
func (l *Lists) length() int { return len(l.Cluster) + len(l.Local) + len(l.Serving) + len(l.OnNode) }

// hasEndpoints reports whether a list has endpoints.
func (l *Lists) hasEndpoints() bool { return l.placed != nil || l.length() > 0 }

// unnumbered reports whether the lists are still to be made by number.
func (l *Lists) unnumbered() bool { return l.placed != nil && l.length() == 0 }

// all are the lists.
func (l *Lists) all() [4]*[]netip.AddrPort {
	return [...]*[]netip.AddrPort{&l.Cluster, &l.Serving, &l.Local, &l.OnNode}
}

// numbered returns the lists with numbers[p] where the port of an endpoint of l is p, once number has made them.
func (l *Lists) numbered(numbers []uint16) *Lists { return &Lists{placed: &placedLists{l, numbers}} }

// number makes lists that numbered has returned. What shares memory goes on to do so. A Service may have a long list
// for each of many ports, so that this waits until a step comes to the port.
func (l *Lists) number() {
	from := l.placed
	number := func(ep netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(ep.Addr(), from.numbers[ep.Port()])
	}
	l.ClusterWeights, l.LocalWeights, l.Unweighted = from.ClusterWeights, from.LocalWeights, from.Unweighted
	l.LeftOut = slices.Clone(from.LeftOut)
	for i := range l.LeftOut {
		l.LeftOut[i].Endpoint = number(l.LeftOut[i].Endpoint)
	}
	had, lists := from.all(), l.all()
	for i, list := range lists {
		j := slices.IndexFunc(had[:i], func(earlier *[]netip.AddrPort) bool { return SameMemory(*earlier, *had[i]) })
		if j >= 0 {
			*list = *lists[j]
			continue
		}
		*list = make([]netip.AddrPort, len(*had[i]))
		for n, ep := range *had[i] {
			(*list)[n] = number(ep)
		}
	}
}

// Endpoints returns one of the lists of p, or a part of it, with the ports of the endpoints: the list itself if it has
// them.
func (p *ServicePort) Endpoints(list []netip.AddrPort) []netip.AddrPort {
	return withPort(list, p.TargetPort)
}

// withPort returns a list whose endpoints have this port; with 0, the list itself.
func withPort(list []netip.AddrPort, port uint16) []netip.AddrPort {
	if port == 0 || list == nil {
		return list
	}
	all := make([]netip.AddrPort, len(list))
	for i, ep := range list {
		all[i] = netip.AddrPortFrom(ep.Addr(), port)
	}
	return all
}

// Served are endpoints that may go on serving connections to a frontend, or that did. The zero value has none. Ports of
// a Service share its memory.
type Served struct {
	List []netip.AddrPort // sorted
	Port uint16           // as ServicePort.TargetPort
}

// Served returns the endpoints of p.Serving.
func (p *ServicePort) Served() Served { return Served{p.Serving, p.TargetPort} }

// Len is their number.
func (s Served) Len() int { return len(s.List) }

// All lists them, sorted.
func (s Served) All() []netip.AddrPort { return withPort(s.List, s.Port) }

// Has reports whether an endpoint is one of them.
func (s Served) Has(ep netip.AddrPort) bool {
	if s.Port != 0 {
		if ep.Port() != s.Port {
			return false
		}
		ep = netip.AddrPortFrom(ep.Addr(), 0)
	}
	_, found := slices.BinarySearchFunc(s.List, ep, netip.AddrPort.Compare)
	return found
}

// Same reports whether both have the same endpoints in the same memory.
func (s Served) Same(o Served) bool { return s.Port == o.Port && SameMemory(s.List, o.List) }

// Without returns those that o does not have. It may leave in others if only one of the two stands for endpoints that
// share a port.
func (s Served) Without(o Served, known Memo) Served {
	switch {
	case s.Same(o):
		return Served{}
	case s.Port != o.Port || len(s.List) == 0 || len(o.List) == 0:
		return s
	}
	rest := known.of(operands{MemoryOf(s.List), MemoryOf(o.List), false}, func() []netip.AddrPort {
		gone, _ := Difference(s.List, o.List, netip.AddrPort.Compare)
		return gone
	})
	return Served{rest, s.Port}
}

// A Memo keeps what was worked out of two lists of endpoints: their union, or what the second one lacks. It keeps the
// lists in memory, too: it is for one change.
type Memo = memo[operands, []netip.AddrPort]

type operands struct {
	a, b  Memory[netip.AddrPort]
	union bool
}

// A memo keeps what was worked out for one port of a Service, for the others with the same key: they share lists.
// Without it, the work would be ports times endpoints.
type memo[K comparable, V any] map[K]V

// of returns the value of a key. The first time it has work find it.
func (m *memo[K, V]) of(key K, work func() V) V {
	value, known := (*m)[key]
	if !known {
		if *m == nil {
			*m = make(memo[K, V])
		}
		value = work()
		(*m)[key] = value
	}
	return value
}

// A Memory names a list by its memory, which ports of a Service share. All empty lists have the zero value.
type Memory[T any] struct {
	first  *T
	length int
}

// MemoryOf returns the name of a list.
func MemoryOf[T any](list []T) (m Memory[T]) {
	if len(list) > 0 {
		m = Memory[T]{&list[0], len(list)}
	}
	return m
}

// SameMemory reports whether two lists are one.
func SameMemory[T any](a, b []T) bool { return MemoryOf(a) == MemoryOf(b) }

// reuse gives want the Lists of have where they are equal, so that ports that change one by one go on sharing theirs.
// Both are sorted by ID.
func reuse(have, want []*ServicePort) {
	if len(want) < 2 {
		return
	}
	var alike memo[[2]*Lists, bool]
	equal := func(have, want *Lists) bool {
		return alike.of([2]*Lists{have, want}, func() bool { return have.equal(want) })
	}
	known := make(map[*Lists]*Lists)
	var last [2]*Lists
	eachPair(have, want, byID, func(h, w *ServicePort) {
		switch {
		case h == nil || w == nil || last == [2]*Lists{h.Lists, w.Lists}:
		case w.placed == nil:
			last = [2]*Lists{h.Lists, w.Lists}
			if equal(h.Lists, w.Lists) {
				known[w.Lists] = h.Lists
			}
		case h.placed != nil && slices.Equal(h.placed.numbers, w.placed.numbers) && equal(h.placed.Lists, w.placed.Lists):
			w.Lists = h.Lists
		}
	})
	for _, w := range want {
		if old := known[w.Lists]; old != nil {
			w.Lists = old
		}
	}
}
