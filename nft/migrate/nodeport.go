package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/tracker"
)

// NodePorts is what is known of node ports before a migration. Unless configured otherwise,
// kube-proxy's iptables mode serves them at all addresses of the node, localhost among them.
type NodePorts struct {
	Local   []netip.Addr // the addresses of the node's interfaces
	Reached []netip.Addr // the addresses at which kube-nft will serve node ports
	Setting string       // of --nodeport-addresses, for the message
	InUse   []Use        // translated connections to addresses of the node
}

// A Use is a connection, or several of them, to a node port.
type Use struct {
	Protocol tracker.Protocol
	Address  netip.AddrPort
}

// Checks says which addresses stop answering and who uses them now.
func (n *NodePorts) Checks() []Check {
	var lost []netip.Addr
	for _, addr := range n.Local {
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
	if len(lost) > 0 {
		c.Means += "; they stop answering, if they did, at " + join(lost)
	}
	counts := make(map[Use]int) // connections to addresses that stop answering
	for _, use := range n.InUse {
		if slices.Contains(lost, use.Address.Addr()) {
			counts[use]++
		}
	}
	var used []Check
	for use, count := range counts {
		remedy := fmt.Sprintf("--nodeport-addresses %s,%s", n.Setting, netip.PrefixFrom(use.Address.Addr(), use.Address.Addr().BitLen()))
		if use.Address.Addr().IsLoopback() {
			remedy = "--localhost-nodeports"
		}
		used = append(used, Check{
			Level: Warning, About: fmt.Sprintf("node port %s %s", use.Protocol, use.Address),
			Found: fmt.Sprintf("in use by %d connections now", count),
			Means: "they go on; new ones will not be answered at this address",
			Do:    "use another address, or " + remedy,
		})
	}
	slices.SortFunc(used, func(a, b Check) int { return strings.Compare(a.About, b.About) })
	return append([]Check{c}, used...)
}

// join lists addresses; of many, the first ones.
func join(addrs []netip.Addr) string {
	const shown = 8
	var list []string
	for _, addr := range addrs[:min(len(addrs), shown)] {
		list = append(list, addr.String())
	}
	if more := len(addrs) - shown; more > 0 {
		list = append(list, fmt.Sprintf("%d more", more))
	}
	return strings.Join(list, ", ")
}
