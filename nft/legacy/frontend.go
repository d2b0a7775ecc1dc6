package legacy

import (
	"encoding/binary"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Frontend is a frontend that kube-proxy's rules send to endpoints. A Service port without
// endpoints has none: kube-proxy's rules refuse its connections.
type Frontend struct {
	tracker.Frontend
	Service string // "namespace/name:port", as far as the rule names it
}

// String names the frontend for an operator.
func (f Frontend) String() string {
	if f.Service == "" {
		return f.Frontend.String()
	}
	return f.Frontend.String() + " of " + f.Service
}

// frontends lists the frontends of a table nat, each once, in the order of the rules: what the
// chains of cluster IPs and node ports send to chains of Services.
func (rs *ruleset) frontends(f nft.Family) (list []Frontend) {
	seen := make(map[tracker.Frontend]bool)
	for _, c := range rs.chains {
		if rs.table != "nat" || c.name != "KUBE-NODEPORTS" && c.name != "KUBE-SERVICES" {
			continue
		}
		for _, r := range c.rules {
			at, ok := r.frontend(f, c.name)
			if !ok || seen[at] {
				continue
			}
			seen[at] = true
			service, _, _ := strings.Cut(r.comment, " ")
			list = append(list, Frontend{at, service})
		}
	}
	return list
}

// frontend returns the frontend that a rule of such a chain sends to a chain of its Service port.
func (r *rule) frontend(f nft.Family, chain string) (at tracker.Frontend, ok bool) {
	at = tracker.Frontend{Address: r.to, Protocol: tracker.Protocol(r.protocol), Port: r.port}
	if chain == "KUBE-NODEPORTS" {
		at = tracker.NodePort(tracker.Family(f), at.Protocol, at.Port)
	}
	return at, perService.MatchString(r.target) && at.Protocol != 0 && at.Port != 0 && at.Address.IsValid()
}

// nodePortsAt lists the addresses at which a table nat serves node ports, unless it does everywhere.
func (rs *ruleset) nodePortsAt() (addrs []netip.Addr, everywhere bool) {
	for _, c := range rs.chains {
		for _, r := range c.rules {
			switch {
			case rs.table != "nat" || c.name != "KUBE-SERVICES" || r.target != "KUBE-NODEPORTS":
			case r.to.IsValid():
				addrs = append(addrs, r.to)
			default:
				everywhere = true
			}
		}
	}
	return addrs, everywhere
}

// A destination is what a rule asks of a packet's destination.
type destination struct {
	to       netip.Addr // a single address; the zero Addr if the rule takes others as well
	protocol uint8      // 0: any
	port     uint16     // 0: any, or more than one
}

// addMatch takes in a match of x_tables for the ports of a protocol: struct xt_tcp and xt_udp of
// linux/netfilter/xt_tcpudp.h begin with the range of source ports, struct xt_sctp_info of
// linux/netfilter/xt_sctp.h with the range of destination ports.
func (d *destination) addMatch(name string, info []byte) {
	at := 4
	switch name {
	case "tcp", "udp":
	case "sctp":
		at = 0
	default:
		return
	}
	if len(info) < at+4 {
		return
	}
	if first, last := binary.NativeEndian.Uint16(info[at:]), binary.NativeEndian.Uint16(info[at+2:]); first == last {
		d.port = first
	}
}

// An expressionReader reads the destination of a rule in nf_tables, and where the rule translates it
// to: a payload or a meta expression loads what the next comparison tests, an immediate one what a
// translation uses.
type expressionReader struct {
	destination
	loaded   field
	endpoint netip.AddrPort // of a translation to one address and port
	// What the last immediate expressions have loaded.
	translatedTo   netip.Addr
	translatedPort uint16
}

// A field is what the last expression has loaded, as far as it matters.
type field uint8

const (
	otherField field = iota
	addressField
	protocolField
	portField
)

// add takes in one expression, with its attributes.
func (e *expressionReader) add(name string, data []byte) {
	value := func(typ uint16) uint32 {
		if v := attr.Find(data, typ); len(v) == 4 {
			return attr.Uint32(v)
		}
		return 0
	}
	switch name {
	case "meta":
		if e.loaded = otherField; value(unix.NFTA_META_KEY) == unix.NFT_META_L4PROTO {
			e.loaded = protocolField
		}
	case "payload":
		e.loaded = payloadField(value(unix.NFTA_PAYLOAD_BASE), value(unix.NFTA_PAYLOAD_OFFSET), value(unix.NFTA_PAYLOAD_LEN))
	case "cmp":
		operand := attr.Find(attr.Find(data, unix.NFTA_CMP_DATA), unix.NFTA_DATA_VALUE)
		if value(unix.NFTA_CMP_OP) == unix.NFT_CMP_EQ {
			e.compare(operand)
		}
		e.loaded = otherField
	case "immediate":
		switch v := attr.Find(attr.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VALUE); len(v) {
		case 2:
			e.translatedPort = binary.BigEndian.Uint16(v)
		case 4, 16:
			e.translatedTo, _ = netip.AddrFromSlice(v)
		}
	case "nat":
		if value(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT && e.translatedTo.IsValid() {
			e.endpoint = netip.AddrPortFrom(e.translatedTo, e.translatedPort)
		}
	case "match":
		e.addMatch(attr.Name(attr.Find(data, unix.NFTA_MATCH_NAME)), attr.Find(data, unix.NFTA_MATCH_INFO))
	default: // with bitwise, a range of addresses
		e.loaded = otherField
	}
}

// compare records the value that the loaded field must have.
func (e *expressionReader) compare(operand []byte) {
	switch {
	case e.loaded == addressField:
		e.to, _ = netip.AddrFromSlice(operand)
	case e.loaded == protocolField && len(operand) == 1:
		e.protocol = operand[0]
	case e.loaded == portField && len(operand) == 2:
		e.port = binary.BigEndian.Uint16(operand)
	}
}

// payloadField says which field of a packet lies at an offset: of RFC 791, RFC 8200 and of every
// protocol that has ports.
func payloadField(base, offset, length uint32) field {
	type place struct{ base, offset, length uint32 }
	switch (place{base, offset, length}) {
	case place{unix.NFT_PAYLOAD_NETWORK_HEADER, 16, 4}, place{unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 16}:
		return addressField
	case place{unix.NFT_PAYLOAD_NETWORK_HEADER, 9, 1}, place{unix.NFT_PAYLOAD_NETWORK_HEADER, 6, 1}:
		return protocolField
	case place{unix.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2}:
		return portField
	}
	return otherField
}

// The maps of kube-proxy's nftables mode that lead to endpoints. Their keys are those of our maps:
// address, protocol and port, or protocol and port, each in four bytes or more.
const (
	proxyServices  = "service-ips"
	proxyNodePorts = "service-nodeports"
)

// proxyNodeAddresses is the set of the addresses at which the nftables mode serves node ports. Without
// an element it serves them everywhere.
const proxyNodeAddresses = "nodeport-ips"

// elementFrontend reads an element of one of these maps; false if it is something else.
func elementFrontend(f nft.Family, set string, element []byte) (at Frontend, ok bool) {
	key := attr.Find(attr.Find(element, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE)
	n := nft.AddrLen(f)
	if set == proxyNodePorts {
		n = 0
	}
	if set != proxyServices && set != proxyNodePorts || len(key) != n+8 {
		return at, false
	}
	at.Address = tracker.NodePort(tracker.Family(f), 0, 0).Address
	if n > 0 {
		at.Address, _ = netip.AddrFromSlice(key[:n])
	}
	at.Protocol, at.Port = tracker.Protocol(key[n]), binary.BigEndian.Uint16(key[n+4:])
	verdict := attr.Find(attr.Find(element, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VERDICT)
	at.Service = serviceOfChain(attr.Name(attr.Find(verdict, unix.NFTA_VERDICT_CHAIN)))
	return at, true
}

// serviceOfChain reads the Service port out of the name of a chain of the nftables mode:
// "service-ULMVA6XW-namespace/name/protocol/port".
func serviceOfChain(chain string) string {
	parts := strings.SplitN(chain, "-", 3)
	if len(parts) < 3 {
		return ""
	}
	names := strings.Split(parts[2], "/")
	switch {
	case len(names) < 2:
		return ""
	case len(names) < 4 || names[3] == "":
		return names[0] + "/" + names[1]
	}
	return names[0] + "/" + names[1] + ":" + names[3]
}

// A nodePort is a node port in the ipsets of one family.
type nodePort struct {
	family   tracker.Family
	protocol tracker.Protocol
	port     uint16
}

var protocolNumbers = map[string]tracker.Protocol{"tcp": tracker.TCP, "udp": tracker.UDP, "sctp": tracker.SCTP}
