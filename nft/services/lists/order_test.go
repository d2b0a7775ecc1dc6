package lists

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/nft/maglev"
)

func endpoints(last ...byte) (list []netip.AddrPort) {
	for _, b := range last {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, b}), 80))
	}
	return list
}

func TestReorder(t *testing.T) {
	for _, tt := range []struct {
		name             string
		have, want, list []netip.AddrPort
	}{
		{"first", nil, endpoints(1, 2, 3), endpoints(1, 2, 3)},
		{"unchanged", endpoints(3, 1, 2), endpoints(1, 2, 3), endpoints(3, 1, 2)},
		{"added at the end", endpoints(3, 1), endpoints(1, 2, 3), endpoints(3, 1, 2)},
		{"last fills the hole", endpoints(3, 1, 2), endpoints(1, 2), endpoints(2, 1)},
		{"last leaves", endpoints(3, 1, 2), endpoints(1, 3), endpoints(3, 1)},
		{"replaced in place", endpoints(1, 2, 3), endpoints(1, 3, 9), endpoints(1, 9, 3)},
		{"all leave", endpoints(1, 2, 3), nil, nil},
		{"all but the last leave", endpoints(1, 2, 3), endpoints(3), endpoints(3)},
		{"repeated in what was adopted", endpoints(2, 2, 1), endpoints(1, 2, 3), endpoints(1, 2, 3)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if list := keepFound(tt.have, tt.want); !slices.Equal(list, tt.list) {
				t.Errorf("got %v, want %v", list, tt.list)
			}
		})
	}
}

// TestReorderMovesLittle holds what a change of a list may cost: as many elements as
// endpoints came or went, however long the list is.
func TestReorderMovesLittle(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		have, want := endpoints(sample(random)...), endpoints(slices.Sorted(slices.Values(sample(random)))...)
		list := keepFound(have, want)
		if before := slices.SortedFunc(slices.Values(have), netip.AddrPort.Compare); !slices.Equal(list,
			keep(have, before, want)) {
			t.Fatalf("the two ways differ for %v and %v", have, want)
		}
		sorted := slices.SortedFunc(slices.Values(list), netip.AddrPort.Compare)
		if !slices.Equal(sorted, slices.SortedFunc(slices.Values(want), netip.AddrPort.Compare)) {
			t.Fatalf("keepFound(%v, %v) = %v has other endpoints", have, want, list)
		}
		came, went, moved := 0, 0, 0
		for _, ep := range want {
			if !slices.Contains(have, ep) {
				came++
			}
		}
		for i, ep := range have {
			if !slices.Contains(want, ep) {
				went++
			} else if list[min(i, len(list)-1)] != ep {
				moved++
			}
		}
		if moved > max(0, went-came) {
			t.Errorf("keepFound(%v, %v) = %v moves %d endpoints for %d that left and %d that came", have, want, list, moved,
				went, came)
		}
	}
}

func sample(random *rand.Rand) (some []byte) {
	for _, i := range random.Perm(12)[:random.IntN(12)] {
		some = append(some, byte(i+1))
	}
	return some
}

// TestWeightsThatChange: a change of weights keeps what it can.
func TestWeightsThatChange(t *testing.T) {
	have := []netip.AddrPort(nil)
	all := endpoints(1, 2, 3)
	for _, step := range []struct {
		weights []uint16
		writes  int // places that are others than before, or gone
	}{
		{[]uint16{1, 2, 7}, 10},
		{[]uint16{1, 2, 7}, 0},
		{[]uint16{1, 3, 7}, 1},
		{[]uint16{2, 6, 14}, 0}, // the same shares
		{[]uint16{1, 3, 2}, 6},
		{[]uint16{3, 3, 3}, 4}, // the last place of each of three goes, and one moves
	} {
		list := spread(have, all, maglev.Places(step.weights, maglev.PlacesEach(3)))
		writes := 0
		for i := range max(len(list), len(have)) {
			if i >= len(list) || i >= len(have) || list[i] != have[i] {
				writes++
			}
		}
		counts := make(map[netip.AddrPort]int)
		for _, ep := range list {
			counts[ep]++
		}
		for i, n := range maglev.Places(step.weights, maglev.PlacesEach(3)) {
			if counts[all[i]] != n {
				t.Errorf("weights %d: %d places of endpoint %d, want %d", step.weights, counts[all[i]], i, n)
			}
		}
		if writes > step.writes {
			t.Errorf("weights %d: %d places are written, want at most %d", step.weights, writes, step.writes)
		}
		have = list
	}
}
