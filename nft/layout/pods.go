package layout

import (
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
)

// A PodMatch says how a packet is recognised as coming from a pod. The zero value stands
// for no detection. Exactly one of CIDR and Interface is set otherwise.
type PodMatch struct {
	CIDR      netip.Prefix // by source address
	Interface string       // by the interface it arrived on
	Prefix    bool         // Interface is only how the name begins
}

// None reports whether there is no way to recognise pods.
func (m PodMatch) None() bool { return !m.CIDR.IsValid() && m.Interface == "" }

// Stmt matches pods, or with not all other clients.
func (m PodMatch) Stmt(not bool) nft.Stmt {
	if m.Interface != "" {
		return nft.InputInterface{Name: m.Interface, Prefix: m.Prefix, Not: not}
	}
	return nft.AddressIn{Of: nft.Source, Prefix: m.CIDR, Not: not}
}
