package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// DNATFrom rewrites the destination to what the map has for Key. Without an entry the rule
// does not apply.
//
// With ToPort zero the map holds addresses and ports, and the statement tests for Protocol by itself; with ToPort it
// holds addresses, to which that port is added, and the rule must test ProtocolIs before. Both because nft takes its
// own listing only where it knows the protocol: see also Set.Protocol. With Ports the map holds addresses, too, and the
// port is what the map Ports has for PortKey: without an entry there, the rule does not apply either.
type DNATFrom struct {
	Key      []Part
	Map      string
	ToPort   uint16
	Protocol uint8 // TCP, UDP or SCTP; 0 with ToPort
	PortKey  []Part
	Ports    string
}

func (s DNATFrom) text(f Family) string {
	lookup := " map @" + s.Map
	if s.ToPort != 0 {
		return "dnat to " + keyText(f, s.Key) + lookup + ":" + strconv.Itoa(int(s.ToPort))
	}
	key := protocolKeyText(f, s.Key, s.Protocol)
	if s.Ports != "" {
		port := protocolKeyText(f, s.PortKey, s.Protocol) + " map @" + s.Ports
		return ProtocolIs{s.Protocol}.text(f) + " dnat to " + key + lookup + ":" + port
	}
	dnat := "dnat " + f.NFT() + " to " + key + lookup
	if key != keyText(f, s.Key) { // a port of the protocol implies the test
		return dnat
	}
	return ProtocolIs{s.Protocol}.text(f) + " " + dnat
}

// portText is a part of a key with the ports of a protocol; 0 stands for any.
func portText(part Part, protocol uint8, f Family) string {
	text := part.text(f)
	if protocol == 0 {
		return text
	}
	for _, port := range []Part{Port, sourcePort} {
		header := strings.TrimPrefix(port.text(f), "th")
		text = strings.Replace(text, port.text(f), ProtocolText(protocol)+header, 1)
	}
	return text
}

func (s DNATFrom) expressions(f Family) (x []expr.Any) {
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f), RegAddrMin: register(0)}
	if s.ToPort == 0 {
		x = ProtocolIs{s.Protocol}.expressions(f)
		nat.RegProtoMin = register(AddrLen(f) / 4) // the data's second field
	}
	x = append(x, load(f, s.Key...)...)
	x = append(x, &expr.Lookup{SourceRegister: register(0), SetName: s.Map, IsDestRegSet: true, DestRegister: register(0)})
	switch {
	case s.Ports != "":
		nat.RegProtoMin, nat.Specified = register(portWord), true
		x = append(x, loadAt(f, portWord, s.PortKey...)...)
		x = append(x, &expr.Lookup{SourceRegister: nat.RegProtoMin, SetName: s.Ports, IsDestRegSet: true,
			DestRegister: nat.RegProtoMin})
	case s.ToPort != 0:
		nat.RegProtoMin, nat.Specified = unix.NFT_REG_2, true
		x = append(x, &expr.Immediate{Register: nat.RegProtoMin, Data: binary.BigEndian.AppendUint16(nil, s.ToPort)})
	}
	return append(x, nat)
}

func (DNATFrom) parse(f Family, x []expr.Any) (Stmt, int) {
	protocol := uint8(0)
	test, n := ProtocolIs{}.parse(f, x)
	if n > 0 {
		protocol = test.(ProtocolIs).Number
	}
	key, length := parseKey(f, x[n:])
	n += length
	l := at[*expr.Lookup](x, n)
	if l == nil || !l.IsDestRegSet || len(key) == 0 {
		return nil, 0
	}
	n++
	dnat := DNATFrom{Key: key, Map: l.SetName, Protocol: protocol}
	if port := at[*expr.Immediate](x, n); port != nil && len(port.Data) == 2 {
		dnat.ToPort = binary.BigEndian.Uint16(port.Data)
		n++
	} else if key, length := parseKey(f, x[n:]); length > 0 {
		ports := at[*expr.Lookup](x, n+length)
		if ports == nil || !ports.IsDestRegSet {
			return nil, 0
		}
		dnat.PortKey, dnat.Ports = key, ports.SetName
		n += length + 1
	}
	if at[*expr.NAT](x, n) == nil || (dnat.ToPort == 0) == (protocol == 0) { // ProtocolIs is a statement of its own
		return nil, 0
	}
	return dnat, n + 1
}

func (s DNATFrom) trace(t *tracer, step int) flow {
	held := t.table.Sets[s.Map]
	if held == nil || !hasPorts(t.packet.Protocol) || s.Protocol != 0 && s.Protocol != t.packet.Protocol {
		return skip
	}
	key, index := t.key(s.Key)
	switch {
	case s.Ports != "":
		portKey, _ := t.key(s.PortKey)
		port := t.table.Sets[s.Ports].Port(portKey)
		if port == 0 {
			return skip
		}
		return t.draw(held, key, int(index.number), port)
	case index.kind == partRandom:
		return t.draw(held, key, int(index.number), 0)
	case index.hashed():
		return t.hash(step, held, key, index)
	}
	addr, ok := netip.AddrFromSlice([]byte(held.Map[key].Data))
	if !ok {
		return skip
	}
	t.result.Endpoints = []netip.AddrPort{netip.AddrPortFrom(addr, s.ToPort)}
	t.decided(step, held, key)
	return t.seal("dnat")
}

// portWord is the register in which the port comes from a map of its own: behind an address of either family.
const portWord = 4

// TransportNumbers are the protocols of Service ports: TCP, UDP and SCTP (IANA).
var TransportNumbers = [...]uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_SCTP}

func hasPorts(protocol uint8) bool { return slices.Contains(TransportNumbers[:], protocol) }

// Masquerade gives the packet a source address of this node and a random source port.
type Masquerade struct{}

func (Masquerade) text(Family) string { return "masquerade fully-random" }

func (Masquerade) expressions(Family) []expr.Any { return []expr.Any{&expr.Masq{FullyRandom: true}} }

func (Masquerade) parse(_ Family, x []expr.Any) (Stmt, int) {
	if at[*expr.Masq](x, 0) != nil {
		return Masquerade{}, 1
	}
	return nil, 0
}

func (Masquerade) trace(t *tracer, _ int) flow {
	t.result.Masquerade = true
	return done
}

// SetMark sets bits of the packet mark.
type SetMark struct{ Bits uint32 }

func (s SetMark) text(Family) string {
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bits)
}

func (s SetMark) expressions(Family) []expr.Any { return changeMark(^s.Bits, s.Bits) }

func (SetMark) parse(_ Family, x []expr.Any) (Stmt, int) {
	keep, flip, n := parseChangedMark(x)
	if n > 0 && keep == ^flip {
		return SetMark{flip}, n
	}
	return nil, 0
}

func (s SetMark) trace(t *tracer, step int) flow {
	t.mark |= s.Bits
	if step > 0 { // the rule that jumped here asked for masquerading
		t.result.Steps[step-1].Masquerade = true
	}
	return next
}

// FlipMark inverts bits of the packet mark.
type FlipMark struct{ Bits uint32 }

func (s FlipMark) text(Family) string {
	return fmt.Sprintf("meta mark set meta mark ^ 0x%08x", s.Bits)
}

func (s FlipMark) expressions(Family) []expr.Any { return changeMark(^uint32(0), s.Bits) }

func (FlipMark) parse(_ Family, x []expr.Any) (Stmt, int) {
	keep, flip, n := parseChangedMark(x)
	if n > 0 && keep == ^uint32(0) {
		return FlipMark{flip}, n
	}
	return nil, 0
}

func (s FlipMark) trace(t *tracer, _ int) flow {
	t.mark ^= s.Bits
	return next
}

// changeMark turns the packet mark into (mark & keep) ^ flip.
func changeMark(keep, flip uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)},
		bitwise(register(0), hostOrder(keep), hostOrder(flip)),
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0), SourceRegister: true},
	}
}

// parseChangedMark reads what changeMark wrote; n is 0 for anything else.
func parseChangedMark(x []expr.Any) (keep, flip uint32, n int) {
	loaded, change, stored := at[*expr.Meta](x, 0), at[*expr.Bitwise](x, 1), at[*expr.Meta](x, 2)
	if loaded == nil || change == nil || stored == nil || stored.Key != expr.MetaKeyMARK || !stored.SourceRegister ||
		len(change.Mask) != 4 || len(change.Xor) != 4 {
		return 0, 0, 0
	}
	return binary.NativeEndian.Uint32(change.Mask), binary.NativeEndian.Uint32(change.Xor), 3
}
