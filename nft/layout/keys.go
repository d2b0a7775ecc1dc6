package layout

import (
	"encoding/binary"
	"net/netip"
	"strconv"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// FrontendKey is the key of an address, protocol and port; of a protocol and port alone if
// the address is the zero Addr, as for a node port.
func FrontendKey(a netip.Addr, protocol uint8, port uint16) string {
	var buf [24]byte
	b := buf[:0]
	if a.IsValid() {
		b = nft.AppendAddr(b, a)
	}
	return string(nft.AppendPort(nft.AppendProtocol(b, protocol), port))
}

// FrontendKeyOf is the key of a frontend in the maps of its kind.
func FrontendKeyOf(f tracker.Frontend) string {
	if f.NodePort() {
		return FrontendKey(netip.Addr{}, uint8(f.Protocol), f.Port)
	}
	return FrontendKey(f.Address, uint8(f.Protocol), f.Port)
}

// FrontendIn reads the frontend back from the key of an element; the zero tracker.Frontend if the
// set is not one that is keyed by frontends.
func FrontendIn(family nft.Family, set, key string) (f tracker.Frontend) {
	n := nft.AddrLen(family)
	switch set {
	case NodePortsMap, NodePortEndpointsMap, NodePortLocalEndpointsMap, AffinityNodePortsMap:
		n = 0
	case ServicesMap, EndpointsMap, LocalEndpointsMap, AffinityFrontendsMap:
	default:
		return f
	}
	if len(key) < n+8 {
		return f
	}
	f.Address = tracker.NodePort(family, 0, 0).Address
	if n > 0 {
		f.Address, _ = netip.AddrFromSlice([]byte(key[:n]))
	}
	f.Protocol = tracker.Protocol(key[n])
	f.Port = binary.BigEndian.Uint16([]byte(key[n+4 : n+6]))
	return f
}

// VerdictMap is the map that says what to do at a frontend.
func VerdictMap(nodePort bool) string {
	if nodePort {
		return NodePortsMap
	}
	return ServicesMap
}

// EndpointsMapOf is the map of the endpoint lists of frontends that have their own.
func EndpointsMapOf(nodePort, local bool) string {
	switch {
	case nodePort && local:
		return NodePortLocalEndpointsMap
	case nodePort:
		return NodePortEndpointsMap
	case local:
		return LocalEndpointsMap
	}
	return EndpointsMap
}

// MemberKey is the key of an endpoint that affinity entries under a number may name.
func MemberKey(number uint32, addr netip.Addr) string {
	var buf [20]byte
	return string(nft.AppendAddr(nft.AppendNumber(buf[:0], number), addr))
}

// RangeKey is the key of a source range of the guard with a number, in the set of its prefix length.
func RangeKey(number uint32, p netip.Prefix) string {
	var buf [20]byte
	return string(nft.AppendAddr(nft.AppendNumber(buf[:0], number), p.Addr()))
}

// RangesSet names the set of the ranges of one prefix length.
func RangesSet(bits int) string { return RangesPrefix + strconv.Itoa(bits) }

// RangesPrefix is how the names of these sets begin.
const RangesPrefix = "allowed-"
