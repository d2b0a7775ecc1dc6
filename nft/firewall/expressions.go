package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

// An expressionRule is a rule of nf_tables, with its expressions as the kernel lists them.
type expressionRule struct {
	table       *table
	handle      uint64
	expressions []byte
}

func (r expressionRule) name() string { return fmt.Sprintf("its rule with handle %d", r.handle) }

// registerBytes is the length of all registers of nf_tables together.
const registerBytes = 16 * 5

// registerAt is where a register begins. Source: enum nft_registers in linux/netfilter/nf_tables.h.
func registerAt(number uint32) int {
	if number >= unix.NFT_REG32_00 {
		return int(number-unix.NFT_REG32_00)*4 + 16
	}
	return int(number) * 16
}

// Numbers that package unix lacks. Source: linux/netfilter/nf_tables.h.
const (
	bitwiseOperation = 6 // NFTA_BITWISE_OP; 0 is mask and xor
	verdictAccept    = 1 // NF_ACCEPT
	verdictDrop      = 0 // NF_DROP
	verdictQueue     = 3 // NF_QUEUE
	verdictRepeat    = 4 // NF_REPEAT, which ip_tables has for a return
)

// A run is the evaluation of one rule.
type run struct {
	rule      expressionRule
	walk      *walk
	decision  decision
	registers field
	data      []byte // of the current expression
}

// decide evaluates the rule's expressions, in their order.
func (r expressionRule) decide(w *walk) decision {
	e := run{rule: r, walk: w, decision: decision{match: yes, general: true}, registers: unknownField(registerBytes)}
	for list := attr.NewReader(r.expressions); list.Next() && e.decision.match != no; {
		e.data = attr.Find(list.Value, unix.NFTA_EXPR_DATA)
		e.expression(attr.Name(attr.Find(list.Value, unix.NFTA_EXPR_NAME)))
	}
	return e.decision
}

// number is an attribute of the expression.
func (e *run) number(typ uint16) uint32 { return attr.Uint32(attr.Find(e.data, typ)) }

// value is an attribute of the expression that holds data.
func (e *run) value(typ uint16) []byte {
	return attr.Find(attr.Find(e.data, typ), unix.NFTA_DATA_VALUE)
}

// load writes a register that the expression names. The kernel fills the last 32 bits with zeros.
func (e *run) load(typ uint16, f field) {
	for len(f.value)%4 != 0 {
		f.value, f.known = append(f.value, 0), append(f.known, 0xff)
	}
	e.registers.write(registerAt(e.number(typ)), f)
}

// write replaces a part of a field.
func (f *field) write(at int, with field) {
	if at >= 0 && at+len(with.value) <= len(f.value) {
		copy(f.value[at:], with.value)
		copy(f.known[at:], with.known)
	}
}

// read is n bytes of a register that the expression names.
func (e *run) read(typ uint16, n int) field { return e.registers.cut(registerAt(e.number(typ)), n) }

// only adds a condition.
func (e *run) only(t truth) { e.decision.match = e.decision.match.and(t) }

// about says that the rule is about certain packets.
func (e *run) about() { e.decision.general = false }

// expression evaluates one expression.
func (e *run) expression(name string) {
	switch name {
	case "counter", "log", "last", "dup", "objref", "flow_offload", "dynset":
	case "meta":
		e.meta()
	case "ct":
		e.ct()
	case "payload":
		e.payload()
	case "bitwise":
		e.bitwise()
	case "byteorder":
		e.byteorder()
	case "cmp":
		value := e.value(unix.NFTA_CMP_DATA)
		e.only(compare(e.number(unix.NFTA_CMP_OP), e.read(unix.NFTA_CMP_SREG, len(value)), value))
	case "range":
		from, to := e.value(unix.NFTA_RANGE_FROM_DATA), e.value(unix.NFTA_RANGE_TO_DATA)
		f := e.read(unix.NFTA_RANGE_SREG, len(from))
		in := compare(unix.NFT_CMP_GTE, f, from).and(compare(unix.NFT_CMP_LTE, f, to))
		if e.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ {
			in = in.not()
		}
		e.only(in)
	case "lookup":
		e.lookup()
	case "immediate":
		if verdict := attr.Find(attr.Find(e.data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT); verdict != nil {
			e.verdict(verdict)
		} else {
			e.load(unix.NFTA_IMMEDIATE_DREG, knownField(e.value(unix.NFTA_IMMEDIATE_DATA)))
		}
	case "reject":
		e.decision.action = refuses
	case "nat", "redir", "tproxy":
		e.decision.effect |= translating
	case "notrack":
		e.decision.effect |= untracking
	case "match", "target":
		e.extension(name)
	default: // limit, fib, socket and others: what they load or decide is not known
		e.registers = unknownField(registerBytes)
		e.about()
		e.only(maybe)
	}
}

// extension evaluates an extension of x_tables.
func (e *run) extension(kind string) {
	x := extension{
		Name:     attr.Name(attr.Find(e.data, unix.NFTA_MATCH_NAME)), // the attributes of targets have the same numbers
		Revision: uint8(e.number(unix.NFTA_MATCH_REV)),
		Data:     attr.Find(e.data, unix.NFTA_MATCH_INFO),
	}
	if kind == "target" {
		x.target(e.walk, &e.decision)
		return
	}
	t, general := x.matches(e.walk)
	e.only(t)
	e.decision.general = e.decision.general && general
}

// meta evaluates what belongs to the packet.
func (e *run) meta() {
	key, p := e.number(unix.NFTA_META_KEY), e.walk.packet
	if attr.Find(e.data, unix.NFTA_META_SREG) != nil {
		if key == unix.NFT_META_MARK {
			e.decision.sets, e.decision.mark = true, e.read(unix.NFTA_META_SREG, 4)
		}
		return
	}
	f, general := unknownField(16), false
	switch key {
	case unix.NFT_META_MARK:
		f, general = e.walk.mark, true
	case unix.NFT_META_NFPROTO:
		f, general = knownField([]byte{byte(p.Family)}), true
	case unix.NFT_META_PROTOCOL:
		ethertype := map[nft.Family]uint16{nft.IP: unix.ETH_P_IP, nft.IP6: unix.ETH_P_IPV6}[p.Family]
		f, general = knownField(binary.BigEndian.AppendUint16(nil, ethertype)), true
	case unix.NFT_META_L4PROTO: // general, as firewalls refuse each protocol in its own way
		f, general = unknownField(1), true
		f.put(0, p.protocol()...)
	case unix.NFT_META_IIFNAME:
		f = interfaceName(p.In)
	case unix.NFT_META_OIFNAME:
		f = interfaceName(p.Out)
	case unix.NFT_META_IIF:
		f = interfaceIndex(p.In)
	case unix.NFT_META_OIF:
		f = interfaceIndex(p.Out)
	}
	e.decision.general = e.decision.general && general
	e.load(unix.NFTA_META_DREG, f)
}

// ct evaluates what connection tracking knows.
func (e *run) ct() {
	if attr.Find(e.data, unix.NFTA_CT_SREG) != nil {
		return
	}
	switch e.number(unix.NFTA_CT_KEY) {
	case unix.NFT_CT_STATE:
		e.load(unix.NFTA_CT_DREG, number(e.walk.packet.State))
	case unix.NFT_CT_STATUS:
		e.load(unix.NFTA_CT_DREG, number(e.walk.packet.Status))
	case unix.NFT_CT_DIRECTION:
		e.load(unix.NFTA_CT_DREG, knownField([]byte{byte(is(e.walk.packet.State == StateEstablished) / yes)}))
	default:
		e.about()
		e.load(unix.NFTA_CT_DREG, unknownField(16))
	}
}

// payload evaluates what the packet's headers have.
func (e *run) payload() {
	if attr.Find(e.data, unix.NFTA_PAYLOAD_SREG) != nil {
		return
	}
	n := int(min(e.number(unix.NFTA_PAYLOAD_LEN), registerBytes))
	header := unknownField(0)
	switch e.number(unix.NFTA_PAYLOAD_BASE) {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		header = e.walk.packet.networkHeader()
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		header = e.walk.packet.transportHeader()
	}
	protocolAt := uint32(9)
	if e.walk.packet.Family == nft.IP6 {
		protocolAt = 6
	}
	if e.number(unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER || n != 1 ||
		e.number(unix.NFTA_PAYLOAD_OFFSET) != protocolAt { // as for NFT_META_L4PROTO
		e.about()
	}
	e.load(unix.NFTA_PAYLOAD_DREG, header.cut(int(min(e.number(unix.NFTA_PAYLOAD_OFFSET), 1<<16)), n))
}

// bitwise evaluates mask and xor.
func (e *run) bitwise() {
	n := int(min(e.number(unix.NFTA_BITWISE_LEN), registerBytes))
	mask, xor := e.value(unix.NFTA_BITWISE_MASK), e.value(unix.NFTA_BITWISE_XOR)
	f := e.read(unix.NFTA_BITWISE_SREG, n)
	if e.number(bitwiseOperation) != 0 || len(mask) != n || len(xor) != n {
		f = unknownField(n)
	} else {
		for i := range f.value {
			f.value[i] = f.value[i]&mask[i] ^ xor[i]
			f.known[i] |= ^mask[i]
		}
	}
	e.load(unix.NFTA_BITWISE_DREG, f)
}

// byteorder evaluates a change of the order of bytes.
func (e *run) byteorder() {
	n, size := int(min(e.number(unix.NFTA_BYTEORDER_LEN), registerBytes)), int(e.number(unix.NFTA_BYTEORDER_SIZE))
	f := e.read(unix.NFTA_BYTEORDER_SREG, n)
	if size < 2 || n%size != 0 {
		f = unknownField(n)
	} else if binary.NativeEndian.Uint16([]byte{1, 0}) == 1 {
		for at := 0; at < n; at += size {
			slices.Reverse(f.value[at : at+size])
			slices.Reverse(f.known[at : at+size])
		}
	}
	e.load(unix.NFTA_BYTEORDER_DREG, f)
}

// compare compares a field with a value, by NFT_CMP_….
func compare(operation uint32, f field, with []byte) truth {
	whole, differs := true, false
	for i := range with {
		whole = whole && f.known[i] == 0xff
		differs = differs || (f.value[i]^with[i])&f.known[i] != 0
	}
	switch {
	case operation == unix.NFT_CMP_EQ && differs:
		return no
	case operation == unix.NFT_CMP_NEQ && differs:
		return yes
	case !whole:
		return maybe
	}
	order := bytes.Compare(f.value[:len(with)], with)
	switch operation {
	case unix.NFT_CMP_EQ:
		return is(order == 0)
	case unix.NFT_CMP_NEQ:
		return is(order != 0)
	case unix.NFT_CMP_LT:
		return is(order < 0)
	case unix.NFT_CMP_LTE:
		return is(order <= 0)
	case unix.NFT_CMP_GT:
		return is(order > 0)
	case unix.NFT_CMP_GTE:
		return is(order >= 0)
	}
	return maybe
}

// verdict records what a verdict says.
func (e *run) verdict(b []byte) {
	e.decision.chain = attr.Name(attr.Find(b, unix.NFTA_VERDICT_CHAIN))
	e.decision.verdict(int32(attr.Uint32(attr.Find(b, unix.NFTA_VERDICT_CODE))))
}

// verdict takes in a verdict by its code.
func (d *decision) verdict(code int32) {
	switch code {
	case verdictAccept:
		d.action = accepts
	case verdictDrop:
		d.action = refuses
	case unix.NFT_JUMP:
		d.action = jumps
	case unix.NFT_GOTO:
		d.action = goesTo
	case unix.NFT_RETURN, verdictRepeat:
		d.action = returns
	default:
		if code&0xff == verdictQueue { // a program decides
			d.action, d.match = accepts, d.match.and(maybe)
		}
	}
}

// lookup evaluates whether a set contains a key, and the verdict of a verdict map. The kernel finds the key as
// it does for a packet: sets may be large.
func (e *run) lookup() {
	name := attr.Name(attr.Find(e.data, unix.NFTA_LOOKUP_SET))
	verdicts := attr.Find(e.data, unix.NFTA_LOOKUP_DREG) != nil
	keyLen, err := e.rule.table.keyLen(e.walk.ctx, name)
	if err != nil {
		e.walk.err = errors.Join(e.walk.err, err)
		return
	}
	key := e.read(unix.NFTA_LOOKUP_SREG, keyLen)
	found, element := maybe, []byte(nil)
	if !slices.ContainsFunc(key.known, func(b byte) bool { return b != 0xff }) {
		if element, err = e.rule.table.element(e.walk.ctx, name, key.value); err != nil {
			e.walk.err = errors.Join(e.walk.err, err)
			return
		}
		found = is(element != nil)
	}
	if e.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0 { // of a set alone
		found = found.not()
	}
	if e.only(found); !verdicts {
		return
	}
	data := attr.Find(element, unix.NFTA_SET_ELEM_DATA)
	if verdict := attr.Find(data, unix.NFTA_DATA_VERDICT); verdict != nil {
		e.verdict(verdict)
	} else if registerAt(e.number(unix.NFTA_LOOKUP_DREG)) != 0 { // a map of values
		f := unknownField(16)
		if value := attr.Find(data, unix.NFTA_DATA_VALUE); value != nil {
			f = knownField(value)
		}
		e.load(unix.NFTA_LOOKUP_DREG, f)
	} else if found == maybe { // any of its verdicts
		e.decision.action = accepts
	}
}
