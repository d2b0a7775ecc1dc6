package tracker

import (
	"cmp"
	"net/netip"
)

// A candidate is an endpoint as one port of a Service sees it on this node.
type candidate struct {
	at netip.AddrPort
	is trait
}

// newCandidate is an endpoint that serves a port under a number, for a node in zone, which may
// be empty.
func newCandidate(e *endpoint, number uint16, zone string) candidate {
	c := candidate{netip.AddrPortFrom(e.addr, number), e.is}
	if zone != "" && e.forZone(zone) {
		c.is |= inZone
	}
	return c
}

// compare orders candidates by address and puts the one that is believed first.
func (c candidate) compare(o candidate) int {
	return cmp.Or(c.at.Compare(o.at), c.is.compare(o.is))
}

// A gathering collects candidates. It keeps its memory from one use to the next.
type gathering struct {
	all, spare []candidate
	ends       []int // of the runs in all, each of which is sorted
}

// gather returns the endpoints that parts have for p in family, sorted and without
// duplicates; they are valid until the next call. Parts must be in the order of their names:
// what wins among duplicates must not depend on the order of events.
func (g *gathering) gather(parts []*slice, p *port, family Family, zone string) []candidate {
	g.all, g.ends = g.all[:0], g.ends[:0]
	for _, part := range parts {
		if part.family != family {
			continue
		}
		for _, served := range part.ports {
			if served.serves(p) {
				g.add(part.endpoints, served.number, zone)
			}
		}
	}
	for len(g.ends) > 1 {
		g.mergePairs()
	}
	return g.all
}

// add appends a run.
func (g *gathering) add(endpoints []endpoint, number uint16, zone string) {
	for i := range endpoints {
		g.all = append(g.all, newCandidate(&endpoints[i], number, zone))
	}
	g.ends = append(g.ends, len(g.all))
}

// mergePairs makes one run of each two neighbours.
func (g *gathering) mergePairs() {
	merged, ends, start := g.spare[:0], g.ends[:0], 0
	for i := 0; i < len(g.ends); i += 2 {
		middle, end := g.ends[i], g.ends[min(i+1, len(g.ends)-1)]
		merged = mergeRuns(merged, g.all[start:middle], g.all[middle:end])
		ends, start = append(ends, len(merged)), end
	}
	g.all, g.spare, g.ends = merged, g.all, ends
}

// mergeRuns appends two runs to merged as one. Of two candidates with the same address, the
// one that is believed more stays, or the one of a.
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
