package services

import (
	"encoding/binary"
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// frontendKey is the key of an address, protocol and port; of a protocol and port alone if
// the address is the zero Addr, as for a node port.
func frontendKey(a netip.Addr, protocol uint8, port uint16) string {
	var buf [24]byte
	b := buf[:0]
	if a.IsValid() {
		b = nft.AppendAddr(b, a)
	}
	return string(nft.AppendPort(nft.AppendProtocol(b, protocol), port))
}

// frontendKeyOf is the key of a frontend in the maps of its kind.
func frontendKeyOf(f tracker.Frontend) string {
	if f.NodePort() {
		return frontendKey(netip.Addr{}, uint8(f.Protocol), f.Port)
	}
	return frontendKey(f.Address, uint8(f.Protocol), f.Port)
}

// verdictMap is the map that says what to do at a frontend.
func verdictMap(nodePort bool) string {
	if nodePort {
		return nodePortsMap
	}
	return servicesMap
}

// frontendIn reads the frontend back from the key of an element; the zero tracker.Frontend if the
// set is not one that is keyed by frontends.
func frontendIn(family nft.Family, set, key string) (f tracker.Frontend) {
	n := nft.AddrLen(family)
	switch set {
	case nodePortsMap, nodePortEndpointsMap, nodePortLocalEndpointMap, affinityNodePortsMap:
		n = 0
	case servicesMap, endpointsMap, localEndpointsMap, affinityFrontendsMap:
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
