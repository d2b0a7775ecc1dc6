package nft

import (
	"net/netip"
	"slices"
)

// draw evaluates a random choice. What it misses goes on with the next rule, in its share of
// the connections that have come here.
func (t *tracer) draw(held *Elements, key string, modulus int) flow {
	missed, holes := 0, 0 // a hole is a place that is missing before one that is there
	share := t.share() / float64(modulus)
	for i := range modulus {
		ep, ok := AddrPortOf(held.Map[IndexedKey(key, i)].Data)
		if !ok {
			missed++
			continue
		}
		holes = missed
		t.choose(ep, share)
	}
	t.fate.Holes = max(t.fate.Holes, holes)
	t.missed = append(t.missed, float64(missed)/float64(modulus))
	if missed > 0 {
		return skip
	}
	return t.seal("dnat")
}

// share is what part of the connections none of the draws so far has hit.
func (t *tracer) share() float64 {
	share := 1.0
	for _, missed := range t.missed {
		share *= missed
	}
	return share
}

// choose gives an endpoint a share of the connections.
func (t *tracer) choose(ep netip.AddrPort, share float64) {
	i := slices.Index(t.fate.Endpoints, ep)
	if i < 0 {
		i = len(t.fate.Endpoints)
		t.fate.Endpoints, t.shares = append(t.fate.Endpoints, ep), append(t.shares, 0)
	}
	t.shares[i] += share
}

// uneven reports whether one endpoint gets more than another by more than one in a thousand.
func (t *tracer) uneven() bool {
	return len(t.shares) > 0 && slices.Max(t.shares) > slices.Min(t.shares)*1.001
}
