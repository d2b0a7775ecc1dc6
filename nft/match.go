package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
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

// SourceIn matches packets whose source address is in Prefix.
type SourceIn struct {
	Prefix netip.Prefix
	Not    bool
}

func (s SourceIn) text(f Family) string {
	return f.NFT() + " saddr " + notText(s.Not) + prefixText(s.Prefix)
}

func (s SourceIn) expressions(f Family) []expr.Any {
	return matchPrefix(sourceOffset(f), s.Prefix, s.Not)
}

func (SourceIn) parse(f Family, x []expr.Any) (Stmt, int) {
	prefix, not, n := parsePrefix(f, sourceOffset(f), x)
	return SourceIn{prefix, not}, n
}

func (s SourceIn) trace(t *tracer, _ int) flow {
	return matched(s.Prefix.Contains(t.packet.Source), s.Not)
}

// DestinationIn matches packets whose destination address is in Prefix.
type DestinationIn struct {
	Prefix netip.Prefix
	Not    bool
}

func (s DestinationIn) text(f Family) string {
	return f.NFT() + " daddr " + notText(s.Not) + prefixText(s.Prefix)
}

func (s DestinationIn) expressions(f Family) []expr.Any {
	return matchPrefix(destinationOffset(f), s.Prefix, s.Not)
}

func (DestinationIn) parse(f Family, x []expr.Any) (Stmt, int) {
	prefix, not, n := parsePrefix(f, destinationOffset(f), x)
	return DestinationIn{prefix, not}, n
}

func (s DestinationIn) trace(t *tracer, _ int) flow {
	return matched(s.Prefix.Contains(t.packet.Destination), s.Not)
}

// matchPrefix compares the address at an offset of the network header. A prefix of whole
// bytes is compared without a mask, as nft does it.
func matchPrefix(offset uint32, p netip.Prefix, not bool) []expr.Any {
	addr := p.Masked().Addr().AsSlice()
	if n := p.Bits() / 8; n > 0 && p.Bits()%8 == 0 {
		return []expr.Any{loadAddr(offset, n, register(0)), compare(not, addr[:n])}
	}
	mask := prefixMask(p.Bits(), len(addr))
	return []expr.Any{loadAddr(offset, len(addr), register(0)), maskWith(mask), compare(not, addr)}
}

// parsePrefix reads what matchPrefix wrote; n is 0 for anything else.
func parsePrefix(f Family, offset uint32, x []expr.Any) (prefix netip.Prefix, not bool, n int) {
	loaded := at[*expr.Payload](x, 0)
	if loaded == nil || loaded.Base != expr.PayloadBaseNetworkHeader || loaded.Offset != offset {
		return prefix, false, 0
	}
	n, ones := 1, 0
	mask := at[*expr.Bitwise](x, n)
	if mask != nil {
		n++
		for _, b := range mask.Mask {
			ones += bits.OnesCount8(b)
		}
	}
	compared := at[*expr.Cmp](x, n)
	if compared == nil {
		return prefix, false, 0
	}
	if mask == nil {
		ones = 8 * len(compared.Data)
	}
	full := make([]byte, AddrLen(f))
	copy(full, compared.Data)
	addr, _ := netip.AddrFromSlice(full)
	return netip.PrefixFrom(addr, ones), compared.Op == expr.CmpOpNeq, n + 1
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

// SourceLocal matches packets whose source is an address of this node, loopback addresses
// included.
type SourceLocal struct{}

func (SourceLocal) text(Family) string { return "fib saddr type local" }

func (SourceLocal) expressions(Family) []expr.Any { return matchLocal(&expr.Fib{FlagSADDR: true}) }

func (SourceLocal) parse(_ Family, x []expr.Any) (Stmt, int) {
	if fib := at[*expr.Fib](x, 0); fib != nil && fib.FlagSADDR && at[*expr.Cmp](x, 1) != nil {
		return SourceLocal{}, 2
	}
	return nil, 0
}

func (SourceLocal) trace(t *tracer, _ int) flow { return matched(t.packet.SourceLocal, false) }

// DestinationLocal matches packets to an address of this node, loopback addresses included.
type DestinationLocal struct{}

func (DestinationLocal) text(Family) string { return "fib daddr type local" }

func (DestinationLocal) expressions(Family) []expr.Any { return matchLocal(&expr.Fib{FlagDADDR: true}) }

func (DestinationLocal) parse(_ Family, x []expr.Any) (Stmt, int) {
	if fib := at[*expr.Fib](x, 0); fib != nil && fib.FlagDADDR && at[*expr.Cmp](x, 1) != nil {
		return DestinationLocal{}, 2
	}
	return nil, 0
}

func (DestinationLocal) trace(t *tracer, _ int) flow {
	return matched(t.packet.DestinationLocal, false)
}

func matchLocal(fib *expr.Fib) []expr.Any {
	fib.Register, fib.ResultADDRTYPE = register(0), true
	return []expr.Any{fib, compare(false, hostOrder(unix.RTN_LOCAL))}
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
func maskWith(mask []byte) expr.Any { return bitwise(mask, make([]byte, len(mask))) }

// bitwise turns the first register into (register & mask) ^ xor.
func bitwise(mask, xor []byte) expr.Any {
	return &expr.Bitwise{
		SourceRegister: register(0), DestRegister: register(0),
		Len: uint32(len(mask)), Mask: mask, Xor: xor,
	}
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
