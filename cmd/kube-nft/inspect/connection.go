package inspect

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
)

// A connection is the argument of explain, as on the command line. What it names, resolve turns into
// addresses.
type connection struct {
	source      netip.Addr // the zero Addr stands for this node
	sourcePort  uint16     // 0: not given
	destination netip.Addr
	port        uint16 // 0 for ICMP
	protocol    uint8
	names       names
	iface       string // where it arrives
	from        string // pod, node, outside, or empty to go by the source address
}

// Values of --from.
const (
	fromPod     = "pod"
	fromNode    = "node"
	fromOutside = "outside"
)

// explainedProtocols are the protocols that explain accepts; with IPv6, icmp has another number.
var explainedProtocols = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP,
	"sctp": unix.IPPROTO_SCTP, "icmp": unix.IPPROTO_ICMP}

// parseConnection reads SRC and ADDR:PORT/PROTO, with or without an arrow.
func parseConnection(args []string) (c connection, err error) {
	words := strings.FieldsFunc(strings.Join(args, " "), func(r rune) bool { return r == ' ' || r == '→' || r == '>' })
	words = slices.DeleteFunc(words, func(word string) bool { return word == "-" })
	if len(words) != 2 {
		return c,
			config.Usagef("explain: expected SRC and DEST, such as 10.244.0.9 10.96.0.10:80/tcp or 10.244.0.9 shop/web:http")
	}
	if source := strings.TrimSuffix(words[0], "-"); source != fromNode {
		addr, ok := parseAddress(source)
		if ep, err := netip.ParseAddrPort(source); !ok && err == nil && ep.Port() != 0 && ep.Addr().Zone() == "" {
			addr, c.sourcePort, ok = ep.Addr().Unmap(), ep.Port(), true
		}
		if !ok && !isNodeName(source) {
			return c, config.Usagef("source %q: expected an IP address, the name of a Node, or node", source)
		}
		if c.source = addr; !ok {
			c.names.source = source
		}
	}
	if err := c.parseDestination(words[1]); err != nil {
		return c, err
	}
	if c.sourcePort != 0 && c.port == 0 && c.destination.IsValid() {
		return c, config.Usagef("source %s: icmp has no port", netip.AddrPortFrom(c.source, c.sourcePort))
	}
	if c.source.IsValid() && c.destination.IsValid() && c.source.Is4() != c.destination.Is4() {
		return c, config.Usagef("explain: %s and %s are of different IP families", c.source, c.destination)
	}
	return c, nil
}

// parseAddress reads an IPv4 address in every spelling as IPv4, and refuses a zone.
func parseAddress(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return addr.Unmap(), err == nil && addr.Zone() == ""
}

// parseClient reads --source; without it, it returns the zero Prefix.
func parseClient(source string) (netip.Prefix, error) {
	if source == "" {
		return netip.Prefix{}, nil
	}
	if prefix, err := netip.ParsePrefix(source); err == nil {
		return prefix, nil
	}
	addr, ok := parseAddress(source)
	if !ok {
		return netip.Prefix{}, config.Usagef("--source %q: expected an IP address or a CIDR", source)
	}
	return addr.Prefix(addr.BitLen())
}

func (c *connection) parseDestination(text string) error {
	if s, ok := parseService(text); ok {
		c.names.service, c.protocol = s, explainedProtocols[s.protocol]
		return nil
	}
	target, protocol, found := strings.Cut(text, "/")
	number, known := explainedProtocols[strings.ToLower(protocol)]
	switch {
	case !found:
		return config.Usagef("destination %q: expected a protocol at its end: tcp, udp, sctp or icmp, such as "+
			"10.96.0.10:80/tcp", text)
	case !known:
		return config.Usagef("protocol %q: expected tcp, udp, sctp or icmp", protocol)
	}
	c.protocol = number
	if number == unix.IPPROTO_ICMP {
		addr, ok := parseAddress(target)
		if !ok && isNodeName(target) {
			c.names.destination = target
			return nil
		}
		if !ok {
			return config.Usagef("destination %q: %q is not an IP address; icmp has no port", text, target)
		}
		if c.destination = addr; addr.Is6() {
			c.protocol = unix.IPPROTO_ICMPV6
		}
		return nil
	}
	at := strings.LastIndexByte(target, ':')
	if at < 0 || strings.Count(target, ":") > 1 && !strings.HasPrefix(target, "[") {
		return config.Usagef("destination %q: expected ADDR:PORT/PROTO, such as 10.96.0.10:80/tcp or [fd96::10]:80/tcp", text)
	}
	addr, ok := parseAddress(target[:at])
	switch {
	case !ok && isNodeName(target[:at]):
		c.names.destination = target[:at]
	case !ok:
		return config.Usagef("destination %q: %q is not an IP address", text, target[:at])
	}
	port, err := strconv.ParseUint(target[at+1:], 10, 16)
	if err != nil || port == 0 {
		return config.Usagef("destination %q: %q is not a port, 1 to 65535", text, target[at+1:])
	}
	c.destination, c.port = addr, uint16(port)
	return nil
}

// fromHere reports whether this node is the source.
func (c *connection) fromHere() bool { return !c.source.IsValid() && c.names.source == "" }

// check compares the flags with each other and with the addresses.
func (c *connection) check() error {
	switch {
	case !slices.Contains([]string{"", fromPod, fromNode, fromOutside}, c.from):
		return config.Usagef("--from %s: expected pod, node or outside", c.from)
	case len(c.iface) > 15:
		return config.Usagef("--interface %s: the name of an interface has at most 15 bytes", c.iface)
	case c.iface != "" && (c.from == fromNode || c.fromHere()):
		return config.Usagef("--interface %s: packets that this node sends arrive on no interface", c.iface)
	case c.fromHere() && c.from != "" && c.from != fromNode:
		return config.Usagef("--from %s: expected the address of the source instead of node", c.from)
	}
	return nil
}

func (c *connection) family() nft.Family {
	if c.destination.Is6() {
		return nft.IP6
	}
	return nft.IP
}

// A host is the node of the packet.
type host struct {
	addresses []netip.Addr // loopback left out
	// route returns the address from which the node sends; nil takes the first one of the family.
	route func(netip.Addr) (netip.Addr, bool)
}

func (h *host) local(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(h.addresses, addr)
}

// sender is the address from which the node reaches a destination.
func (h *host) sender(to netip.Addr) (netip.Addr, error) {
	if h.local(to) {
		return to, nil
	}
	if h.route != nil {
		if addr, ok := h.route(to); ok {
			return addr, nil
		}
	}
	for _, addr := range h.addresses {
		if addr.Is4() == to.Is4() {
			return addr, nil
		}
	}
	return netip.Addr{},
		config.Usagef("source node: this node has no address of the family of %s; pass an address and --from node", to)
}

// unknownInterface stands for an interface that is no pod's; no interface can have a slash in its
// name.
const unknownInterface = "not/a/pod"

// packet is the first packet of the connection as it meets the table. It invents the interface on
// which the packet arrives, and checks --from against the table's rule for pods.
func (c *connection) packet(t *readback.Table, h *host) (p nft.Packet, err error) {
	p = nft.Packet{Source: c.source, Destination: c.destination, Protocol: c.protocol, Port: c.port,
		SourcePort: c.sourcePort, Interface: c.iface}
	if !p.Source.IsValid() {
		if p.Source, err = h.sender(c.destination); err != nil {
			return p, err
		}
	}
	p.DestinationLocal = h.local(p.Destination)
	p.SourceLocal = h.local(p.Source) || c.from == fromNode
	if c.iface != "" || p.SourceLocal && (c.from == "" || c.from == fromNode) {
		return p, nil
	}
	pods := t.Pods()
	if pods.CIDR.IsValid() && c.from != "" {
		switch in := pods.CIDR.Contains(p.Source); {
		case in && c.from == fromOutside:
			return p, config.Usagef("--from outside: the rules treat %s as a pod, because it is in %s", p.Source, pods.CIDR)
		case !in && c.from == fromPod:
			return p, config.Usagef("--from pod: the rules do not treat %s as a pod, because it is not in %s",
				p.Source, pods.CIDR)
		}
	}
	if p.Interface = unknownInterface; c.from == fromPod && pods.Interface != "" {
		p.Interface = pods.Interface
	}
	return p, nil
}
