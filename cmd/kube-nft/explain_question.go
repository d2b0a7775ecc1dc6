package main

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
)

// A question is a connection that explain is asked about, as it stands on the command line.
type question struct {
	source      netip.Addr // the zero Addr stands for this node
	destination netip.Addr
	port        uint16 // 0 for ICMP
	protocol    uint8
	iface       string // that it arrives on
	from        string // pod, node, outside, or empty for what the source address tells
}

// Values of --from.
const (
	fromPod     = "pod"
	fromNode    = "node"
	fromOutside = "outside"
)

// explainedProtocols are those that can be asked about, by IANA number; ICMPv6 has one of its
// own.
var explainedProtocols = map[string]uint8{"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1}

const icmpv6 = 58

// parseQuestion reads SRC and ADDR:PORT/PROTO, with or without an arrow.
func parseQuestion(args []string) (q question, err error) {
	words := strings.FieldsFunc(strings.Join(args, " "), func(r rune) bool { return r == ' ' || r == '→' || r == '>' })
	words = slices.DeleteFunc(words, func(word string) bool { return word == "-" })
	if len(words) != 2 {
		return q, usagef("explain: expected SRC and ADDR:PORT/PROTO, such as 10.244.0.9 10.96.0.10:80/tcp")
	}
	if err := q.parseSource(strings.TrimSuffix(words[0], "-")); err != nil {
		return q, err
	}
	if err := q.parseDestination(words[1]); err != nil {
		return q, err
	}
	if q.source.IsValid() && q.source.Is4() != q.destination.Is4() {
		return q, usagef("explain: %s and %s are of different IP families", q.source, q.destination)
	}
	return q, nil
}

func (q *question) parseSource(text string) error {
	if text == fromNode {
		return nil
	}
	addr, ok := parseAddress(text)
	if !ok {
		return usagef("source %q: expected an IP address, or node", text)
	}
	q.source = addr
	return nil
}

// parseAddress takes IPv4 addresses as such, however they are written, and none with a zone.
func parseAddress(text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
	return addr.Unmap(), err == nil && addr.Zone() == ""
}

func (q *question) parseDestination(text string) error {
	target, protocol, found := strings.Cut(text, "/")
	number, known := explainedProtocols[strings.ToLower(protocol)]
	switch {
	case !found:
		return usagef("destination %q: expected a protocol behind it: tcp, udp, sctp or icmp, such as 10.96.0.10:80/tcp", text)
	case !known:
		return usagef("protocol %q: expected tcp, udp, sctp or icmp", protocol)
	}
	q.protocol = number
	if number == explainedProtocols["icmp"] {
		return q.parseICMP(text, target)
	}
	at := strings.LastIndexByte(target, ':')
	if at < 0 || strings.Count(target, ":") > 1 && !strings.HasPrefix(target, "[") {
		return usagef("destination %q: expected ADDR:PORT/PROTO, such as 10.96.0.10:80/tcp or [fd96::10]:80/tcp", text)
	}
	addr, ok := parseAddress(target[:at])
	if !ok {
		return usagef("destination %q: %q is not an IP address", text, target[:at])
	}
	port, err := strconv.ParseUint(target[at+1:], 10, 16)
	if err != nil || port == 0 {
		return usagef("destination %q: %q is not a port, 1 to 65535", text, target[at+1:])
	}
	q.destination, q.port = addr, uint16(port)
	return nil
}

func (q *question) parseICMP(text, target string) error {
	addr, ok := parseAddress(target)
	if !ok {
		return usagef("destination %q: %q is not an IP address; icmp has no port", text, target)
	}
	q.destination = addr
	if addr.Is6() {
		q.protocol = icmpv6
	}
	return nil
}

// check holds the flags against each other and the addresses.
func (q *question) check() error {
	switch {
	case !slices.Contains([]string{"", fromPod, fromNode, fromOutside}, q.from):
		return usagef("--from %s: expected pod, node or outside", q.from)
	case len(q.iface) > 15:
		return usagef("--interface %s: the name of an interface has at most 15 bytes", q.iface)
	case q.iface != "" && (q.from == fromNode || !q.source.IsValid()):
		return usagef("--interface %s: what this node sends arrives on no interface", q.iface)
	case !q.source.IsValid() && q.from != "" && q.from != fromNode:
		return usagef("--from %s: expected the address of the source instead of node", q.from)
	}
	return nil
}

func (q *question) family() nft.Family {
	if q.destination.Is6() {
		return nft.IP6
	}
	return nft.IP
}

// A host is the node that the packet comes to or from.
type host struct {
	addresses []netip.Addr // loopback left out
	// route returns the address that the node sends from; nil takes the first of the family.
	route func(netip.Addr) (netip.Addr, bool)
}

func (h *host) local(addr netip.Addr) bool {
	return addr.IsLoopback() || slices.Contains(h.addresses, addr)
}

// sender is the address that the node uses to reach a destination.
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
	return netip.Addr{}, usagef("source node: this node has no address of the family of %s; pass an address and --from node", to)
}

// packet is the first packet of the connection as it meets the table.
func (q *question) packet(t *nft.Table, h *host) (p nft.Packet, err error) {
	p = nft.Packet{Source: q.source, Destination: q.destination, Protocol: q.protocol, Port: q.port, Interface: q.iface}
	if !p.Source.IsValid() {
		if p.Source, err = h.sender(q.destination); err != nil {
			return p, err
		}
	}
	p.DestinationLocal = h.local(p.Destination)
	p.SourceLocal = h.local(p.Source) || q.from == fromNode
	if q.iface == "" && !(p.SourceLocal && (q.from == "" || q.from == fromNode)) {
		p.Interface, err = q.arrival(t.Pods(), p.Source)
	}
	return p, err
}

// unknownInterface stands for one that is no pod's; no interface can have a slash in its name.
const unknownInterface = "not/a/pod"

// arrival makes up the interface that a packet arrives on, and holds --from against the way in
// which the table recognises pods.
func (q *question) arrival(pods nft.PodMatch, source netip.Addr) (string, error) {
	if pods.CIDR.IsValid() && q.from != "" {
		switch in := pods.CIDR.Contains(source); {
		case in && q.from == fromOutside:
			return "", usagef("--from outside: the rules take %s for a pod, as %s contains it", source, pods.CIDR)
		case !in && q.from == fromPod:
			return "", usagef("--from pod: the rules do not take %s for a pod, as it is not in %s", source, pods.CIDR)
		}
	}
	if q.from == fromPod && pods.Interface != "" {
		return pods.Interface, nil
	}
	return unknownInterface, nil
}
