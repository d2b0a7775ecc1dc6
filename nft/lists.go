package nft

import "net/netip"

// reorder returns the endpoints of want in an order that changes as little as possible of
// have: those that stay keep their index, new ones take the free indexes, and only then do
// the last ones move into the holes that are left.
func reorder(have, want []netip.AddrPort) []netip.AddrPort {
	missing := make(map[netip.AddrPort]bool, len(want))
	for _, ep := range want {
		missing[ep] = true
	}
	list := make([]netip.AddrPort, 0, max(len(have), len(want)))
	var holes []int
	for i, ep := range have {
		list = append(list, ep)
		if !missing[ep] {
			holes = append(holes, i)
		}
		delete(missing, ep)
	}
	for _, ep := range want {
		switch {
		case !missing[ep]:
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
