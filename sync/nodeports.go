package sync

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// NodePortAddresses says at which addresses of the node its node ports are served. Make it
// with ParseNodePortAddresses; the zero value serves none.
type NodePortAddresses struct {
	entries  []string // as they were given
	primary  bool
	prefixes []netip.Prefix
	all      map[tracker.Family]bool
	loopback map[tracker.Family]bool // named by localhost, or by a prefix of loopback addresses
}

// ParseNodePortAddresses reads the entries of --nodeport-addresses: the keyword primary for
// the Node's own addresses, the keyword all, and CIDRs. No entry at all means primary; in a
// list without primary, a family without an entry is served at all addresses, as it is by
// a prefix of length 0. Loopback addresses, which the keyword localhost stands for, count as
// entries, but the ruleset does not serve them: see Localhost.
func ParseNodePortAddresses(entries []string) (NodePortAddresses, error) {
	a := NodePortAddresses{entries: slices.Clone(entries), all: make(map[tracker.Family]bool),
		loopback: make(map[tracker.Family]bool)}
	named := make(map[tracker.Family]bool)
	for _, entry := range entries {
		switch entry {
		case "primary":
			a.primary = true
		case "all":
			a.all[tracker.IPv4], a.all[tracker.IPv6] = true, true
		case "localhost":
			named[tracker.IPv4], named[tracker.IPv6] = true, true
			a.loopback[tracker.IPv4], a.loopback[tracker.IPv6] = true, true
		default:
			prefix, err := netip.ParsePrefix(entry)
			if err != nil {
				return a,
					fmt.Errorf("%q is neither a CIDR such as 192.168.0.0/24 nor one of the keywords primary, localhost and all", entry)
			}
			family := tracker.FamilyOf(prefix.Addr())
			named[family] = true
			if prefix.Bits() == 0 {
				a.all[family] = true
			}
			if prefix.Addr().IsLoopback() && (prefix.Addr().Is6() || prefix.Bits() >= 8) {
				a.loopback[family] = true
			}
			a.prefixes = append(a.prefixes, prefix.Masked())
		}
	}
	if len(entries) == 0 {
		a.primary = true
	}
	for _, family := range tracker.Families {
		if !a.primary && !named[family] {
			a.all[family] = true
		}
	}
	return a, nil
}

// All reports whether node ports of the family are served at every address but loopback.
func (a NodePortAddresses) All(family tracker.Family) bool { return a.all[family] }

// Localhost reports whether node ports of the family are to be served at the loopback address.
func (a NodePortAddresses) Localhost(family tracker.Family) bool { return a.loopback[family] }

// Primary reports whether node ports are served at the Node's own addresses.
func (a NodePortAddresses) Primary() bool { return a.primary }

// Follows reports whether the addresses of the node's interfaces matter.
func (a NodePortAddresses) Follows() bool { return len(a.prefixes) > 0 || len(a.all) > 0 }

// Select returns the addresses at which node ports are served, of families that are not
// served at all addresses. Node has the addresses of the Node object, local of interfaces.
func (a NodePortAddresses) Select(node, local []netip.Addr) []netip.Addr {
	var selected []netip.Addr
	if a.primary {
		selected = append(selected, node...)
	}
	for _, addr := range local {
		if !addr.IsLoopback() && slices.ContainsFunc(a.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			selected = append(selected, addr)
		}
	}
	selected = slices.DeleteFunc(selected, func(addr netip.Addr) bool { return a.all[tracker.FamilyOf(addr)] })
	slices.SortFunc(selected, netip.Addr.Compare)
	return slices.Compact(selected)
}

// Reached returns the addresses at which node ports are reached, whether the ruleset has
// to name them or not; sorted.
func (a NodePortAddresses) Reached(node, local []netip.Addr) []netip.Addr {
	reached := a.Select(node, local)
	for _, addr := range local {
		if a.all[tracker.FamilyOf(addr)] && !addr.IsLoopback() {
			reached = append(reached, addr)
		}
	}
	slices.SortFunc(reached, netip.Addr.Compare)
	return slices.Compact(reached)
}

// Keep returns the addresses of a Node whose object is missing: the known ones and, in families
// without one, those at which the tables serve node ports as a run before had them.
func (a NodePortAddresses) Keep(known []netip.Addr, tables nft.Tables) []netip.Addr {
	if !a.primary {
		return known
	}
	kept := slices.Clone(known)
	for _, addr := range readback.NodePortAddresses(tables) {
		sameFamily := func(other netip.Addr) bool { return tracker.FamilyOf(other) == tracker.FamilyOf(addr) }
		byCIDR := slices.ContainsFunc(a.prefixes, func(p netip.Prefix) bool { return p.Contains(addr) })
		if !byCIDR && !slices.ContainsFunc(known, sameFamily) {
			kept = append(kept, addr)
		}
	}
	return kept
}

// String shows the setting as it is given on the command line.
func (a NodePortAddresses) String() string {
	if len(a.entries) == 0 && a.primary {
		return "primary"
	}
	return strings.Join(a.entries, ",")
}

// nodePorts knows at which addresses node ports are reached.
type nodePorts struct {
	setting     NodePortAddresses
	node, local []netip.Addr // of the Node object, and of the node's interfaces
	reached     []netip.Addr // sorted; see NodePortAddresses.Reached
}

// update brings new addresses of the node into the ruleset, and reports whether that changed
// where node ports are reached.
func (n *nodePorts) update(r *services.Ruleset) (moved bool) {
	r.SetNodePortAddresses(n.setting.Select(n.node, n.local))
	before := n.reached
	n.reached = n.setting.Reached(n.node, n.local)
	r.ReportOverlaps(n.reached)
	return !slices.Equal(n.reached, before)
}
