package legacy

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// An Extension is a match or a target of x_tables. Rules of ip_tables and of nf_tables have them in the same form.
type Extension struct {
	Name     string
	Revision uint8
	Data     []byte
}

// addMatch takes in a match: a comment, a condition, or what the rule asks of the destination port. struct xt_tcp
// and xt_udp of linux/netfilter/xt_tcpudp.h begin with the range of source ports, struct xt_sctp_info of
// linux/netfilter/xt_sctp.h with the range of destination ports.
func (r *rule) addMatch(name string, info []byte) {
	at := 4
	switch name {
	case "comment":
		r.comment = attr.Name(info)
		return
	case "conntrack", "state":
		return
	case "tcp", "udp":
	case "sctp":
		at = 0
	case "recent":
		r.recent = recentOf(info)
		fallthrough
	default:
		r.plain = false
		return
	}
	r.plain = false
	if len(info) < at+4 {
		return
	}
	if first, last := binary.NativeEndian.Uint16(info[at:]), binary.NativeEndian.Uint16(info[at+2:]); first == last {
		r.port = first
	}
}

// addTarget takes in a target: a translation to an endpoint, or something else.
func (r *rule) addTarget(f nft.Family, name string, revision uint8, info []byte) {
	if name == "DNAT" {
		r.endpoint = translation(f, revision, info)
	}
}

// recentOf reads the name of the list of clients from the parameters of the extension recent: struct xt_recent_mtinfo
// of linux/netfilter/xt_recent.h, which later revisions only add to. The chain of a Service port looks a client up in
// the list of each endpoint. The chain of the endpoint adds the client to its list, in the rule that has the DNAT.
func recentOf(info []byte) string {
	const nameAt, nameLen = 10, 200
	if len(info) < nameAt+nameLen {
		return ""
	}
	return text(info[nameAt:], nameLen)
}

// translation reads the target DNAT: struct nf_nat_ipv4_multi_range_compat in its first revision, for
// IPv4, and struct nf_nat_range, which later ones only add to (linux/netfilter/nf_nat.h).
func translation(f nft.Family, revision uint8, info []byte) (to netip.AddrPort) {
	address, port, n := 4, 4+2*16, nft.AddrLen(f)
	if revision == 0 && f == nft.IP {
		address, port = 8, 8+2*4
	}
	if len(info) < port+2 {
		return to
	}
	addr, _ := netip.AddrFromSlice(info[address : address+n])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(info[port:]))
}
