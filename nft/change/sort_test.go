package change

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
)

// TestElementsInOrder: keys sort byte by byte, whatever their length.
func TestElementsInOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 0))
	m := make(map[string]nft.Element)
	for range 5000 {
		key := make([]byte, random.IntN(20))
		for i := range key {
			key[i] = byte(random.IntN(3)) * 127
		}
		m[string(key)] = nft.Element{Data: string(key)}
	}
	var d differ
	d.elements(nft.Add, &nft.Set{}, m)
	got := d.ops[0].Elements
	if len(got) != len(m) ||
		!slices.IsSortedFunc(got, func(a, b nft.KeyedElement) int { return strings.Compare(a.Key, b.Key) }) {
		t.Errorf("%d elements of %d, or not in the order of their keys", len(got), len(m))
	}
	for _, element := range got {
		if element.Data != element.Key {
			t.Errorf("%q holds what belongs to %q", element.Key, element.Data)
		}
	}
}
