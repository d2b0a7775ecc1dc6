package tracker

import (
	"net/netip"
	"slices"
)

// Endpoints returns one of the lists of p, or a part of it, with the ports of the endpoints: the list itself if it has
// them.
func (p *ServicePort) Endpoints(list []netip.AddrPort) []netip.AddrPort {
	return withPort(list, p.TargetPort)
}

// withPort returns a list whose endpoints have this port; with 0, the list itself.
func withPort(list []netip.AddrPort, port uint16) []netip.AddrPort {
	if port == 0 || list == nil {
		return list
	}
	all := make([]netip.AddrPort, len(list))
	for i, ep := range list {
		all[i] = netip.AddrPortFrom(ep.Addr(), port)
	}
	return all
}

// Served are the endpoints that may go on serving connections to a frontend. The zero value has none. Ports of a
// Service share its memory.
type Served struct {
	list []netip.AddrPort // sorted
	port uint16           // as ServicePort.TargetPort
}

// Served returns the endpoints of p.Serving.
func (p *ServicePort) Served() Served { return Served{p.Serving, p.TargetPort} }

// Len is their number.
func (s Served) Len() int { return len(s.list) }

// All lists them, sorted.
func (s Served) All() []netip.AddrPort { return withPort(s.list, s.port) }

// Has reports whether an endpoint is one of them.
func (s Served) Has(ep netip.AddrPort) bool {
	if s.port != 0 {
		if ep.Port() != s.port {
			return false
		}
		ep = netip.AddrPortFrom(ep.Addr(), 0)
	}
	_, found := slices.BinarySearchFunc(s.list, ep, netip.AddrPort.Compare)
	return found
}

// Equal reports whether both have the same endpoints. It may say no if only one of them stands for endpoints that
// share a port.
func (s Served) Equal(o Served) bool { return s.port == o.port && sameEndpoints(s.list, o.list) }

// Without lists those that o does not have, sorted.
func (s Served) Without(o Served) (missing []netip.AddrPort) {
	other := o.list
	for _, ep := range s.list {
		if s.port == o.port {
			for len(other) > 0 && other[0] != ep && other[0].Compare(ep) < 0 {
				other = other[1:]
			}
			if len(other) > 0 && other[0] == ep {
				other = other[1:]
				continue
			}
		}
		if s.port != 0 {
			ep = netip.AddrPortFrom(ep.Addr(), s.port)
		}
		if s.port == o.port || !o.Has(ep) {
			missing = append(missing, ep)
		}
	}
	return missing
}

// sameEndpoints reports whether two lists are equal. Mostly they are one list.
func sameEndpoints(a, b []netip.AddrPort) bool { return sameMemory(a, b) || slices.Equal(a, b) }

// sameMemory reports whether two lists are one.
func sameMemory(a, b []netip.AddrPort) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// endpointLists are the lists of endpoints of p.
func (p *ServicePort) endpointLists() [4]*[]netip.AddrPort {
	return [...]*[]netip.AddrPort{&p.Cluster, &p.Serving, &p.Local, &p.OnNode}
}

// reuse gives the lists of want the memory of equal ones that Take has handed out before: ports that change one by one
// must not each get lists of their own. Both are sorted by ID.
func reuse(have, want []*ServicePort) {
	if len(want) < 2 {
		return
	}
	type pair struct{ have, want *netip.AddrPort }
	compared, known := make(map[pair]bool), make(map[*netip.AddrPort][]netip.AddrPort)
	var last [4]pair // of the four lists
	eachPair(have, want, byID, func(h, w *ServicePort) {
		if h == nil || w == nil {
			return
		}
		for i, list := range w.endpointLists() {
			old := *h.endpointLists()[i]
			if len(old) == 0 || len(old) != len(*list) {
				continue
			}
			between := pair{&old[0], &(*list)[0]}
			if between == last[i] {
				continue
			}
			if known[between.want] == nil && !compared[between] && slices.Equal(old, *list) {
				known[between.want] = old
			}
			compared[between], last[i] = true, between
		}
	})
	if len(known) == 0 {
		return
	}
	for _, w := range want {
		for _, list := range w.endpointLists() {
			if len(*list) == 0 {
				continue
			}
			if old := known[&(*list)[0]]; len(old) == len(*list) {
				*list = old
			}
		}
	}
}
