package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

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

func (s InSet) expressions(f Family) []expr.Any {
	return append(load(f, s.Key...), &expr.Lookup{SourceRegister: register(0), SetName: s.Set, Invert: s.Not})
}

func (InSet) parse(f Family, x []expr.Any) (Stmt, int) {
	key, n := parseKey(f, x)
	if l := at[*expr.Lookup](x, n); l != nil && !l.IsDestRegSet {
		return InSet{Key: key, Set: l.SetName, Not: l.Invert}, n + 1
	}
	return nil, 0
}

func (s InSet) trace(t *tracer, step int) flow {
	held := t.table.Sets[s.Set]
	if held == nil {
		return skip
	}
	key, _ := t.key(s.Key)
	found := ""
	if _, ok := held.Map[key]; ok {
		found = key
	} else if held.Set.Interval {
		found = held.covering(t.table.Family, key)
	}
	if found != "" {
		t.decided(step, held, found)
	}
	return matched(found != "", s.Not)
}

// AddressIn matches packets whose address is in Prefix. A prefix of whole bytes is compared without a mask, as nft
// does it.
type AddressIn struct {
	Of     Part // Source or Destination
	Prefix netip.Prefix
	Not    bool
}

func (s AddressIn) text(f Family) string {
	return s.Of.text(f) + " " + notText(s.Not) + prefixText(s.Prefix)
}

func (s AddressIn) expressions(f Family) []expr.Any {
	loaded, addr, bits := s.Of.load(f, register(0)), s.Prefix.Masked().Addr().AsSlice(), s.Prefix.Bits()
	if n := bits / 8; n > 0 && bits%8 == 0 {
		loaded.(*expr.Payload).Len = uint32(n)
		return []expr.Any{loaded, compare(s.Not, addr[:n])}
	}
	return []expr.Any{loaded, maskWith(prefixMask(bits, len(addr))), compare(s.Not, addr)}
}

func (AddressIn) parse(f Family, x []expr.Any) (Stmt, int) {
	of, ok := parsePart(f, x[0])
	if !ok || of != Source && of != Destination {
		return nil, 0
	}
	n, ones := 1, 0
	mask := at[*expr.Bitwise](x, n)
	if mask != nil {
		n++
		ones = onesIn(mask.Mask)
	}
	compared := at[*expr.Cmp](x, n)
	if compared == nil {
		return nil, 0
	}
	if mask == nil {
		ones = 8 * len(compared.Data)
	}
	full := make([]byte, AddrLen(f))
	copy(full, compared.Data)
	addr, _ := netip.AddrFromSlice(full)
	return AddressIn{of, netip.PrefixFrom(addr, ones), compared.Op == expr.CmpOpNeq}, n + 1
}

func (s AddressIn) trace(t *tracer, _ int) flow {
	addr := t.packet.Source
	if s.Of == Destination {
		addr = t.packet.Destination
	}
	return matched(s.Prefix.Contains(addr), s.Not)
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

func (s InputInterface) expressions(Family) []expr.Any {
	name := []byte(s.Name)
	if !s.Prefix {
		name = make([]byte, unix.IFNAMSIZ)
		copy(name, s.Name)
	}
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: register(0)}, compare(s.Not, name)}
}

func (InputInterface) parse(_ Family, x []expr.Any) (Stmt, int) {
	compared := comparedMeta(x, expr.MetaKeyIIFNAME)
	if compared == nil {
		return nil, 0
	}
	name, padding, exact := bytes.Cut(compared.Data, []byte{0})
	if len(bytes.Trim(padding, "\x00")) > 0 {
		return nil, 0
	}
	return InputInterface{Name: string(name), Prefix: !exact, Not: compared.Op == expr.CmpOpNeq}, 2
}

func (s InputInterface) trace(t *tracer, _ int) flow {
	name := t.packet.Interface
	return matched(name == s.Name || s.Prefix && strings.HasPrefix(name, s.Name), s.Not)
}

// AddressLocal matches packets whose address is one of this node, loopback addresses included.
type AddressLocal struct{ Of Part } // Source or Destination

func (s AddressLocal) text(f Family) string {
	return "fib " + strings.TrimPrefix(s.Of.text(f), f.NFT()+" ") + " type local"
}

func (s AddressLocal) expressions(Family) []expr.Any {
	return []expr.Any{&expr.Fib{Register: register(0), ResultADDRTYPE: true, FlagSADDR: s.Of == Source,
		FlagDADDR: s.Of == Destination}, compare(false, hostOrder(unix.RTN_LOCAL))}
}

func (AddressLocal) parse(_ Family, x []expr.Any) (Stmt, int) {
	fib := at[*expr.Fib](x, 0)
	if fib == nil || at[*expr.Cmp](x, 1) == nil {
		return nil, 0
	}
	if fib.FlagSADDR {
		return AddressLocal{Source}, 2
	}
	return AddressLocal{Destination}, 2
}

func (s AddressLocal) trace(t *tracer, _ int) flow {
	if s.Of == Source {
		return matched(t.packet.SourceLocal, false)
	}
	return matched(t.packet.DestinationLocal, false)
}

// ProtocolIs matches one transport protocol by its number.
type ProtocolIs struct{ Number uint8 }

func (s ProtocolIs) text(Family) string { return "meta l4proto " + ProtocolText(s.Number) }

func (s ProtocolIs) expressions(f Family) []expr.Any {
	return append(load(f, Protocol), compare(false, []byte{s.Number}))
}

func (ProtocolIs) parse(_ Family, x []expr.Any) (Stmt, int) {
	if compared := comparedMeta(x, expr.MetaKeyL4PROTO); compared != nil && len(compared.Data) == 1 {
		return ProtocolIs{compared.Data[0]}, 2
	}
	return nil, 0
}

func (s ProtocolIs) trace(t *tracer, _ int) flow {
	return matched(t.packet.Protocol == s.Number, false)
}

// PortIs matches the destination port in the transport header.
type PortIs struct{ Port uint16 }

func (s PortIs) text(Family) string { return "th dport " + strconv.Itoa(int(s.Port)) }

func (s PortIs) expressions(f Family) []expr.Any {
	return append(load(f, Port), compare(false, binary.BigEndian.AppendUint16(nil, s.Port)))
}

func (PortIs) parse(_ Family, x []expr.Any) (Stmt, int) {
	loaded, compared := at[*expr.Payload](x, 0), at[*expr.Cmp](x, 1)
	if loaded == nil || loaded.Base != expr.PayloadBaseTransportHeader || compared == nil || len(compared.Data) != 2 {
		return nil, 0
	}
	return PortIs{binary.BigEndian.Uint16(compared.Data)}, 2
}

func (s PortIs) trace(t *tracer, _ int) flow { return matched(t.packet.Port == s.Port, false) }

// Translated matches connections whose destination was rewritten (ct status dnat).
type Translated struct{}

func (Translated) text(Family) string { return "ct status dnat" }

func (Translated) expressions(Family) []expr.Any {
	const statusDNAT = 1 << 5 // IPS_DST_NAT in linux/netfilter/nf_conntrack_common.h
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: register(0)}, maskWith(hostOrder(statusDNAT)), compare(true, hostOrder(0)),
	}
}

func (Translated) parse(_ Family, x []expr.Any) (Stmt, int) {
	ct, mask, compared := at[*expr.Ct](x, 0), at[*expr.Bitwise](x, 1), at[*expr.Cmp](x, 2)
	if ct == nil || ct.Key != expr.CtKeySTATUS || mask == nil || compared == nil {
		return nil, 0
	}
	return Translated{}, 3
}

func (Translated) trace(t *tracer, _ int) flow { return matched(t.result.Outcome == "dnat", false) }

// MarkHas matches packets with any bit of Bits in their mark.
type MarkHas struct{ Bits uint32 }

func (s MarkHas) text(Family) string {
	return fmt.Sprintf("meta mark & 0x%08x != 0x00000000", s.Bits)
}

func (s MarkHas) expressions(Family) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: register(0)}, maskWith(hostOrder(s.Bits)), compare(true, hostOrder(0)),
	}
}

func (MarkHas) parse(_ Family, x []expr.Any) (Stmt, int) {
	loaded, mask, compared := at[*expr.Meta](x, 0), at[*expr.Bitwise](x, 1), at[*expr.Cmp](x, 2)
	if loaded == nil || loaded.Key != expr.MetaKeyMARK || mask == nil || len(mask.Mask) != 4 || compared == nil {
		return nil, 0
	}
	return MarkHas{binary.NativeEndian.Uint32(mask.Mask)}, 3
}

func (s MarkHas) trace(t *tracer, _ int) flow { return matched(t.mark&s.Bits != 0, false) }

// comparedMeta is the comparison that follows when the first expression loads key; nil if
// there is none.
func comparedMeta(x []expr.Any, key expr.MetaKey) *expr.Cmp {
	if loaded := at[*expr.Meta](x, 0); loaded == nil || loaded.Key != key {
		return nil
	}
	return at[*expr.Cmp](x, 1)
}

// maskWith keeps the bits of the first register that are set in mask.
func maskWith(mask []byte) expr.Any { return bitwise(register(0), mask, make([]byte, len(mask))) }

// bitwise turns a register into (register & mask) ^ xor.
func bitwise(register uint32, mask, xor []byte) expr.Any {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

// compare goes on with the rule if the first register equals value; with not, if it differs.
func compare(not bool, value []byte) expr.Any {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Cmp{Op: op, Register: register(0), Data: value}
}

// hostOrder is n as the packet path computes with it.
func hostOrder(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
