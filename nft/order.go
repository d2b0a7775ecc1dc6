package nft

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// SetNames lists the names of the sets in the order in which batches and the text hold them.
func (t *Table) SetNames() []string {
	return slices.SortedFunc(maps.Keys(t.Sets), func(a, b string) int { return CompareSets(t.Sets[a].Set, t.Sets[b].Set) })
}

// CompareSets orders sets for batches and for the text: by rank, then by name.
func CompareSets(s, t *Set) int {
	return cmp.Or(cmp.Compare(s.Rank, t.Rank), naturalCompare(s.Name, t.Name), strings.Compare(s.Name, t.Name))
}

// CompareChains orders chains for batches and for the text: regular chains by name, numbers in
// numeric order, then the base chains.
func CompareChains(a, b *Chain) int {
	if (a.Hook == nil) != (b.Hook == nil) {
		if a.Hook == nil {
			return -1
		}
		return 1
	}
	return naturalCompare(a.Name, b.Name)
}

// naturalCompare compares runs of digits as numbers, so that pick-9 stands before pick-10.
func naturalCompare(a, b string) int {
	same := 0 // what both begin with is passed over at once; thousands of names begin alike
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	for same > 0 && isDigit(a[same-1]) { // a run of digits is compared whole
		same--
	}
	a, b = a[same:], b[same:]
	for a != "" && b != "" {
		na, nb := digits(a), digits(b)
		if na > 0 && nb > 0 {
			if c := compareNumbers(a[:na], b[:nb]); c != 0 {
				return c
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits is the length of the run of digits at the beginning of s.
func digits(s string) (n int) {
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func compareNumbers(a, b string) int {
	x, y := strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y), cmp.Compare(len(a), len(b)))
}
