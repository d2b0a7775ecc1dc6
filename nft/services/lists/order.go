package lists

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/tracker"
)

// keep returns the endpoints of want in an order that changes as little as possible of
// have, which is an order of before: those that stay keep their index, new ones take the free
// indexes, and only then do the last ones move into the holes that are left.
func keep(have, before, want []netip.AddrPort) []netip.AddrPort {
	if len(have) == 0 {
		return want
	}
	gone, come := tracker.Difference(before, want, netip.AddrPort.Compare)
	if len(gone)+len(come) == 0 {
		return have
	}
	list := make([]netip.AddrPort, len(have), len(have)+max(0, len(come)-len(gone)))
	copy(list, have)
	holes := indexes(list, gone)
	filled := min(len(holes), len(come))
	for i, hole := range holes[:filled] {
		list[hole] = come[i]
	}
	return fill(append(list, come[filled:]...), holes[filled:])
}

// indexes returns where in list the endpoints of some are, in order. some is sorted.
func indexes(list, some []netip.AddrPort) []int {
	found := make([]int, 0, len(some))
	if len(some) == 1 {
		return append(found, slices.Index(list, some[0]))
	}
	for i := 0; len(found) < len(some); i++ {
		if _, ok := slices.BinarySearchFunc(some, list[i], netip.AddrPort.Compare); ok {
			found = append(found, i)
		}
	}
	return found
}

// keepFound is keep for a list that was found in the kernel, where it may have become
// anything: one that names an endpoint twice is no order to keep.
func keepFound(have, want []netip.AddrPort) []netip.AddrPort {
	before := slices.SortedFunc(slices.Values(have), netip.AddrPort.Compare)
	if len(slices.Compact(before)) < len(have) {
		return want
	}
	return keep(have, before, want)
}

// fill closes the holes of a list with its last entries.
func fill(list []netip.AddrPort, holes []int) []netip.AddrPort {
	for len(holes) > 0 {
		last := len(list) - 1
		if holes[len(holes)-1] == last {
			holes = holes[:len(holes)-1]
		} else {
			list[holes[0]], holes = list[last], holes[1:]
		}
		list = list[:last]
	}
	return list
}

// spread gives the endpoints of want, which is sorted, as many places as each is to have. What is in
// order in have stays where it is.
func spread(have, want []netip.AddrPort, due []int) []netip.AddrPort {
	n := 0
	for _, places := range due {
		n += places
	}
	list := make([]netip.AddrPort, n)
	for i := range min(n, len(have)) {
		if j, ok := slices.BinarySearchFunc(want, have[i], netip.AddrPort.Compare); ok && due[j] > 0 {
			list[i] = have[i]
			due[j]--
		}
	}
	j := 0
	for i := range list {
		if list[i].IsValid() {
			continue
		}
		for due[j] == 0 {
			j++
		}
		list[i] = want[j]
		due[j]--
	}
	return list
}
