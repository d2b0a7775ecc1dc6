package migrate

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/tracker"
)

// NodePorts is what is known of node ports before a migration. kube-proxy's iptables mode
// serves them at all addresses of the node, localhost among them, unless told otherwise.
type NodePorts struct {
	Local   []netip.Addr // the addresses of the node's interfaces
	Reached []netip.Addr // those at which kube-nft will serve node ports
	Setting string       // of --nodeport-addresses, for the message
	InUse   []Use        // translated connections to addresses of the node
}

// A Use is a connection, or several of them, to a node port.
type Use struct {
	Protocol tracker.Protocol
	Address  netip.AddrPort
}

// Checks says which addresses stop answering and who uses them at the moment.
func (n *NodePorts) Checks() []Check {
	lost := n.lost()
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
	return append([]Check{c}, n.used(lost)...)
}

// lost returns the addresses at which node ports are not going to be served.
func (n *NodePorts) lost() (lost []netip.Addr) {
	for _, addr := range n.Local {
		if !slices.Contains(n.Reached, addr) && !addr.IsLinkLocalUnicast() {
			lost = append(lost, addr)
		}
	}
	return lost
}

// used counts the connections to addresses that stop answering, one check for each port.
func (n *NodePorts) used(lost []netip.Addr) (checks []Check) {
	counts := make(map[Use]int)
	for _, use := range n.InUse {
		if slices.Contains(lost, use.Address.Addr()) {
			counts[use]++
		}
	}
	for use, count := range counts {
		checks = append(checks, Check{
			Level: Warning, About: fmt.Sprintf("node port %s %s", use.Protocol, use.Address),
			Found: fmt.Sprintf("in use by %d connections now", count),
			Means: "they go on; new ones will not be answered at this address",
			Do:    n.remedy(use.Address.Addr()),
		})
	}
	slices.SortFunc(checks, func(a, b Check) int { return strings.Compare(a.About, b.About) })
	return checks
}

// remedy says how a node port can be used that is not served at addr. Those at loopback
// addresses are asked for in another way.
func (n *NodePorts) remedy(addr netip.Addr) string {
	if addr.IsLoopback() {
		return "use another address, or --localhost-nodeports"
	}
	return fmt.Sprintf("use another address, or --nodeport-addresses %s,%s", n.Setting, netip.PrefixFrom(addr, addr.BitLen()))
}

// join lists addresses, or the first of many.
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
