package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/tracker"
)

// overlaps finds the Services that have an address of this node as a load-balancer IP or external IP, with the port of
// another Service's node port. Packets meet the address first, so that the node port is not served there.
type overlaps struct {
	reached []netip.Addr // addresses at which node ports are reached
	// at has the addresses of reached at which a Service has the number of a node port, by the node port.
	at        map[tracker.Frontend]map[netip.Addr]struct{}
	touched   map[tracker.Frontend]struct{} // node ports whose owner, or that of such an address, has changed
	conflicts map[tracker.Frontend]Conflict // present ones, by the address
}

func newOverlaps() overlaps {
	return overlaps{
		at: make(map[tracker.Frontend]map[netip.Addr]struct{}), touched: make(map[tracker.Frontend]struct{}),
		conflicts: make(map[tracker.Frontend]Conflict),
	}
}

// reach sets the addresses at which node ports are reached, sorted.
func (o *overlaps) reach(fr *familyRules, addrs []netip.Addr) {
	if slices.Equal(o.reached, addrs) {
		return
	}
	before := o.conflicts
	*o = newOverlaps()
	o.reached = addrs
	for f, conflict := range before {
		if o.has(f.Address) {
			o.conflicts[f] = conflict
		}
	}
	for f := range fr.frontends {
		o.touch(f)
	}
}

// has reports whether node ports are reached at an address.
func (o *overlaps) has(addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(o.reached, addr, netip.Addr.Compare)
	return found
}

// touch records that a frontend has another owner from now on.
func (o *overlaps) touch(f tracker.Frontend) {
	port := tracker.NodePort(f.Family(), f.Protocol, f.Port)
	switch {
	case len(o.reached) == 0:
		return
	case f.NodePort():
	case !o.has(f.Address):
		return
	case o.at[port] == nil:
		o.at[port] = map[netip.Addr]struct{}{f.Address: {}}
	default:
		o.at[port][f.Address] = struct{}{}
	}
	o.touched[port] = struct{}{}
}

// update looks at what was touched, and returns the new conflicts.
func (o *overlaps) update(fr *familyRules) (fresh []Conflict) {
	for port := range o.touched {
		for addr := range o.at[port] {
			f := tracker.Frontend{Address: addr, Protocol: port.Protocol, Port: port.Port}
			if fr.frontends[f] == nil {
				delete(o.at[port], addr)
			}
			winner, loser := fr.frontends[f].served(), fr.frontends[port].served()
			if winner == nil || loser == nil || winner.ID.Namespace == loser.ID.Namespace &&
				winner.ID.Service == loser.ID.Service {
				delete(o.conflicts, f)
				continue
			}
			conflict := Conflict{f, winner.ID, loser.ID}
			if o.conflicts[f] != conflict {
				fresh = append(fresh, conflict)
			}
			o.conflicts[f] = conflict
		}
		if len(o.at[port]) == 0 {
			delete(o.at, port)
		}
	}
	if len(o.touched) > 0 { // a cleared map would keep the memory that a start has needed
		o.touched = make(map[tracker.Frontend]struct{})
	}
	return fresh
}

// served returns the Service port that is served at a frontend and keeps it; nil if there is none.
func (s *frontendState) served() *tracker.ServicePort {
	if s == nil {
		return nil
	}
	if first := s.claims.first(); first != nil && !first.givenUp {
		return first.port.current
	}
	return nil
}
