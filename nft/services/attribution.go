package services

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// Attribution says for whom an element, or with an empty key a set or chain, stands in a table:
// a Service, a port of it, or a part of the node's own configuration. For errors.
func (r *Ruleset) Attribution(f nft.Family, set, key string) string {
	family := r.families[f]
	if family == nil {
		return "base chains"
	}
	if g := family.rangesIn(set, key); g != nil {
		return "Service " + g.service
	}
	if id, ok := family.attributed(set, key); ok {
		return "Service " + id.String()
	}
	switch set {
	case layout.NodePortAddressesSet:
		return "node port addresses"
	case layout.ServiceCIDRsSet:
		return "Service CIDRs"
	}
	return "base chains"
}

// Attributed returns the Service that an element stands for, or with an empty key a set.
func (r *Ruleset) Attributed(f nft.Family, set, key string) (namespace, name string, ok bool) {
	family := r.families[f]
	if family == nil || set == "" {
		return "", "", false
	}
	if g := family.rangesIn(set, key); g != nil {
		return strings.Cut(g.service, "/")
	}
	id, ok := family.attributed(set, key)
	return id.Namespace, id.Service, ok
}

// Port returns what the ruleset holds of a Service port; nil if it holds nothing.
func (r *Ruleset) Port(id tracker.PortID) *tracker.ServicePort {
	if family := r.families[id.Family]; family != nil {
		if port := family.ports[id]; port != nil {
			return port.current
		}
	}
	return nil
}

// A PortChange is a Service port at the last commit and as it is wanted; nil for none.
type PortChange struct{ Before, After *tracker.ServicePort }

// PortChanges returns the Service ports that differ from what they were at the last commit.
func (r *Ruleset) PortChanges() map[tracker.PortID]PortChange {
	changes := make(map[tracker.PortID]PortChange)
	for _, family := range r.families {
		// A port that went and one that came with its ID are two: the one that went has Before.
		for _, port := range family.changedPorts {
			id := port.current.ID
			change := PortChange{changes[id].Before, r.Port(id)}
			if port.committed != nil {
				change.Before = port.committed
			}
			changes[id] = change
		}
	}
	maps.DeleteFunc(changes, func(_ tracker.PortID, c PortChange) bool { return c.Before == c.After })
	return changes
}

func (fr *familyRules) attributed(set, key string) (id tracker.PortID, ok bool) {
	if state := fr.frontends[layout.FrontendIn(fr.Table.Family, set, key)]; state != nil {
		return state.shown.id, true
	}
	for _, port := range fr.ports {
		if fr.uses(port, set, key) {
			return port.current.ID, true
		}
	}
	return id, false
}

// uses reports whether a Service port needs an element that several may share.
func (fr *familyRules) uses(port *portState, set, key string) bool {
	if number, ok := layout.NumberIn(fr.Table.Family, set, key); ok {
		return port.affinity.Uses(number)
	}
	if number, _, ok := layout.InList(set, key); ok {
		return port.listNumber() == number
	}
	switch set {
	case layout.ClusterIPsSet:
		return key == nft.AddrKey(port.current.ClusterIP)
	case layout.HairpinSet:
		return slices.ContainsFunc(port.onNode, func(ep netip.AddrPort) bool { return key == hairpin(ep.Addr()).key })
	}
	return false
}
