package nft

import (
	"cmp"
	"testing"
)

// TestNaturalOrder: names that begin alike are in the order of the numbers in them, whole.
func TestNaturalOrder(t *testing.T) {
	names := []string{"", "a", "a-2", "a-2-x", "a-02", "a-10", "a-10b", "a-100", "a-100-9", "a-100-10", "b-1", "pick-1",
		"pick-9", "pick-10", "pick-local-1"}
	for i, a := range names {
		for j, b := range names {
			if got, want := naturalCompare(a, b), cmp.Compare(i, j); got != want {
				t.Errorf("%q against %q: %d, want %d", a, b, got, want)
			}
		}
	}
}
