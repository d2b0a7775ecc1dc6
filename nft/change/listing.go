package change

import (
	"cmp"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// A ListedElement is an element as the kernel lists it. The kernel lists a range of a set with one
// field as two elements: its first key, and, with End, the first key behind it.
type ListedElement struct {
	Key, KeyEnd []byte // KeyEnd is the last key of a range of concatenations
	End         bool
	Element     nft.Element
}

// A Listing builds the elements of one set from the elements that the kernel lists.
type Listing struct {
	// Repeated holds the keys of the elements that were listed twice.
	Repeated map[string]bool

	ranges   nft.Ranges
	keyLen   int
	elements map[string]nft.Element
	points   []point
}

// A point is an element of a set of ranges: the first key of a range, or the first key behind it.
type point struct {
	key     string
	end     bool
	element nft.Element
}

// NewListing returns an empty listing of a set in a table of family f.
func NewListing(f nft.Family, s *nft.Set) *Listing {
	return &Listing{ranges: s.Ranges(), keyLen: s.KeyLen(f), elements: make(map[string]nft.Element)}
}

// Add files an element and reports whether it belongs to the set. It passes over an element whose
// key has another length.
func (l *Listing) Add(e *ListedElement) bool {
	if len(e.Key) != l.keyLen {
		return false
	}
	if l.ranges == nft.TwoPoints {
		l.points = append(l.points, point{string(e.Key), e.End, e.Element})
		return true
	}
	before := len(l.elements)
	switch {
	case l.ranges == nft.TwoKeys && len(e.KeyEnd) == l.keyLen:
		l.elements[string(e.Key)+string(e.KeyEnd)] = e.Element
	case l.ranges == nft.TwoKeys: // a range of one key
		l.elements[string(e.Key)+string(e.Key)] = e.Element
	default:
		l.elements[string(e.Key)] = e.Element
	}
	if len(l.elements) == before {
		if l.Repeated == nil {
			l.Repeated = make(map[string]bool)
		}
		l.Repeated[string(e.Key)] = true
	}
	return true
}

// addRange adds the points of a range.
func (l *Listing) addRange(key string, element nft.Element) {
	first, last := key[:l.keyLen], key[l.keyLen:]
	l.points = append(l.points, point{first, false, element})
	if end, ok := Successor(last); ok {
		l.points = append(l.points, point{string(end[:l.keyLen]), true, nft.Element{}})
	}
}

// changePoints adds the points of another listing, or drops them if they have gone.
func (l *Listing) changePoints(heard *Listing, came bool) {
	for _, p := range heard.points {
		l.points = slices.DeleteFunc(l.points, func(q point) bool { return q.key == p.key && q.end == p.end })
		if came {
			l.points = append(l.points, p)
		}
	}
}

// Elements returns the elements added so far, with points joined into ranges.
func (l *Listing) Elements() map[string]nft.Element {
	slices.SortFunc(l.points, func(a, b point) int {
		return cmp.Or(cmp.Compare(a.key, b.key), nft.TrueFirst(a.end, b.end)) // one range ends before the next begins
	})
	for i, p := range l.points {
		if p.end {
			continue
		}
		// The next point is the first key behind the range. Without one the range has no end.
		last := slices.Repeat([]byte{0xff}, l.keyLen)
		if i+1 < len(l.points) {
			last = predecessor(l.points[i+1].key)
		}
		l.elements[p.key+string(last)] = p.element
	}
	return l.elements
}

// Successor is the key after key, in network order; ok is false for the last possible key.
func Successor(key string) (next [16]byte, ok bool) {
	copy(next[:], key)
	for i := len(key) - 1; i >= 0; i-- {
		next[i]++
		if next[i] != 0 {
			return next, true
		}
	}
	return next, false
}

// predecessor is the key before key, in network order; the first key's predecessor is the last key.
func predecessor(key string) []byte {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		b[i]--
		if b[i] != 0xff {
			break
		}
	}
	return b
}
