package nft

import (
	"net/netip"
	"slices"
)

// reorder returns the endpoints of want, which is sorted, in an order that changes as little
// as possible of have: those that stay keep their index, new ones take the free indexes, and
// only then do the last ones move into the holes that are left.
func reorder(have, want []netip.AddrPort) []netip.AddrPort {
	if len(have) == 0 {
		return want
	}
	list := make([]netip.AddrPort, len(have), max(len(have), len(want)))
	copy(list, have)
	kept := make([]bool, len(want))
	var holes []int
	for i, ep := range have {
		j, wanted := slices.BinarySearchFunc(want, ep, netip.AddrPort.Compare)
		if !wanted || kept[j] {
			holes = append(holes, i)
			continue
		}
		kept[j] = true
	}
	for j, ep := range want {
		switch {
		case kept[j]:
		case len(holes) > 0:
			list[holes[0]], holes = ep, holes[1:]
		default:
			list = append(list, ep)
		}
	}
	return fill(list, holes)
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
