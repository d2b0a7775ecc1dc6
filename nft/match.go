package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// The matches. Those with a Not field match the opposite when it is set.

// InSet matches packets whose Key is in the named set.
type InSet struct {
	Key []Part
	Set string
	Not bool
}

func (s InSet) text(f Family) string { return keyText(f, s.Key) + " " + notText(s.Not) + "@" + s.Set }

func (s InSet) encode(e *encoder) {
	e.load(s.Key...)
	e.add(&expr.Lookup{SourceRegister: register(0), SetName: s.Set, Invert: s.Not})
}

// SourceIn matches packets whose source address is in Prefix.
type SourceIn struct {
	Prefix netip.Prefix
	Not    bool
}

func (s SourceIn) text(f Family) string {
	return f.String() + " saddr " + notText(s.Not) + prefixText(s.Prefix)
}

func (s SourceIn) encode(e *encoder) { e.matchPrefix(e.family.sourceOffset(), s.Prefix, s.Not) }

// DestinationIn matches packets whose destination address is in Prefix.
type DestinationIn struct {
	Prefix netip.Prefix
	Not    bool
}

func (s DestinationIn) text(f Family) string {
	return f.String() + " daddr " + notText(s.Not) + prefixText(s.Prefix)
}

func (s DestinationIn) encode(e *encoder) {
	e.matchPrefix(e.family.destinationOffset(), s.Prefix, s.Not)
}

// matchPrefix compares the address at an offset of the network header. A prefix of whole
// bytes is compared without a mask, as nft does it.
func (e *encoder) matchPrefix(offset uint32, p netip.Prefix, not bool) {
	addr := p.Masked().Addr().AsSlice()
	n := len(addr)
	if p.Bits() > 0 && p.Bits()%8 == 0 {
		n = p.Bits() / 8
		e.add(e.family.loadAddr(offset, n, register(0)))
	} else {
		e.add(e.family.loadAddr(offset, n, register(0)))
		e.mask(prefixMask(p))
	}
	e.compare(not, addr[:n])
}

// prefixMask returns the network mask of a prefix.
func prefixMask(p netip.Prefix) []byte {
	mask := make([]byte, p.Addr().BitLen()/8)
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// InputInterface matches the name of the interface a packet arrived on; with Prefix, how
// the name begins. A packet that this node sends arrived on none.
type InputInterface struct {
	Name   string // at most 15 bytes (IFNAMSIZ less the NUL)
	Prefix bool
	Not    bool
}

func (s InputInterface) text(Family) string {
	name := s.Name
	if s.Prefix {
		name += "*"
	}
	return "iifname " + notText(s.Not) + `"` + name + `"`
}

func (s InputInterface) encode(e *encoder) {
	e.add(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(0)})
	name := []byte(s.Name)
	if !s.Prefix {
		name = make([]byte, unix.IFNAMSIZ)
		copy(name, s.Name)
	}
	e.compare(s.Not, name)
}

// SourceLocal and DestinationLocal match addresses of this node, those of the loopback
// interface included.
type (
	SourceLocal      struct{}
	DestinationLocal struct{}
)

func (SourceLocal) text(Family) string { return "fib saddr type local" }

func (SourceLocal) encode(e *encoder) { e.matchLocal(&expr.Fib{FlagSADDR: true}) }

func (DestinationLocal) text(Family) string { return "fib daddr type local" }

func (DestinationLocal) encode(e *encoder) { e.matchLocal(&expr.Fib{FlagDADDR: true}) }

func (e *encoder) matchLocal(fib *expr.Fib) {
	fib.Register, fib.ResultADDRTYPE = register(0), true
	e.add(fib)
	e.compare(false, hostOrder(unix.RTN_LOCAL))
}

// ProtocolIs matches one transport protocol by its number.
type ProtocolIs struct{ Number uint8 }

func (s ProtocolIs) text(Family) string { return "meta l4proto " + protocolText(s.Number) }

func (s ProtocolIs) encode(e *encoder) {
	e.load(Protocol)
	e.compare(false, []byte{s.Number})
}

// PortIs matches the destination port in the transport header.
type PortIs struct{ Port uint16 }

func (s PortIs) text(Family) string { return "th dport " + strconv.Itoa(int(s.Port)) }

func (s PortIs) encode(e *encoder) {
	e.load(Port)
	e.compare(false, binary.BigEndian.AppendUint16(nil, s.Port))
}

// Translated matches connections whose destination was rewritten (ct status dnat).
type Translated struct{}

func (Translated) text(Family) string { return "ct status dnat" }

func (Translated) encode(e *encoder) {
	const statusDNAT = 1 << 5 // IPS_DST_NAT in linux/netfilter/nf_conntrack_common.h
	e.add(&expr.Ct{Key: expr.CtKeySTATUS, Register: register(0)})
	e.mask(hostOrder(statusDNAT))
	e.compare(true, hostOrder(0))
}

// MarkHas matches packets with any bit of Bits in their mark.
type MarkHas struct{ Bits uint32 }

func (s MarkHas) text(Family) string {
	return fmt.Sprintf("meta mark & 0x%08x != 0x00000000", s.Bits)
}

func (s MarkHas) encode(e *encoder) {
	e.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)})
	e.mask(hostOrder(s.Bits))
	e.compare(true, hostOrder(0))
}

// mask keeps the bits of the first register that are set in mask.
func (e *encoder) mask(mask []byte) { e.bitwise(mask, make([]byte, len(mask))) }

// bitwise turns the first register into (register & mask) ^ xor.
func (e *encoder) bitwise(mask, xor []byte) {
	e.add(&expr.Bitwise{
		SourceRegister: register(0), DestRegister: register(0),
		Len: uint32(len(mask)), Mask: mask, Xor: xor,
	})
}

// compare goes on with the rule if the first register equals value; with not, if it differs.
func (e *encoder) compare(not bool, value []byte) {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	e.add(&expr.Cmp{Op: op, Register: register(0), Data: value})
}

// load puts the values of parts into consecutive registers, beginning with the first.
func (e *encoder) load(parts ...Part) {
	word := 0
	for _, p := range parts {
		e.add(p.load(e.family, register(word)))
		word += p.words(e.family)
	}
}

// register is the number under which the kernel lists the 32-bit register that stands word
// places after the first: every fourth one is also a 128-bit register, and goes by that
// number. Source: enum nft_registers in linux/netfilter/nf_tables.h.
func register(word int) uint32 {
	if word%4 == 0 {
		return uint32(unix.NFT_REG_1 + word/4)
	}
	return uint32(unix.NFT_REG32_00 + word)
}

// hostOrder is n as the packet path computes with it.
func hostOrder(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
