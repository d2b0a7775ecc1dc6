package tracker

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// A Frontend is a place where a Service port can be reached.
type Frontend struct {
	// Address is a cluster IP, a load-balancer IP or an external IP. The unspecified address
	// of a family (0.0.0.0, ::) stands for a node port: any of the node-port addresses.
	Address  netip.Addr
	Protocol Protocol
	Port     uint16
}

// NodePort returns the frontend of a node port.
func NodePort(family Family, protocol Protocol, port uint16) Frontend {
	address := netip.IPv4Unspecified()
	if family == IPv6 {
		address = netip.IPv6Unspecified()
	}
	return Frontend{Address: address, Protocol: protocol, Port: port}
}

// NodePort reports whether f is a node port.
func (f Frontend) NodePort() bool { return f.Address.IsUnspecified() }

// Family returns the family of f.
func (f Frontend) Family() Family { return FamilyOf(f.Address) }

// LookUp returns what find knows of the frontend that is reached at an address and port. As in the ruleset, a frontend
// at the address itself wins over a node port. nodePorts reports whether node ports are reached at an address.
func LookUp[T any](to netip.AddrPort, protocol Protocol, nodePorts func(netip.Addr) bool,
	find func(Frontend) (T, bool)) (found T, ok bool) {
	found, ok = find(Frontend{Address: to.Addr(), Protocol: protocol, Port: to.Port()})
	if !ok && nodePorts(to.Addr()) {
		found, ok = find(NodePort(FamilyOf(to.Addr()), protocol, to.Port()))
	}
	return found, ok
}

// String returns "address:port/protocol", or "node port number/protocol".
func (f Frontend) String() string {
	if f.NodePort() {
		return fmt.Sprintf("node port %d/%s", f.Port, f.Protocol)
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Address, f.Port), f.Protocol)
}

// Compare orders frontends by family, address, protocol and port; node ports come first in
// their family.
func (f Frontend) Compare(g Frontend) int {
	return cmp.Or(f.Address.Compare(g.Address), cmp.Compare(f.Protocol, g.Protocol), cmp.Compare(f.Port, g.Port))
}

// A FlowChange is what one commit, or several, changed at a frontend for connections under way to
// it.
type FlowChange struct {
	Frontend

	// Removed are endpoints that served the frontend before the commit and do not serve it any more,
	// on any node. Endpoints that only stop taking new connections do not belong to Removed. For a
	// frontend that is Gone, Removed holds all endpoints that served it since the last FlowChange:
	// they distinguish its flows from flows that another program translated. Of each Port there is one Served.
	Removed []Served

	// Gone says that the frontend no longer exists or has lost its last endpoint.
	Gone bool

	// Reset says that, from this commit on, connections of TCP and SCTP to endpoints that do not serve
	// the frontend are to end, whenever these endpoints left.
	Reset bool

	// Appeared says that the commit made the frontend, with or without endpoints, or gave it its first endpoint. Packets
	// sent before have left entries that keep later packets from being translated or refused.
	Appeared bool
}

// Then returns the joint meaning of c and a later change of the same frontend.
func (c FlowChange) Then(later FlowChange, known Memo) FlowChange {
	later.Appeared = later.Appeared || c.Appeared
	later.Reset = later.Reset || c.Reset
	if len(c.Removed) == 0 { // as nearly always, for each of up to 30,000 frontends of a Service
		return later
	}
	removed := slices.Clone(c.Removed)
	for _, more := range later.Removed {
		i := slices.IndexFunc(removed, func(s Served) bool { return s.Port == more.Port })
		if i < 0 {
			removed = append(removed, more)
		} else {
			earlier := removed[i].List
			removed[i].List = known.of(operands{MemoryOf(earlier), MemoryOf(more.List), true}, func() []netip.AddrPort {
				return union(earlier, more.List, netip.AddrPort.Compare)
			})
		}
	}
	later.Removed = removed
	return later
}
