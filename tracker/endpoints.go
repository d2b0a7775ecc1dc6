package tracker

import (
	"cmp"
	"net/netip"
	"slices"
)

// A candidate is an endpoint from the viewpoint of one port of a Service on this node.
type candidate struct {
	at     netip.AddrPort
	is     trait
	weight uint16
}

// newCandidate returns an endpoint that serves a port under a number, for a node in zone, which may
// be empty.
func newCandidate(e *endpoint, number uint16, zone string) candidate {
	c := candidate{netip.AddrPortFrom(e.addr, number), e.is, e.weight}
	if zone != "" && e.forZone(zone) {
		c.is |= inZone
	}
	return c
}

// compare orders candidates by address; among equal addresses, the one to believe comes first.
func (c candidate) compare(o candidate) int {
	return cmp.Or(c.at.Compare(o.at), c.is.compare(o.is))
}

// A gathering collects candidates. It keeps its memory from one use to the next.
type gathering struct {
	all, spare []candidate
	ends       []int // of the runs in all, each of which is sorted
}

// gather returns the endpoints that parts have for p in family, sorted and without duplicates; they
// are valid until the next call. parts must be in the order of their names: the winner among
// duplicates must not depend on the order of events.
func (g *gathering) gather(parts []*slice, p *port, family Family, zone string) []candidate {
	g.all, g.ends = g.all[:0], g.ends[:0]
	for _, part := range parts {
		if part.family != family {
			continue
		}
		for _, served := range part.ports {
			if served.serves(p) {
				for i := range part.endpoints {
					g.all = append(g.all, newCandidate(&part.endpoints[i], served.number, zone))
				}
				g.ends = append(g.ends, len(g.all))
			}
		}
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

// A listing is the result of gather for a port of a Service with many slices, kept up to date: a
// change should cost in proportion to the change, not to the Service.
type listing []candidate

// update brings what parts have at addr into the listing.
func (l *listing) update(addr netip.Addr, parts []*slice, p *port, zone string) {
	var found []candidate
	for _, part := range parts {
		i, ok := slices.BinarySearchFunc(part.endpoints, addr, func(e endpoint, addr netip.Addr) int { return e.addr.Compare(addr) })
		if !ok {
			continue
		}
		for _, served := range part.ports {
			if served.serves(p) {
				found = append(found, newCandidate(&part.endpoints[i], served.number, zone))
			}
		}
	}
	slices.SortStableFunc(found, candidate.compare)
	found = slices.CompactFunc(found, func(a, b candidate) bool { return a.at == b.at })
	first, _ := slices.BinarySearchFunc(*l, addr, func(c candidate, addr netip.Addr) int { return c.at.Addr().Compare(addr) })
	last := first
	for last < len(*l) && (*l)[last].at.Addr() == addr {
		last++
	}
	*l = slices.Replace(*l, first, last, found...)
}

// candidates returns the endpoints that e has for its port i in the family of its front j, as
// gather does.
func (t *Tracker) candidates(e *entry, i, j int) []candidate {
	p, family := &e.service.ports[i], e.service.fronts[j].family
	if len(e.slices) < manySlices {
		e.listings, e.changed = nil, nil
		return t.gathering.gather(e.slices, p, family, t.zone)
	}
	if e.listings == nil {
		e.listings = make([]listing, len(e.service.ports)*len(e.service.fronts))
	}
	l := &e.listings[i*len(e.service.fronts)+j]
	if *l == nil {
		*l = append(listing{}, t.gathering.gather(e.slices, p, family, t.zone)...)
		return *l
	}
	for _, addr := range e.changed {
		if FamilyOf(addr) == family {
			l.update(addr, e.slices, p, t.zone)
		}
	}
	return *l
}

// manySlices is the number of slices from which on a Service has listings. With fewer slices,
// gathering anew is as quick.
const manySlices = 4

// maxChanged bounds how many changed addresses are looked up one by one.
const maxChanged = 64

// note marks the addresses at which two values of a slice differ, if there are listings to update;
// nil is a slice without endpoints.
func (e *entry) note(before, now *slice) {
	var a, b []endpoint
	if before != nil {
		a = before.endpoints
	}
	if now != nil {
		b = now.endpoints
	}
	e.changed = appendChanged(e.changed, a, b)
	if len(e.changed) > maxChanged || before != nil && now != nil && !slices.Equal(before.ports, now.ports) {
		e.forgetListings()
	}
}

// forgetListings makes the next use gather them anew.
func (e *entry) forgetListings() { e.listings, e.changed = nil, nil }

// appendChanged appends to addrs the addresses at which two sorted lists of endpoints differ.
func appendChanged(addrs []netip.Addr, a, b []endpoint) []netip.Addr {
	for len(a) > 0 && len(b) > 0 {
		switch c := a[0].addr.Compare(b[0].addr); {
		case c < 0:
			addrs, a = append(addrs, a[0].addr), a[1:]
		case c > 0:
			addrs, b = append(addrs, b[0].addr), b[1:]
		default:
			if a[0] != b[0] {
				addrs = append(addrs, a[0].addr)
			}
			a, b = a[1:], b[1:]
		}
	}
	for _, e := range a {
		addrs = append(addrs, e.addr)
	}
	for _, e := range b {
		addrs = append(addrs, e.addr)
	}
	return addrs
}
