package tracker

import (
	"cmp"
	"net/netip"
	"slices"
)

// This file goes through sorted lists: of ports, endpoints, addresses and source ranges.

// eachPair calls f for each element of two sorted lists, with the zero value where a list has no such element.
func eachPair[T any](have, want []T, compare func(h, w T) int, f func(h, w T)) {
	for len(have) > 0 || len(want) > 0 {
		order := -1
		switch {
		case len(have) == 0:
			order = 1
		case len(want) > 0:
			order = compare(have[0], want[0])
		}
		var h, w T
		if order <= 0 {
			h, have = have[0], have[1:]
		}
		if order >= 0 {
			w, want = want[0], want[1:]
		}
		f(h, w)
	}
}

// Difference returns what before and want do not have in common. Both are sorted. What is named twice counts twice.
func Difference[T comparable](before, want []T, compare func(a, b T) int) (gone, come []T) {
	if SameMemory(before, want) {
		return nil, nil
	}
	// Mostly nearly all is common to both: what both begin and end with is dropped first.
	for len(before) > 0 && len(want) > 0 && before[0] == want[0] {
		before, want = before[1:], want[1:]
	}
	for len(before) > 0 && len(want) > 0 && before[len(before)-1] == want[len(want)-1] {
		before, want = before[:len(before)-1], want[:len(want)-1]
	}
	for len(before) > 0 && len(want) > 0 {
		switch c := compare(before[0], want[0]); {
		case c < 0:
			gone, before = append(gone, before[0]), before[1:]
		case c > 0:
			come, want = append(come, want[0]), want[1:]
		default:
			before, want = before[1:], want[1:]
		}
	}
	return append(gone, before...), append(come, want...)
}

// differing returns how many values only the first of two sorted lists has, and how many only the second.
func differing[T comparable](a, b []T, compare func(a, b T) int) (gone, come int) {
	if SameMemory(a, b) {
		return 0, 0
	}
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] { // mostly nearly all is common to both
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 {
		switch c := compare(a[0], b[0]); {
		case c < 0:
			a, gone = a[1:], gone+1
		case c > 0:
			b, come = b[1:], come+1
		default:
			a, b = a[1:], b[1:]
		}
	}
	return gone + len(a), come + len(b)
}

// within reports whether a sorted list has all of another one.
func within(some, all []netip.AddrPort) bool {
	gone, _ := differing(some, all, netip.AddrPort.Compare)
	return gone == 0
}

// common returns what two sorted lists have in common: list itself if that is all of it.
func common[T comparable](list, other []T, compare func(a, b T) int) []T {
	kept, _ := commonWeighted(list, nil, other, compare)
	return kept
}

// commonWeighted is common for a list with weights, which may be nil.
func commonWeighted[T comparable](list []T, weights []uint16, other []T,
	compare func(a, b T) int) (kept []T, keptWeights []uint16) {
	if sameList(list, other) {
		return list, weights
	}
	kept = make([]T, 0, min(len(list), len(other)))
	for i, x := range list {
		for len(other) > 0 && compare(other[0], x) < 0 {
			other = other[1:]
		}
		if len(other) > 0 && other[0] == x {
			kept = append(kept, x)
			if weights != nil {
				keptWeights = append(keptWeights, weights[i])
			}
		}
	}
	if len(kept) == len(list) {
		return list, weights
	}
	return kept, keptWeights
}

// union returns what is in a, in b or in both. Both are sorted and name nothing twice, and so is the result, which may
// be one of them.
func union[T comparable](a, b []T, compare func(a, b T) int) []T {
	switch {
	case len(b) == 0 || sameList(a, b):
		return a
	case len(a) == 0:
		return b
	}
	allA, allB, both := a, b, make([]T, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		c := compare(a[0], b[0])
		if c <= 0 {
			both, a = append(both, a[0]), a[1:]
		} else {
			both = append(both, b[0])
		}
		if c >= 0 {
			b = b[1:]
		}
	}
	both = append(append(both, a...), b...)
	switch len(both) {
	case len(allA):
		return allA
	case len(allB):
		return allB
	}
	return both
}

// sameList reports whether two lists are equal. Mostly they are one list.
func sameList[T comparable](a, b []T) bool { return SameMemory(a, b) || slices.Equal(a, b) }

// move returns the list that lies between have and want, all of which are sorted: without some that want does not have,
// and, if none of those is left, with some that have does not have.
func move[T comparable](s *stepper, have, want []T, compare func(a, b T) int, each price) []T {
	if sameList(have, want) {
		return have
	}
	gone, come := differing(have, want, compare)
	if n := gone*each.goes + come*each.comes; n <= s.left && (s.adds || come == 0) {
		s.left -= n
		return want
	}
	next := have
	if gone > 0 && s.left > 0 {
		next = make([]T, 0, len(have))
		for rest, i := want, 0; i < len(have); i++ {
			for len(rest) > 0 && compare(rest[0], have[i]) < 0 {
				rest = rest[1:]
			}
			if s.left <= 0 || len(rest) > 0 && rest[0] == have[i] {
				next = append(next, have[i])
			} else {
				s.left -= each.goes
			}
		}
	}
	if len(next) > len(have)-gone || !s.adds {
		return next
	}
	kept := next
	next = make([]T, 0, len(want))
	for _, x := range want {
		if len(kept) > 0 && kept[0] == x {
			next, kept = append(next, x), kept[1:]
		} else if s.left > 0 {
			next = append(next, x)
			s.left -= each.comes
		}
	}
	return next
}

// prefixes is move for source ranges: an address that have and want both admit is admitted meanwhile.
func (s *stepper) prefixes(have, want []netip.Prefix) []netip.Prefix {
	if SameMemory(have, want) {
		return want
	}
	next := commonPrefixes(have, want)
	if n := s.among(have, next); n < len(have) {
		return append(commonPrefixes(have[:n], want), have[n:]...)
	}
	if !s.adds {
		return next
	}
	n := s.among(want, next)
	if n == len(want) {
		return want
	}
	rest, _ := slices.BinarySearchFunc(next, want[n], comparePrefixes)
	return slices.Concat(want[:n], next[rest:])
}

// among uses up elements for prefixes of a list that are not in another one, and returns how far in the list they last.
func (s *stepper) among(list, other []netip.Prefix) int {
	for i, p := range list {
		if _, found := slices.BinarySearchFunc(other, p, comparePrefixes); found {
			continue
		}
		if s.left <= 0 {
			return i
		}
		s.left--
	}
	return len(list)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// commonPrefixes returns the addresses that both of two lists of prefixes contain. In each list no prefix overlaps
// another one.
func commonPrefixes(a, b []netip.Prefix) (both []netip.Prefix) {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].Overlaps(b[0]) && a[0].Bits() >= b[0].Bits(): // a[0] is within b[0]
			both, a = append(both, a[0]), a[1:]
		case a[0].Overlaps(b[0]):
			both, b = append(both, b[0]), b[1:]
		case a[0].Addr().Less(b[0].Addr()):
			a = a[1:]
		default:
			b = b[1:]
		}
	}
	return both
}
