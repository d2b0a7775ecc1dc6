package maglev

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// unmix undoes mix.
func unmix(x uint64) uint64 {
	x ^= x>>31 ^ x>>62
	x *= 0x319642b2d24d8ec3
	x ^= x>>27 ^ x>>54
	x *= 0x96de1b173f119089
	x ^= x>>30 ^ x>>60
	return x - 0x9e3779b97f4a7c15
}

// crafted are n sorted endpoints that all have the same way through a table of Size(n) slots: mix is easy
// to undo, so a tenant who chooses IPv6 addresses freely also chooses offsets, and finds skips by trying.
func crafted(n int) []netip.AddrPort {
	const port = 8080
	random, size := rand.New(rand.NewPCG(5, 6)), uint64(Size(n))
	target := unmix(12345*size) ^ port // hash(ep, 1) is a multiple of size
	first, second := mix(1), mix(2)
	var list []netip.AddrPort
	for len(list) < n {
		high := random.Uint64()
		low := unmix(target) ^ mix(first^high)
		if mix(mix(mix(second^high)^low)^port)%(size-1) != 7 {
			continue
		}
		var b [16]byte
		binary.BigEndian.PutUint64(b[:8], high)
		binary.BigEndian.PutUint64(b[8:], low)
		list = append(list, netip.AddrPortFrom(netip.AddrFrom16(b), port))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// TestCrafted: however endpoints were chosen, a table takes a bounded number of steps and is even.
func TestCrafted(t *testing.T) {
	list := crafted(500)
	if first, last := newWalk(list[0], MaxSize), newWalk(list[499], MaxSize); first != last {
		t.Fatalf("the ways are %+v and %+v: nothing was crafted", first, last)
	}
	list = append(list, endpoints(20, true)...)
	slices.SortFunc(list, netip.AddrPort.Compare)
	slots := counts(Table(list, nil), len(list))
	if least, most := slices.Min(slots), slices.Max(slots); most-least > 1 {
		t.Errorf("endpoints have %d to %d slots", least, most)
	}
	slow, quick := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			Table(list, nil)
		}
	}), testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			Table(endpoints(520, true), nil)
		}
	})
	if ratio := float64(slow.NsPerOp()) / float64(quick.NsPerOp()); ratio > 10 { // 23 without a bound
		t.Errorf("crafted endpoints take %.1f times as long as others", ratio)
	}
}

// TestUsualTablesStayWithinSteps: the bound is for crafted endpoints alone.
func TestUsualTablesStayWithinSteps(t *testing.T) {
	for _, n := range []int{2, 3, 5, 10, 40, 80, 160, 320, 321, 1000, 5000, 30000} {
		list := endpoints(n, false)
		f := filling{table: slices.Repeat([]uint16{free}, Size(n)), steps: stepsEach * Size(n)}
		walks := make([]walk, n)
		for i, ep := range list {
			walks[i] = newWalk(ep, uint32(Size(n)))
		}
		for i := range f.table {
			f.table[f.next(&walks[i%n])] = 0
		}
		if f.steps < stepsEach*Size(n)/2 {
			t.Errorf("%d endpoints: %d of %d steps are left", n, f.steps, stepsEach*Size(n))
		}
	}
}

func BenchmarkCrafted(b *testing.B) {
	for _, n := range []int{500, 1000, 5000} {
		list := crafted(n)
		b.Run("crafted", func(b *testing.B) {
			for b.Loop() {
				Table(list, nil)
			}
		})
		friendly := endpoints(n, true)
		b.Run("friendly", func(b *testing.B) {
			for b.Loop() {
				Table(friendly, nil)
			}
		})
	}
}
