package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A refusedIP is a frontend that Service ports ask for in spec.externalIPs and that this node does not
// allow. The element names the first of them.
type refusedIP struct {
	claims  claims
	comment string // of the element; empty without one
}

// setRefusedIPs notes the refused external IPs of a Service port, which had those of shown; nil stands
// for a new one.
func (r *familyRules) setRefusedIPs(port *portState, shown *tracker.ServicePort) {
	p := port.current
	var before []netip.Addr
	if shown != nil {
		before = shown.RefusedExternalIPs
		if slices.Equal(before, p.RefusedExternalIPs) && shown.Port == p.Port && shown.UID == p.UID && shown.Created.Equal(p.Created) {
			return
		}
		if shown.Port != p.Port {
			for _, addr := range before {
				r.dropRefused(layout.RefusedFrontend(shown, addr), port)
			}
			before = nil
		}
	}
	gone := slices.DeleteFunc(slices.Clone(before), func(addr netip.Addr) bool {
		_, kept := slices.BinarySearchFunc(p.RefusedExternalIPs, addr, netip.Addr.Compare)
		return kept
	})
	r.dropRefusedIPs(port, gone)
	for _, addr := range p.RefusedExternalIPs {
		f := layout.RefusedFrontend(p, addr)
		if r.refused[f] == nil {
			r.refused[f] = new(refusedIP)
		}
		r.refused[f].claims.set(port, externalIP)
		r.showRefused(f)
	}
}

// dropRefusedIPs forgets that a Service port asks for refused addresses.
func (r *familyRules) dropRefusedIPs(port *portState, addrs []netip.Addr) {
	for _, addr := range addrs {
		r.dropRefused(layout.RefusedFrontend(port.current, addr), port)
	}
}

func (r *familyRules) dropRefused(f tracker.Frontend, port *portState) {
	r.refused[f].claims.drop(port)
	r.showRefused(f)
}

// showRefused makes the element of f name the first Service port that asks for it.
func (r *familyRules) showRefused(f tracker.Frontend) {
	state := r.refused[f]
	first := state.claims.first()
	switch {
	case first == nil:
		r.Remove(layout.RefusedExternalIPsSet, layout.FrontendKeyOf(f))
		delete(r.refused, f)
	case state.comment != first.port.comment:
		state.comment = first.port.comment
		r.Put(layout.RefusedExternalIPsSet, layout.FrontendKeyOf(f), nft.Element{Comment: state.comment})
	}
}
