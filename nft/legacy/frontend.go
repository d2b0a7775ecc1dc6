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
	Lists
	leads string // the chain to which the rule or the element leads
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
		if rs.table != "nat" || c.name != nodePortChain && c.name != serviceChain {
			continue
		}
		for _, r := range c.rules {
			at, ok := r.frontend(f, c.name)
			if !ok || seen[at] {
				continue
			}
			seen[at] = true
			service, _, _ := strings.Cut(r.comment, " ")
			list = append(list, Frontend{Frontend: at, Service: service, leads: r.target})
		}
	}
	return list
}

// frontend returns the frontend that a rule of such a chain sends to a chain of its Service port.
func (r *rule) frontend(f nft.Family, chain string) (at tracker.Frontend, ok bool) {
	at = tracker.Frontend{Address: r.to, Protocol: tracker.Protocol(r.protocol), Port: r.port}
	if chain == nodePortChain {
		at = tracker.NodePort(f, at.Protocol, at.Port)
	}
	return at, perService.MatchString(r.target) && at.Protocol != 0 && at.Port != 0 && at.Address.IsValid()
}

// nodePortsAt lists the addresses at which a table nat serves node ports, unless it does everywhere.
func (rs *ruleset) nodePortsAt() (addrs []netip.Addr, everywhere bool) {
	for _, c := range rs.chains {
		for _, r := range c.rules {
			switch {
			case rs.table != "nat" || c.name != serviceChain || r.target != nodePortChain:
			case r.to.IsValid():
				addrs = append(addrs, r.to)
			default:
				everywhere = true
			}
		}
	}
	return addrs, everywhere
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
	at.Address = tracker.NodePort(f, 0, 0).Address
	if n > 0 {
		at.Address, _ = netip.AddrFromSlice(key[:n])
	}
	at.Protocol, at.Port = tracker.Protocol(key[n]), binary.BigEndian.Uint16(key[n+4:])
	verdict := attr.Find(attr.Find(element, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VERDICT)
	at.leads = attr.Name(attr.Find(verdict, unix.NFTA_VERDICT_CHAIN))
	at.Service = serviceOfChain(at.leads)
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

var protocolNumbers = map[string]tracker.Protocol{"tcp": tracker.TCP, "udp": tracker.UDP, "sctp": tracker.SCTP}
