package services

import (
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
