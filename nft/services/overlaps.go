package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/tracker"
)

// overlaps finds the Services that have an address of this node as a load-balancer IP or external IP, with the port of
// another Service's node port. Packets meet the address first, so that the node port is not served there.
type overlaps struct {
	reached   []netip.Addr                  // addresses at which node ports are reached
	touched   map[tracker.Frontend]struct{} // node ports that were programmed at the address or at the port
	conflicts map[tracker.Frontend]Conflict // present ones, by the address
}

// reach sets the addresses at which node ports are reached.
func (o *overlaps) reach(r *familyRules, addrs []netip.Addr) {
	if slices.Equal(o.reached, addrs) {
		return
	}
	for f, conflict := range o.conflicts {
		if !slices.Contains(addrs, f.Address) {
			delete(o.conflicts, conflict.Frontend)
		}
	}
	o.reached = addrs
	for f := range r.frontends {
		o.touch(f)
	}
}

// touch notes that a frontend is served in another way from now on.
func (o *overlaps) touch(f tracker.Frontend) {
	_, atNode := slices.BinarySearchFunc(o.reached, f.Address, netip.Addr.Compare)
	if len(o.reached) > 0 && f.NodePort() || atNode {
		o.touched[tracker.NodePort(tracker.FamilyOf(f.Address), f.Protocol, f.Port)] = struct{}{}
	}
}

// update looks at what was touched, and returns the new conflicts.
func (o *overlaps) update(r *familyRules) (fresh []Conflict) {
	for port := range o.touched {
		for _, addr := range o.reached {
			f := tracker.Frontend{Address: addr, Protocol: port.Protocol, Port: port.Port}
			winner, loser := r.frontends[f].served(), r.frontends[port].served()
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
