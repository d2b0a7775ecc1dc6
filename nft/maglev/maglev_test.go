package maglev

import (
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// endpoints makes up n sorted endpoints of one family.
func endpoints(n int, six bool) []netip.AddrPort {
	list := make([]netip.AddrPort, n)
	for i := range list {
		addr := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		if six {
			b := netip.MustParseAddr("fd00:10:244::").As16()
			b[14], b[15] = byte(i>>8), byte(i)
			addr = netip.AddrFrom16(b)
		}
		list[i] = netip.AddrPortFrom(addr, 8080)
	}
	return list
}

// counts counts the slots of each endpoint.
func counts(table []uint16, n int) []int {
	slots := make([]int, n)
	for _, i := range table {
		slots[i]++
	}
	return slots
}

func TestSize(t *testing.T) {
	before := 0
	for n := 1; n <= MaxSize+1; n++ {
		size := Size(n)
		if n > 1 && n <= 655 && size < 100*n || size > 205*n+500 || size > MaxSize || size < before {
			t.Errorf("%d endpoints: %d slots", n, size)
		}
		before = size
	}
	for _, c := range classes[1:] {
		for d := 2; d*d <= c.slots; d++ {
			if c.slots%d == 0 {
				t.Errorf("%d slots are no prime: %d divides them", c.slots, d)
			}
		}
	}
	for _, replicas := range []int{2, 3, 4, 8, 16, 32, 64, 128, 256} { // a rolling update with the usual quarter
		if few, many := replicas-replicas/4, replicas+(replicas+3)/4; Size(few) != Size(many) {
			t.Errorf("%d replicas: an update goes from %d slots to %d", replicas, Size(few), Size(many))
		}
	}
}

// TestTableIsEven: without weights, no endpoint has more than one slot more than another. At 100
// slots each that is a hundredth.
func TestTableIsEven(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, n := range []int{1, 2, 3, 5, 6, 10, 40, 80, 100, 320, 500, 655, 656, 5000} {
			slots := counts(Table(endpoints(n, six), nil), n)
			if least, most := slices.Min(slots), slices.Max(slots); most-least > 1 || least == 0 {
				t.Errorf("%d endpoints have %d to %d slots", n, least, most)
			}
		}
	}
}

// TestTableOfWeights: shares are off by less than a slot, and each endpoint has a slot.
func TestTableOfWeights(t *testing.T) {
	for _, weights := range [][]uint16{{1, 2, 7}, {7, 2, 1}, {1, 65535}, {65535, 65535, 1}, {3, 3, 3},
		{10, 20, 30, 40, 50, 60}, {1, 1, 1, 1, 996}} {
		table, sum := Table(endpoints(len(weights), false), weights), 0
		for _, w := range weights {
			sum += int(w)
		}
		slots := counts(table, len(weights))
		// the others pay for those
		off := 1.0 + float64(len(slices.DeleteFunc(slices.Clone(slots), func(n int) bool { return n > 1 })))
		for i, got := range slots {
			want := float64(len(table)) * float64(weights[i]) / float64(sum)
			if math.Abs(float64(got)-want) >= off || got == 0 {
				t.Errorf("weights %d: endpoint %d has %d slots of %d, want %.1f", weights, i, got, len(table), want)
			}
		}
	}
	if got, want := Table(endpoints(7, false), []uint16{5, 5, 5, 5, 5, 5, 5}), Table(endpoints(7, false),
		nil); !slices.Equal(got, want) {
		t.Error("equal weights make another table than none")
	}
	worst := make([]uint16, 60001) // one heavy endpoint among very many light ones
	for i := range worst {
		worst[i] = 1
	}
	worst[0] = 65535
	if slots := counts(Table(endpoints(60001, false), worst), len(worst)); slices.Min(slots) != 1 ||
		slots[0] < MaxSize-60000-100 {
		t.Errorf("a heavy endpoint among 60,000 has %d slots, the others at least %d", slots[0], slices.Min(slots))
	}
}

// TestEndpointLeaves: of 100 endpoints, whichever leaves, few clients of the others move, and all of
// its own are shared out. It is so at 100 slots each, too.
func TestEndpointLeaves(t *testing.T) {
	for _, c := range []struct {
		n    int
		most float64 // of the others' clients
	}{{3, 0.04}, {5, 0.04}, {10, 0.03}, {40, 0.03}, {100, 0.016}, {160, 0.02}, {500, 0.013}, {655, 0.013}} {
		all := endpoints(c.n, false)
		before := Table(all, nil)
		for gone := 0; gone < c.n; gone += max(1, c.n/25) {
			rest := slices.Delete(slices.Clone(all), gone, gone+1)
			if Size(len(rest)) != len(before) {
				t.Fatalf("%d endpoints: the size changes", c.n)
			}
			moved, others := 0, 0
			for slot, i := range Table(rest, nil) {
				if was := before[slot]; int(was) != gone {
					others++
					if all[was] != rest[i] {
						moved++
					}
				}
			}
			if share := float64(moved) / float64(others); share > c.most {
				t.Errorf("%d endpoints: %.2f%% of the others' clients move when endpoint %d leaves, want at most %.1f%%", c.n,
					100*share, gone, 100*c.most)
			}
		}
	}
}

// TestWeightChanges: a weight that rises takes slots from the others and hands few around among
// them.
func TestWeightChanges(t *testing.T) {
	all := endpoints(20, false)
	weights := slices.Repeat([]uint16{10}, 20)
	before := Table(all, weights)
	weights[7] = 20
	moved := 0
	for slot, i := range Table(all, weights) {
		if i != before[slot] && i != 7 {
			moved++
		}
	}
	if most := len(before) / 20; moved > most {
		t.Errorf("%d of %d slots move among endpoints whose weights stay, want at most %d", moved, len(before), most)
	}
}

// TestVectors pins tables: nodes of different versions have to agree. If this test fails, an
// upgrade moves clients and breaks connections that change nodes.
func TestVectors(t *testing.T) {
	for _, c := range []struct {
		n       int
		six     bool
		weights []uint16
		want    uint64
	}{
		{1, false, nil, 0x8328807b4eb6fed},
		{3, false, nil, 0xcbf84e7e188218e7},
		{3, true, nil, 0x4b1f2ca542f43357},
		{100, false, nil, 0x1dc3491d895e7dd},
		{100, true, nil, 0xb196c96f85afcc5},
		{3, false, []uint16{1, 2, 7}, 0x140881ef797d71e2},
	} {
		h := fnv.New64a()
		for _, i := range Table(endpoints(c.n, c.six), c.weights) {
			h.Write([]byte{byte(i >> 8), byte(i)})
		}
		if got := h.Sum64(); got != c.want {
			t.Errorf("%d endpoints, IPv6 %t, weights %d: the table is %#x, want %#x", c.n, c.six, c.weights, got, c.want)
		}
	}
}

func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		weights []uint16
		want    string
	}{
		{[]uint16{1, 2, 7}, "[1 2 7]"},
		{[]uint16{100, 200, 700}, "[1 2 7]"},
		{[]uint16{5, 5, 5}, "[1 1 1]"},
		{[]uint16{9}, "[1]"},
		{[]uint16{1, 65535}, "[1 127]"},
		{[]uint16{1, 1, 65535}, "[1 1 190]"},
		{[]uint16{1, 127}, "[1 127]"},
		{[]uint16{2, 127}, "[2 126]"},
		{nil, "[]"},
	} {
		if got := fmt.Sprint(Places(c.weights, PlacesEach(len(c.weights)))); got != c.want {
			t.Errorf("weights %d: %s, want %s", c.weights, got, c.want)
		}
	}
}

// TestPlacesAreRounded: who has a share of less than a place gets one, and the others share the rest by their weights,
// rounded to a place.
func TestPlacesAreRounded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		weights, each := make([]uint16, 1+random.IntN(20)), []int{FewPlacesEach, 64}[random.IntN(2)]
		for i := range weights {
			weights[i] = []uint16{1, uint16(1 + random.IntN(100)), uint16(1 + random.IntN(65535)), 65535}[random.IntN(4)]
		}
		places, all, sum := Places(weights, each), 0, 0.0
		for _, n := range places {
			all += n
		}
		left := float64(all)
		for i, n := range places {
			if n == 1 {
				left--
			} else {
				sum += float64(weights[i])
			}
		}
		for i, n := range places {
			want := float64(weights[i]) * left / sum
			if all > each*len(weights) || n < 1 || n > 1 && math.Abs(float64(n)-want) >= 1 {
				t.Fatalf("weights %d have %d of %d places: endpoint %d has %d, want about %.1f", weights, all, each*len(weights),
					i, n, want)
			}
		}
	}
}

// FuzzTable: every slot names an endpoint, every endpoint with room has one, and shares follow the
// weights.
func FuzzTable(f *testing.F) {
	f.Add([]byte{1, 2, 7}, false)
	f.Add([]byte{0, 255}, true)
	f.Fuzz(func(t *testing.T, bytes []byte, six bool) {
		if len(bytes) == 0 || len(bytes) > 1000 {
			return
		}
		weights := make([]uint16, len(bytes))
		for i, b := range bytes {
			weights[i] = uint16(b)<<8 | 1
		}
		n := len(weights)
		table := Table(endpoints(n, six), weights)
		slots := make([]int, n)
		for _, i := range table {
			if int(i) >= n {
				t.Fatalf("a slot names endpoint %d of %d", i, n)
			}
			slots[i]++
		}
		places := Places(weights, PlacesEach(n))
		for i := range n {
			if slots[i] == 0 || places[i] == 0 {
				t.Errorf("endpoint %d of weight %d has %d slots and %d places", i, weights[i], slots[i], places[i])
			}
			for j := range n {
				if weights[i] > weights[j] && (slots[i] < slots[j] || places[i] < places[j]) {
					t.Errorf("weights %d and %d have %d and %d slots, %d and %d places", weights[i], weights[j], slots[i], slots[j],
						places[i], places[j])
				}
			}
		}
	})
}

func BenchmarkTable(b *testing.B) {
	for _, n := range []int{5, 100, 500} {
		all := endpoints(n, false)
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) {
			for b.Loop() {
				Table(all, nil)
			}
		})
	}
}

// TestReassign: the slots of endpoints that are out go to the others in proportion to theirs, and no other slot moves.
func TestReassign(t *testing.T) {
	for _, tt := range []struct {
		n       int
		weights []uint16
		out     []uint16
	}{
		{3, nil, []uint16{1}}, {6, nil, []uint16{0, 3, 5}}, {4, []uint16{1, 2, 4, 1}, []uint16{3}},
		{200, nil, []uint16{17}},
	} {
		whole := Table(endpoints(tt.n, false), tt.weights)
		isOut := func(i uint16) bool { return slices.Contains(tt.out, i) }
		table := Reassign(slices.Clone(whole), isOut)
		before, now := make([]int, tt.n), make([]int, tt.n)
		left := 0
		for slot := range whole {
			before[whole[slot]]++
			now[table[slot]]++
			if isOut(whole[slot]) {
				left++
			} else if table[slot] != whole[slot] {
				t.Fatalf("%d endpoints: slot %d of %d moves to %d", tt.n, slot, whole[slot], table[slot])
			}
		}
		for i := range before {
			share := float64(left) * float64(before[i]) / float64(len(whole)-left)
			switch gained := float64(now[i] - before[i]); {
			case isOut(uint16(i)) && now[i] > 0:
				t.Errorf("%d endpoints: %d keeps %d slots", tt.n, i, now[i])
			case !isOut(uint16(i)) && math.Abs(gained-share) > 5*math.Sqrt(share)+1:
				t.Errorf("%d endpoints: %d gains %.0f slots, want about %.0f", tt.n, i, gained, share)
			}
		}
	}
}
