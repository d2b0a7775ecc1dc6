// Package maglev computes the slot tables of consistent hashing. Call Table with the sorted endpoints of a
// Service port and their weights; slot hash(client) % Size(n) of the result has the index of the client's
// endpoint. The algorithm is that of Eisenbud et al., "Maglev: A Fast and Reliable Software Network Load
// Balancer", NSDI 2016, section 3.4.
//
// A table has a prime number of slots. Every endpoint has its own permutation of all slots, and the
// endpoints take turns: each takes the first slot of its permutation that is still free, until all slots
// are taken. So endpoints get nearly the same number of slots, and when an endpoint is removed, nearly all
// slots of the others stay the same.
//
// A table depends only on its endpoints and their weights. Every node and every version must compute the
// same table, or a connection that moves to another node is lost. Any change here that changes a table
// moves clients while nodes are upgraded (TestVectors).
package maglev

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// MaxSize is the number of slots of the largest table, a prime: an index of a slot and of an
// endpoint fit into 16 bits.
const MaxSize = 65521

// classes are the sizes of tables, each with the largest number of endpoints that it is for. They
// double from one to the next, so that an endpoint has 100 to 200 slots, up to 655
// endpoints; the first class and the last have more. A change of the size moves nearly all clients,
// so it has to be rare, but a node that has just started knows no history: the size depends only on
// the number of endpoints. The bounds are 5 times powers of two. With the usual numbers of replicas,
// 2, 3, 4, 8, 16, 32 and so on, a rolling update that adds or removes a quarter stays in the class. A
// single endpoint needs no table.
var classes = [...]struct{ endpoints, slots int }{
	{1, 1}, {5, 503}, {10, 1009}, {20, 2003}, {40, 4001}, {80, 8009}, {160, 16001}, {320, 32003}, {MaxSize, MaxSize},
}

// Size returns the number of slots of a table of n endpoints.
func Size(n int) int {
	for _, c := range classes {
		if n <= c.endpoints {
			return c.slots
		}
	}
	return MaxSize
}

// Sizes returns the numbers of slots that tables have, from the smallest to the largest.
func Sizes() (sizes []int) {
	for _, c := range classes {
		sizes = append(sizes, c.slots)
	}
	return sizes
}

// Table returns the slot table of endpoints, which are sorted and distinct: for each slot the index
// of its endpoint. Endpoints get slots in proportion to the weights, which are at least 1; nil means
// equal weights. A share is off by less than one slot, but every endpoint has at least one slot.
// Endpoints after the first MaxSize get none. There is at least one endpoint.
func Table(endpoints []netip.AddrPort, weights []uint16) []uint16 {
	endpoints = endpoints[:min(len(endpoints), MaxSize)]
	n, size := len(endpoints), Size(len(endpoints))
	table := slices.Repeat([]uint16{free}, size)
	f := filling{table: table, steps: stepsEach * size}
	walks := make([]walk, n)
	for i, ep := range endpoints {
		walks[i] = newWalk(ep, uint32(size))
	}
	quotas := quotas(n, weights, size)
	// In each round an endpoint takes a part of its quota; with equal weights that is one slot.
	rounds := (size + n - 1) / n
	for round := 1; round <= rounds; round++ {
		for i := range walks {
			w, due := &walks[i], int(int64(quotas[i])*int64(round)/int64(rounds))
			for ; w.taken < due; w.taken++ {
				table[f.next(w)] = uint16(i)
			}
		}
	}
	return table
}

// Reassign gives each slot of a table whose endpoint is out to another endpoint, in proportion to the slots that the
// others have. All other slots stay. At least one endpoint is not out.
func Reassign(table []uint16, out func(endpoint uint16) bool) []uint16 {
	whole := slices.Clone(table)
	for slot, endpoint := range whole {
		if !out(endpoint) {
			continue
		}
		at := int(mix(uint64(slot)) % uint64(len(whole)))
		for out(whole[at]) {
			at = (at + 1) % len(whole)
		}
		table[slot] = whole[at]
	}
	return table
}

// free marks a slot without an endpoint.
const free = 1<<16 - 1

// stepsEach limits the steps over taken slots, on average for each slot of a table. Filling usually needs
// the logarithm of the size, 6 for 503 slots and 11 for 65,521. An attacker who chooses addresses can give
// thousands of endpoints the same permutation. Without the limit, each of them would then step over all
// slots that the others have taken, up to 65,521.
const stepsEach = 32

// A filling finds free slots.
type filling struct {
	table []uint16
	steps int
	after []uint32 // for taken slots: where to continue the search for the nearest free slot after them
}

// next returns the next free slot of a permutation. When all steps are used up, it returns the nearest free slot
// after the current one. Each node finds the same slot, so shares stay even; more clients move when an endpoint is
// removed.
func (f *filling) next(w *walk) uint32 {
	at, steps, size := w.at, f.steps, uint32(len(f.table))
	for ; f.table[at] != free && steps > 0; steps-- {
		at += w.skip - size
		at += size & uint32(int32(at)>>31) // a branch would be mispredicted every other time
	}
	if w.at, f.steps = at, steps; f.table[at] != free {
		return f.nearest(at)
	}
	return at
}

// nearest returns the nearest free slot after a taken one, and shortens the path for later searches.
func (f *filling) nearest(from uint32) uint32 {
	if f.after == nil {
		f.after = make([]uint32, len(f.table))
		for i := range f.after {
			f.after[i] = uint32((i + 1) % len(f.table))
		}
	}
	end := from
	for f.table[end] != free {
		end = f.after[end]
	}
	for f.table[from] != free {
		from, f.after[from] = f.after[from], end
	}
	return end
}

// A walk is an endpoint's way through its permutation of the slots: from an offset on, by a skip
// that has no divisor in common with the prime size.
type walk struct {
	at, skip uint32
	taken    int // slots that the endpoint has
}

func newWalk(ep netip.AddrPort, size uint32) walk {
	if size == 1 {
		return walk{}
	}
	return walk{at: uint32(hash(ep, 1) % uint64(size)), skip: uint32(hash(ep, 2)%uint64(size-1)) + 1}
}

// hash is a number that follows from an endpoint. Equal bits of addresses, as those of one network,
// make no difference to how numbers are spread.
func hash(ep netip.AddrPort, seed uint64) uint64 {
	addr := ep.Addr().As16()
	x := mix(seed)
	x = mix(x ^ binary.BigEndian.Uint64(addr[:8]))
	x = mix(x ^ binary.BigEndian.Uint64(addr[8:]))
	return mix(x ^ uint64(ep.Port()))
}

// mix is a permutation of 64-bit numbers in which each bit of x changes half of the bits: the output
// function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// quotas shares places out among n endpoints in proportion to their weights, by the largest
// remainder; each gets one at least, and nil weights are equal. Of equal remainders the first
// endpoints have the advantage. There are at least n places.
func quotas(n int, weights []uint16, places int) []int {
	quotas, order := make([]int, n), make([]int, n)
	sum, left := uint64(n), uint64(places)
	weight := func(i int) uint64 {
		if weights == nil {
			return 1
		}
		return uint64(weights[i])
	}
	for i := range order {
		order[i] = i
	}
	if weights != nil {
		sum = 0
		for i := range n {
			sum += weight(i)
		}
		slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(weight(i), weight(j)) })
	}
	// Whose share is less than a place gets one; the others share what that leaves.
	for len(order) > 0 && weight(order[0])*left < sum {
		quotas[order[0]] = 1
		left, sum, order = left-1, sum-weight(order[0]), order[1:]
	}
	given := uint64(0)
	for _, i := range order {
		quotas[i] = int(weight(i) * left / sum)
		given += uint64(quotas[i])
	}
	slices.SortFunc(order, func(i, j int) int {
		return cmp.Or(cmp.Compare(weight(j)*left%sum, weight(i)*left%sum), cmp.Compare(i, j))
	})
	for _, i := range order[:left-given] {
		quotas[i]++
	}
	return quotas
}

// FewPlacesEach bounds the places of Places where places are scarce, as many for each endpoint.
const FewPlacesEach = 4

// PlacesEach is the usual bound for n endpoints. Of a long list it leaves 2,048: a change of weights
// replaces all of them at most, and is one commit.
func PlacesEach(n int) int { return max(FewPlacesEach, min(64, 2048/max(n, 1))) }

// Places returns how often each endpoint has to stand in a list of which every place is equally
// likely, so that it is chosen in proportion to its weight: at least once. The lists are as short as
// exactness allows, and at most each times as long as the endpoints are many: then shares are rounded to a
// place, which is 1/each of an equal share, and the others pay for those of less than one place. weights
// are at least 1.
func Places(weights []uint16, each int) []int {
	var divisor, sum uint
	for _, w := range weights {
		divisor = gcd(divisor, uint(w))
		sum += uint(w)
	}
	if most := uint(each * len(weights)); divisor != 0 && sum/divisor > most {
		return quotas(len(weights), weights, int(most))
	}
	places := make([]int, len(weights))
	for i, w := range weights {
		places[i] = int(uint(w) / divisor)
	}
	return places
}

// gcd is the greatest common divisor of a and b; gcd(0, b) is b.
func gcd(a, b uint) uint {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
