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
	case NodePortsMap, AffinityNodePortsMap:
		n = 0
	case ServicesMap, AffinityFrontendsMap, BeforeNodePortsSet:
	default:
		m, ok := endpointMaps[set]
		if !ok {
			return f
		}
		if m.NodePort {
			n = 0
		}
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

// An EndpointMap is one of the maps in which frontends have endpoint lists of their own. There is one for each
// protocol: nft does not load over its own listing a map whose data are ports of any protocol.
type EndpointMap struct {
	NodePort, Local bool
	Protocol        tracker.Protocol
}

// EndpointMaps lists them all.
func EndpointMaps() (list []EndpointMap) {
	for _, nodePort := range []bool{false, true} {
		for _, local := range []bool{false, true} {
			for _, protocol := range nft.TransportNumbers {
				list = append(list, EndpointMap{nodePort, local, tracker.Protocol(protocol)})
			}
		}
	}
	return list
}

var endpointMaps, endpointMapNames = func() (byName map[string]EndpointMap, names map[EndpointMap]string) {
	byName, names = make(map[string]EndpointMap), make(map[EndpointMap]string)
	for _, m := range EndpointMaps() {
		name := LocalInfix(m.Local) + "endpoints-" + m.Protocol.String()
		if m.NodePort {
			name = "node-port-" + name
		}
		byName[name], names[m] = m, name
	}
	return byName, names
}()

// Name is the name of the map; empty for a protocol that no Service port can have.
func (m EndpointMap) Name() string { return endpointMapNames[m] }

// EndpointsMapOf is the map of one of the two endpoint lists of a frontend. The elements of a list have the frontend's
// key and an index.
func EndpointsMapOf(f tracker.Frontend, local bool) string {
	return EndpointMap{f.NodePort(), local, f.Protocol}.Name()
}

// NumberedAddr is the key of an address under a number: of an endpoint that affinity entries may name, or of the first
// address of a source range.
func NumberedAddr(number uint32, addr netip.Addr) string {
	var buf [20]byte
	return string(nft.AppendAddr(nft.AppendNumber(buf[:0], number), addr))
}

// RangesSet names the set of the source ranges of one prefix length.
func RangesSet(bits int) string { return RangesPrefix + strconv.Itoa(bits) }

// RangesPrefix is how the names of these sets begin.
const RangesPrefix = "allowed-"
