package tracker

import (
	"net/netip"
	"slices"
)

// A listing is what gather returns for a port of a Service of many slices, kept up to date: what
// changes there should cost as much as what changes, not as all of the Service.
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
		e.forgetListings()
		return t.gathering.gather(e.slices, p, family, t.zone())
	}
	if e.listings == nil {
		e.listings = make([]listing, len(e.service.ports)*len(e.service.fronts))
	}
	l := &e.listings[i*len(e.service.fronts)+j]
	if *l == nil {
		*l = append(listing{}, t.gathering.gather(e.slices, p, family, t.zone())...)
		return *l
	}
	for _, addr := range e.changed {
		if FamilyOf(addr) == family {
			l.update(addr, e.slices, p, t.zone())
		}
	}
	return *l
}

// manySlices is from how many slices on a Service has listings: those of the others are gathered
// as quickly.
const manySlices = 4

// maxChanged bounds how many changed addresses are looked up one by one.
const maxChanged = 64

// note remembers at which addresses two values of a slice differ; nil is a slice without any.
func (e *entry) note(before, now *slice) {
	switch {
	case e.listings == nil:
		return
	case before != nil && now != nil && !slices.Equal(before.ports, now.ports):
		e.forgetListings()
		return
	}
	e.changed = appendChanged(e.changed, before.all(), now.all())
	if len(e.changed) > maxChanged {
		e.forgetListings()
	}
}

// forgetListings makes them be gathered anew.
func (e *entry) forgetListings() { e.listings, e.changed = nil, nil }

func (s *slice) all() []endpoint {
	if s == nil {
		return nil
	}
	return s.endpoints
}

// appendChanged appends to addrs where two sorted lists of endpoints differ.
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
