package nft

import (
	"encoding/binary"
	"fmt"
	"strconv"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// transportProtocols is the set {tcp, udp, sctp}: a rule that rewrites ports has to name
// the protocols that have them. One named set serves every such rule, where nft's own
// way, an anonymous set in each, would make hundreds.
const transportProtocols = "transport-protocols"

// DNATFrom rewrites the destination to what the map has for Key. Without an entry the rule
// does not apply.
//
// With ToPort zero the map holds addresses and ports; the statement tests by itself for the
// protocols that have ports, and Key must contain Port: otherwise nft does not take its own
// listing. With ToPort the map holds addresses, to which that port is added, and the rule
// must test ProtocolIs before, for the same reason.
type DNATFrom struct {
	Key    []Part
	Map    string
	ToPort uint16
}

func (s DNATFrom) text(f Family) string {
	lookup := keyText(f, s.Key) + " map @" + s.Map
	if s.ToPort != 0 {
		return "dnat to " + lookup + ":" + strconv.Itoa(int(s.ToPort))
	}
	return s.havePorts().text(f) + " dnat " + f.String() + " to " + lookup
}

func (s DNATFrom) encode(e *encoder) {
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(e.family), RegAddrMin: register(0)}
	if s.ToPort == 0 {
		s.havePorts().encode(e)
		nat.RegProtoMin = register(e.family.addrLen() / 4) // the data's second field
	}
	e.load(s.Key...)
	e.add(&expr.Lookup{SourceRegister: register(0), SetName: s.Map, IsDestRegSet: true, DestRegister: register(0)})
	if s.ToPort != 0 {
		nat.RegProtoMin, nat.Specified = unix.NFT_REG_2, true
		e.add(&expr.Immediate{Register: nat.RegProtoMin, Data: binary.BigEndian.AppendUint16(nil, s.ToPort)})
	}
	e.add(nat)
}

func (DNATFrom) havePorts() InSet { return InSet{Key: []Part{Protocol}, Set: transportProtocols} }

// Masquerade gives the packet a source address of this node and a random source port.
type Masquerade struct{}

func (Masquerade) text(Family) string { return "masquerade fully-random" }

func (Masquerade) encode(e *encoder) { e.add(&expr.Masq{FullyRandom: true}) }

// SetMark sets bits of the packet mark.
type SetMark struct{ Bits uint32 }

func (s SetMark) text(Family) string {
	return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bits)
}

func (s SetMark) encode(e *encoder) { e.changeMark(^s.Bits, s.Bits) }

// FlipMark inverts bits of the packet mark.
type FlipMark struct{ Bits uint32 }

func (s FlipMark) text(Family) string {
	return fmt.Sprintf("meta mark set meta mark ^ 0x%08x", s.Bits)
}

func (s FlipMark) encode(e *encoder) { e.changeMark(^uint32(0), s.Bits) }

// changeMark turns the packet mark into (mark & keep) ^ flip.
func (e *encoder) changeMark(keep, flip uint32) {
	e.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)})
	e.bitwise(hostOrder(keep), hostOrder(flip))
	e.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0), SourceRegister: true})
}
