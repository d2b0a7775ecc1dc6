package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/tracker"
)

// NodePorts is what is known of node ports before a migration. Unless configured otherwise,
// kube-proxy's iptables mode serves them at all addresses of the node, localhost among them.
type NodePorts struct {
	Local   []netip.Addr // the addresses of the node's interfaces
	Reached []netip.Addr // the addresses at which kube-nft will serve node ports
	Setting string       // of --nodeport-addresses, for the message
	InUse   []Use        // translated connections to addresses of the node
	// Taken has the TCP node ports at which a program of the node listens, with their Services.
	Taken map[uint16]string
	// Localhost says that the kernel routes 127.0.0.0/8: kube-proxy serves node ports there only then.
	Localhost bool
	// Served has the addresses at which kube-proxy serves node ports; see ServedBy.
	Served []netip.Addr
}

// A Use is a connection, or several of them, to a node port.
type Use struct {
	Protocol tracker.Protocol
	Address  netip.AddrPort
}

// ServedBy sets the addresses at which kube-proxy's rules serve node ports.
func (n *NodePorts) ServedBy(inv *legacy.Inventory) {
	for _, p := range inv.Parts {
		for _, family := range tracker.Families {
			ofFamily := func(f legacy.Frontend) bool { return f.NodePort() && f.Family() == family }
			if !slices.ContainsFunc(p.Frontends, ofFamily) {
				continue
			}
			for _, addr := range n.Local {
				switch {
				case tracker.FamilyOf(addr) != family:
				case addr == netip.IPv6Loopback(), addr.IsLoopback() && !n.Localhost: // the kernel routes neither
				case p.Everywhere, slices.Contains(p.NodePortsAt, addr):
					n.Served = append(n.Served, addr)
				}
			}
		}
	}
	slices.SortFunc(n.Served, netip.Addr.Compare)
	n.Served = slices.Compact(n.Served)
}

// Checks says which addresses stop answering and who uses them now.
func (n *NodePorts) Checks() []Check {
	var lost []netip.Addr
	for _, addr := range n.Served {
		if !slices.Contains(n.Reached, addr) && !addr.IsLinkLocalUnicast() {
			lost = append(lost, addr)
		}
	}
	c := Check{
		Level: OK, About: "node ports", Found: "will be served at " + join(n.Reached),
		Means: "the addresses of --nodeport-addresses " + n.Setting,
	}
	if len(n.Reached) == 0 {
		c.Level, c.Found = Note, "will be served at no address"
	}
	checks := []Check{c}
	if len(lost) > 0 {
		checks = append(checks, Check{
			Level: Warning, About: "node ports", Found: "kube-proxy serves them at " + join(lost) + " as well",
			Means: "new connections to these addresses will not be answered",
			Do:    "if clients use them, " + n.keep(lost),
		})
	}
	counts := make(map[Use]int) // connections to addresses that stop answering
	for _, use := range n.InUse {
		if slices.Contains(lost, use.Address.Addr()) {
			counts[use]++
		}
	}
	var used []Check
	for port, service := range n.Taken {
		used = append(used, Check{
			Level: Note, About: fmt.Sprintf("node port %s %d", tracker.TCP, port),
			Found: "a program on this node listens at this port as well (ss -ltnp shows it)",
			Means: "at the addresses above Service " + service + " answers, not the program, as with kube-proxy",
		})
	}
	for use, count := range counts {
		used = append(used, Check{
			Level: Warning, About: fmt.Sprintf("node port %s %s", use.Protocol, use.Address),
			Found: "in use by " + words.Plural(count, "connection") + " now",
			Means: "they go on; new ones will not be answered at this address",
			Do:    "use another address, or " + n.keep([]netip.Addr{use.Address.Addr()}),
		})
	}
	slices.SortFunc(used, func(a, b Check) int { return strings.Compare(a.About, b.About) })
	return append(checks, used...)
}

// keep names the settings that keep addresses.
func (n *NodePorts) keep(lost []netip.Addr) string {
	var flags []string
	outside := slices.DeleteFunc(slices.Clone(lost), netip.Addr.IsLoopback)
	switch {
	case len(outside) > shownAddresses:
		flags = append(flags, "--nodeport-addresses all")
	case len(outside) > 0:
		values := []string{n.Setting}
		for _, addr := range outside {
			values = append(values, netip.PrefixFrom(addr, addr.BitLen()).String())
		}
		flags = append(flags, "--nodeport-addresses "+strings.Join(values, ","))
	}
	if len(outside) < len(lost) {
		flags = append(flags, "--localhost-nodeports")
	}
	return strings.Join(flags, " and ")
}

// shownAddresses is how many addresses a message names.
const shownAddresses = 8

// join lists addresses; of many, the first ones.
func join(addrs []netip.Addr) string { return words.Some(addrs, shownAddresses, ", ") }
