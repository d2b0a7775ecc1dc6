package tracker

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"sort"
)

// A candidate is an endpoint from the viewpoint of one port of a Service on this node.
type candidate struct {
	at     netip.AddrPort
	is     trait
	weight uint16
}

// newCandidate returns an endpoint that serves a port at a place, see portGroup, for a node in zone, which may be
// empty.
func newCandidate(e *endpoint, place uint16, zone string) candidate {
	c := candidate{netip.AddrPortFrom(e.addr, place), e.is, e.weight}
	if zone != "" && e.forZone(zone) {
		c.is |= inZone
	}
	return c
}

// A gathering collects candidates. It keeps its memory from one use to the next.
type gathering struct {
	all, spare []candidate
	ends       []int // of the runs in all, each of which is sorted
}

// gather returns the endpoints that the slices of a group have for it, sorted and without duplicates; they are valid
// until the next call. The slices must be in the order of their names: the winner among duplicates must not depend on
// the order of events. If only is not nil, it returns the endpoints at these addresses, which are sorted.
func (g *gathering) gather(of *portGroup, zone string, only []netip.Addr) []candidate {
	g.all, g.ends = g.all[:0], g.ends[:0]
	for _, part := range of.parts {
		add := func(e *endpoint) { g.all = append(g.all, newCandidate(e, part.place, zone)) }
		if only != nil {
			part.eachAt(only, add)
		} else {
			for i := range part.endpoints {
				add(&part.endpoints[i])
			}
		}
		g.ends = append(g.ends, len(g.all))
	}
	for len(g.ends) > 1 {
		g.mergePairs()
	}
	return g.all
}

// mergePairs merges each two neighbouring runs into one.
func (g *gathering) mergePairs() {
	merged, ends, start := g.spare[:0], g.ends[:0], 0
	for i := 0; i < len(g.ends); i += 2 {
		middle, end := g.ends[i], g.ends[min(i+1, len(g.ends)-1)]
		merged = mergeRuns(merged, g.all[start:middle], g.all[middle:end])
		ends, start = append(ends, len(merged)), end
	}
	g.all, g.spare, g.ends = merged, g.all, ends
}

// mergeRuns appends two runs to merged as one. Of two candidates with the same address it keeps the
// one to believe; if they are equal, the one of a.
func mergeRuns(merged, a, b []candidate) []candidate {
	for len(a) > 0 && len(b) > 0 {
		c := a[0].at.Compare(b[0].at)
		if c == 0 {
			c = a[0].is.compare(b[0].is)
			if c <= 0 {
				b = b[1:]
			} else {
				a = a[1:]
			}
			continue
		}
		if c < 0 {
			merged, a = append(merged, a[0]), a[1:]
		} else {
			merged, b = append(merged, b[0]), b[1:]
		}
	}
	return append(append(merged, a...), b...)
}

// eachAt calls f for the endpoints at addresses, which are sorted. It skips in steps that double what only one side
// has: most of 300 slices have none of the addresses, and a slice of 100 endpoints few of 4,096.
func (s *slice) eachAt(addrs []netip.Addr, f func(e *endpoint)) {
	for rest := s.endpoints; len(rest) > 0 && len(addrs) > 0; {
		have, want := rest[0].addr, addrs[0]
		switch c := have.Compare(want); {
		case c < 0:
			rest = rest[leap(len(rest), func(i int) bool { return !rest[i].addr.Less(want) }):]
		case c > 0:
			addrs = addrs[leap(len(addrs), func(i int) bool { return !addrs[i].Less(have) }):]
		default:
			f(&rest[0])
			rest, addrs = rest[1:], addrs[1:]
		}
	}
}

// leap is sort.Search for an index above zero that is probably small.
func leap(n int, reached func(int) bool) int {
	end := 1
	for end < n && !reached(end) {
		end *= 2
	}
	return sort.Search(min(end, n), reached)
}

// A listing is the result of gather for a port of a Service with many slices, kept up to date: a
// change should cost in proportion to the change, not to the Service.
type listing struct {
	all     []candidate
	numbers []uint16 // of its places
}

// update replaces all that is at addresses, which are sorted, by found, a result of gather.
func (g *gathering) update(l *listing, addrs []netip.Addr, found []candidate) {
	from := func(list []candidate, addr netip.Addr) int {
		return sort.Search(len(list), func(i int) bool { return !list[i].at.Addr().Less(addr) })
	}
	first := from(l.all, addrs[0])
	next, rest := g.spare[:0], l.all[first:]
	for _, addr := range addrs {
		i := from(rest, addr)
		next, rest = append(next, rest[:i]...), rest[i:]
		for len(rest) > 0 && rest[0].at.Addr() == addr {
			rest = rest[1:]
		}
		for len(found) > 0 && found[0].at.Addr() == addr {
			next, found = append(next, found[0]), found[1:]
		}
	}
	g.spare = append(next, rest...)
	l.all = append(l.all[:first], g.spare...)
}

// A portGroup is ports of a Service that have the same endpoints in a family, but for the numbers of their ports: the
// same slices serve them. Then the endpoints are gathered once, with places instead of numbers.
type portGroup struct {
	ports   []int        // of the Service, in order
	parts   []placedPart // that serve the ports, in order
	places  int          // how many numbers each port has: more than 1 if its endpoints differ
	numbers []uint16     // of all ports one after another: the numbers of each, sorted
}

// A placedPart is a slice whose endpoints serve a port under the number that is at a place among those of the port.
type placedPart struct {
	*slice
	place uint16
}

// uniform reports whether all endpoints of a port have one number.
func (g *portGroup) uniform() bool { return g.places <= 1 }

// numbersOf returns the numbers of the port with index n in the group, by place.
func (g *portGroup) numbersOf(n int) []uint16 { return g.numbers[n*g.places:][:g.places] }

// A servedPort says that a slice serves a port of a Service.
type servedPort struct {
	part     int32 // of the slices of the Service
	first, n int32 // which ports of the slice do
	next     int32 // the index of the next servedPort of the port; 0: none
}

// portGroups returns the groups of e's ports in a family. Its cost is a sum over the ports of the objects: a Service
// may have thousands of ports and of slices.
func (t *Tracker) portGroups(e *entry, family Family) (groups []portGroup) {
	first, all := t.served(e, family)
	var known map[string]int // the group of ports that certain slices serve
	if len(e.service.ports) > 1 {
		known = make(map[string]int)
	}
	g, last, found := 0, "", false // found: groups[g] is of the ports that the slices in last serve
	for i := range e.service.ports {
		numbers := t.numbers[:0]
		eachNumber := func(f func(part int32, number uint16)) {
			for at := first[i]; at != 0; at = all[at].next {
				s := &all[at]
				for _, served := range e.slices[s.part].ports[s.first:][:s.n] {
					f(s.part, served.number)
				}
			}
		}
		eachNumber(func(_ int32, number uint16) {
			if len(numbers) == 0 || numbers[len(numbers)-1] != number {
				numbers = append(numbers, number)
			}
		})
		if len(numbers) > 1 {
			slices.Sort(numbers)
			numbers = slices.Compact(numbers)
		}
		which := t.which[:0]
		eachNumber(func(part int32, number uint16) {
			place, _ := slices.BinarySearch(numbers, number)
			which = binary.BigEndian.AppendUint32(which, uint32(part))
			which = binary.BigEndian.AppendUint16(which, uint16(place))
		})
		t.which, t.numbers = which, numbers
		if !found || string(which) != last {
			last = string(which)
			g, found = known[last]
		}
		if !found {
			g, found = len(groups), known != nil
			groups = append(groups, portGroup{parts: make([]placedPart, 0, len(which)/6), places: len(numbers)})
			if g == 0 { // mostly the only one
				groups[g].ports, groups[g].numbers = make([]int, 0, len(first)), make([]uint16, 0, len(first))
			}
			for at := which; len(at) > 0; at = at[6:] {
				part := e.slices[binary.BigEndian.Uint32(at)]
				groups[g].parts = append(groups[g].parts, placedPart{part, binary.BigEndian.Uint16(at[4:])})
			}
			if found {
				known[last] = g
			}
		}
		groups[g].ports, groups[g].numbers = append(groups[g].ports, i), append(groups[g].numbers, numbers...)
	}
	return groups
}

// served returns which slices of a family serve the ports of e: for each port the index of the first servedPort, 0 for
// none, and what these are indexes of. Both are valid until the next call.
func (t *Tracker) served(e *entry, family Family) (first []int32, all []servedPort) {
	ports := len(e.service.ports)
	first = append(t.firstServed[:0], make([]int32, ports)...)
	last := append(t.lastServed[:0], make([]int32, ports)...)
	all = append(t.allServed[:0], servedPort{}) // no index of one is 0
	for part, s := range e.slices {
		if s.family != family {
			continue
		}
		s.eachServed(e.service.ports, func(port, at, n int) {
			next := int32(len(all))
			if first[port] == 0 {
				first[port] = next
			} else {
				all[last[port]].next = next
			}
			last[port] = next
			all = append(all, servedPort{part: int32(part), first: int32(at), n: int32(n)})
		})
	}
	t.firstServed, t.lastServed, t.allServed = first, last, all
	return first, all
}

// candidates returns the endpoints that e has for a group of its ports in its front j, as gather does.
func (t *Tracker) candidates(e *entry, g *portGroup, j int) []candidate {
	if len(e.slices) < manySlices {
		e.listings, e.changed = nil, nil
		return t.gathering.gather(g, t.zone, nil)
	}
	if e.listings == nil {
		e.listings = make([]listing, len(e.service.ports)*len(e.service.fronts))
	}
	of := func(port int) *listing { return &e.listings[port*len(e.service.fronts)+j] }
	for _, port := range g.ports[1:] { // they may have been no members of the group
		*of(port) = listing{}
	}
	l := of(g.ports[0])
	if numbers := g.numbersOf(0); len(l.all) == 0 || !slices.Equal(l.numbers, numbers) {
		*l = listing{slices.Clone(t.gathering.gather(g, t.zone, nil)), slices.Clone(numbers)}
	} else if len(e.changed) > 0 {
		t.gathering.update(l, e.changed, t.gathering.gather(g, t.zone, e.changed))
	}
	return l.all
}

// manySlices is the number of slices from which on a Service has listings. With fewer slices,
// gathering anew is as quick.
const manySlices = 4

// maxChanged is how many changed addresses a Service remembers. After more, all are gathered anew.
const maxChanged = 4096

// markChanged marks the addresses at which two values of a slice differ, if there are listings to update;
// nil is a slice without endpoints.
func (e *entry) markChanged(before, now *slice) {
	var a, b []endpoint
	if before != nil {
		a = before.endpoints
	}
	if now != nil {
		b = now.endpoints
	}
	byAddress := func(x, y endpoint) int { return x.addr.Compare(y.addr) }
	eachPair(a, b, byAddress, func(x, y endpoint) {
		if x != y {
			e.changed = append(e.changed, cmp.Or(x.addr, y.addr))
		}
	})
	if len(e.changed) > maxChanged || before != nil && now != nil && !slices.Equal(before.ports, now.ports) {
		e.forgetListings()
	}
}

// forgetListings makes the next use gather them again.
func (e *entry) forgetListings() { e.listings, e.changed = nil, nil }

// choose makes the lists of endpoints from all endpoints of the port, which must be sorted. Lists
// that no traffic policy needs are empty.
//
// The cluster-wide list holds the ready endpoints that topology allows; if there are no ready ones,
// all draining endpoints anywhere. Topology counts only if the control plane has planned for every
// ready endpoint. This node's list ignores topology. It holds the ready endpoints on this node; if
// there are none, the draining ones.
//
// An endpoint of weight 0 is no part of these lists, as if it did not exist, and counts for none of the
// decisions about them. It stays in Serving, so that its connections live on.
func (p *ServicePort) choose(all []candidate) {
	var anyReady, anyDraining trait // all traits of ready endpoints, and of draining ones
	allReady := ^trait(0)           // the traits that all ready endpoints share
	for i := range all {
		is := all[i].is
		if !is.has(weighted) {
			continue
		}
		if is.has(ready) {
			anyReady |= is
			allReady &= is
		}
		if is.has(draining) {
			anyDraining |= is
		}
	}
	inCluster, inLocal := impossible, impossible
	wantLocal := p.InternalLocal || p.ExternalLocal
	local := (anyReady | anyDraining).has(onNode)
	if !p.InternalLocal || p.External() || p.Settings.LocalFallback && !local {
		switch {
		case anyReady == 0:
			inCluster = weighted | draining
		case allReady.has(nodeHint) && anyReady.has(forNode):
			inCluster = weighted | ready | forNode
		case allReady.has(zoneHint) && anyReady.has(inZone):
			inCluster = weighted | ready | inZone
		default:
			inCluster = weighted | ready
		}
	}
	if wantLocal {
		inLocal = weighted | draining | onNode
		if anyReady.has(onNode) {
			inLocal = weighted | ready | onNode
		}
	}
	p.HasEndpoints = anyReady != 0 || anyDraining != 0
	l := new(Lists)
	l.Serving = having(all, nil, serving, ready)
	switch {
	case p.ID.Protocol == UDP && p.Settings.KeepUnreadyUDP:
		l.Serving = having(all, l.Serving, anything)
	case p.ID.Protocol != UDP && p.Settings.ResetDeparted:
		l.Serving = having(all, l.Serving, serving, ready, terminating)
	}
	l.Cluster = having(all, l.Serving, inCluster)
	l.Local = having(all, l.Serving, inLocal)
	l.OnNode = having(all, l.Serving, onNode|inCluster, onNode|inLocal)
	l.ClusterWeights, l.LocalWeights = weights(all, inCluster), weights(all, inLocal)
	if l.Weighted() && l.long() && !p.hashes() {
		l.ClusterWeights, l.LocalWeights, l.Unweighted = nil, nil, true
	}
	p.Lists = l
	lists := l.all()
	for i, list := range lists { // equal lists share memory
		for _, earlier := range lists[:i] {
			if slices.Equal(*earlier, *list) {
				*list = *earlier
				break
			}
		}
	}
}

// choosesAs reports whether p and another port of its Service choose the same lists from the same endpoints.
func (p *ServicePort) choosesAs(q *ServicePort) bool {
	return p.External() == q.External() && p.ExternalLocal == q.ExternalLocal &&
		(p.ID.Protocol == UDP) == (q.ID.Protocol == UDP)
}

// having returns the addresses of the candidates that have all traits of one of sets, nil for
// none. If whole, a list that contains them all, is as long, having returns whole
// itself. It counts before it allocates, as these lists are most of the tracker's memory.
func having(all []candidate, whole []netip.AddrPort, sets ...trait) []netip.AddrPort {
	n := 0
	for i := range all {
		if all[i].is.hasOne(sets) {
			n++
		}
	}
	switch n {
	case 0:
		return nil
	case len(whole):
		return whole
	}
	list := make([]netip.AddrPort, 0, n)
	for i := range all {
		if all[i].is.hasOne(sets) {
			list = append(list, all[i].at)
		}
	}
	return list
}

// weights lists the weights of the candidates that have all traits of one; nil if they are equal.
func weights(all []candidate, one trait) (list []uint16) {
	n, first, equal := 0, uint16(0), true
	for i := range all {
		if c := &all[i]; c.is.has(one) {
			if n++; n == 1 {
				first = c.weight
			}
			equal = equal && c.weight == first
		}
	}
	if equal {
		return nil
	}
	list = make([]uint16, 0, n)
	for i := range all {
		if c := &all[i]; c.is.has(one) {
			list = append(list, c.weight)
		}
	}
	return list
}
