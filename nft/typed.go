package nft

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Typed returns a table that was read from the kernel with its rules as statements, so that
// Trace can follow them. A rule that no kube-nft would write stays Raw. Sets are shared with
// the table.
func (t *Table) Typed() *Table {
	typed := &Table{Family: t.Family, Comment: t.Comment, Sets: t.Sets, Chains: make(map[string]*Chain, len(t.Chains))}
	for name, chain := range t.Chains {
		c := &Chain{Name: chain.Name, Hook: chain.Hook, Rules: make([]Rule, len(chain.Rules))}
		for i, rule := range chain.Rules {
			c.Rules[i] = rule.typed(t.Family)
		}
		typed.Chains[name] = c
	}
	return typed
}

// typed reads statements out of a rule's expressions. What it reads must give the same
// expressions again: whatever it misunderstands stays as it was.
func (r Rule) typed(f Family) Rule {
	if len(r) != 1 {
		return r
	}
	raw, ok := r[0].(Raw)
	if !ok {
		return r
	}
	reader := ruleReader{family: f, rest: parseExpressions(f, raw.Expressions)}
	if rule := reader.rule(); rule != nil && rule.Equal(f, r) {
		return rule
	}
	return r
}

// parseExpressions decodes a rule's expressions; nil if one of them is of a kind that no rule
// of ours has.
func parseExpressions(f Family, b string) (list []expr.Any) {
	items := attributes{b: []byte(b)}
	for items.next() {
		if doesNothing(items.value) {
			continue
		}
		name := strings.TrimRight(string(find(items.value, unix.NFTA_EXPR_NAME)), "\x00")
		data := find(items.value, unix.NFTA_EXPR_DATA)
		x := parseExpression(f, name, data)
		if x == nil {
			return nil
		}
		list = append(list, x)
	}
	return list
}

// parseExpression decodes one expression; nil if no rule of ours has it.
func parseExpression(f Family, name string, data []byte) expr.Any {
	if name == "immediate" {
		if verdict := find(find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT); verdict != nil {
			return parseVerdict(verdict)
		}
	}
	x := newExpression(name)
	if x == nil || expr.Unmarshal(byte(f), data, x) != nil {
		return nil
	}
	return x
}

// parseVerdict is there because expr.Verdict takes the length of what it decodes for granted.
func parseVerdict(b []byte) expr.Any {
	code := find(b, unix.NFTA_VERDICT_CODE)
	if len(code) != 4 {
		return nil
	}
	chain := attributes{value: find(b, unix.NFTA_VERDICT_CHAIN)}
	return &expr.Verdict{Kind: expr.VerdictKind(int32(binary.BigEndian.Uint32(code))), Chain: chain.name()}
}

func newExpression(name string) expr.Any {
	switch name {
	case "immediate":
		return &expr.Immediate{}
	case "payload":
		return &expr.Payload{}
	case "meta":
		return &expr.Meta{}
	case "ct":
		return &expr.Ct{}
	case "fib":
		return &expr.Fib{}
	case "numgen":
		return &expr.Numgen{}
	case "bitwise":
		return &expr.Bitwise{}
	case "cmp":
		return &expr.Cmp{}
	case "lookup":
		return &expr.Lookup{}
	case "nat":
		return &expr.NAT{}
	case "masq":
		return &expr.Masq{}
	case "reject":
		return &expr.Reject{}
	case "dynset":
		return &expr.Dynset{}
	}
	return nil
}

// A ruleReader turns expressions into statements, from first to last.
type ruleReader struct {
	family Family
	rest   []expr.Any
}

// rule returns nil if there is anything that it does not know.
func (r *ruleReader) rule() (rule Rule) {
	for len(r.rest) > 0 {
		stmt := r.stmt()
		if stmt == nil {
			return nil
		}
		switch stmt.(type) { // these two begin with a test of the protocol
		case RejectTCP:
			rule = rule[:max(0, len(rule)-1)]
		case DNATFrom:
			if _, tested := last(rule).(InSet); tested {
				rule = rule[:len(rule)-1]
			}
		}
		rule = append(rule, stmt)
	}
	return rule
}

func last(rule Rule) Stmt {
	if len(rule) == 0 {
		return nil
	}
	return rule[len(rule)-1]
}

// take returns the next expression and moves on; nil after the last one.
func (r *ruleReader) take() expr.Any {
	if len(r.rest) == 0 {
		return nil
	}
	x := r.rest[0]
	r.rest = r.rest[1:]
	return x
}

func (r *ruleReader) stmt() Stmt {
	first := r.rest[0]
	switch x := first.(type) {
	case *expr.Verdict:
		r.take()
		return verdictStmt(x)
	case *expr.Masq:
		r.take()
		return Masquerade{}
	case *expr.Reject:
		r.take()
		if x.Type == unix.NFT_REJECT_TCP_RST {
			return RejectTCP{}
		}
		return Reject{}
	}
	if len(r.rest) > 1 {
		switch r.rest[1].(type) {
		case *expr.Cmp, *expr.Bitwise:
			return r.comparison()
		}
	}
	return r.lookup()
}

func verdictStmt(v *expr.Verdict) Stmt {
	switch v.Kind {
	case expr.VerdictJump:
		return Jump{v.Chain}
	case expr.VerdictGoto:
		return Goto{v.Chain}
	case expr.VerdictDrop:
		return Drop{}
	case expr.VerdictReturn:
		return Return{}
	}
	return nil
}

// comparison reads a value that is loaded, perhaps masked, and compared, or written back.
func (r *ruleReader) comparison() Stmt {
	loaded := r.take()
	mask, _ := r.rest[0].(*expr.Bitwise)
	if mask != nil {
		r.take()
	}
	switch x := r.take().(type) {
	case *expr.Cmp:
		return r.compared(loaded, mask, x.Data, x.Op == expr.CmpOpNeq)
	case *expr.Meta:
		if mask != nil && x.SourceRegister {
			return markStmt(mask)
		}
	}
	return nil
}

func (r *ruleReader) compared(loaded expr.Any, mask *expr.Bitwise, data []byte, not bool) Stmt {
	switch x := loaded.(type) {
	case *expr.Payload:
		return r.comparedPayload(x, mask, data, not)
	case *expr.Meta:
		return comparedMeta(x, mask, data, not)
	case *expr.Fib:
		if x.FlagSADDR {
			return SourceLocal{}
		}
		return DestinationLocal{}
	case *expr.Ct:
		return Translated{}
	}
	return nil
}

func (r *ruleReader) comparedPayload(x *expr.Payload, mask *expr.Bitwise, data []byte, not bool) Stmt {
	if x.Base == expr.PayloadBaseTransportHeader && len(data) == 2 {
		return PortIs{binary.BigEndian.Uint16(data)}
	}
	ones := 8 * len(data)
	if mask != nil {
		ones = onesIn(mask.Mask)
	}
	full := make([]byte, r.family.addrLen())
	copy(full, data)
	addr, _ := netip.AddrFromSlice(full)
	switch prefix := netip.PrefixFrom(addr, ones); x.Offset {
	case r.family.sourceOffset():
		return SourceIn{Prefix: prefix, Not: not}
	case r.family.destinationOffset():
		return DestinationIn{Prefix: prefix, Not: not}
	}
	return nil
}

func onesIn(b []byte) (n int) {
	for _, x := range b {
		n += bits.OnesCount8(x)
	}
	return n
}

func comparedMeta(x *expr.Meta, mask *expr.Bitwise, data []byte, not bool) Stmt {
	switch {
	case x.Key == expr.MetaKeyIIFNAME:
		name, padding, exact := bytes.Cut(data, []byte{0})
		if len(bytes.Trim(padding, "\x00")) > 0 {
			return nil
		}
		return InputInterface{Name: string(name), Prefix: !exact, Not: not}
	case x.Key == expr.MetaKeyL4PROTO && len(data) == 1:
		return ProtocolIs{data[0]}
	case x.Key == expr.MetaKeyMARK && mask != nil && len(mask.Mask) == 4:
		return MarkHas{binary.NativeEndian.Uint32(mask.Mask)}
	}
	return nil
}

// markStmt reads (mark & mask) ^ xor.
func markStmt(b *expr.Bitwise) Stmt {
	if len(b.Mask) != 4 || len(b.Xor) != 4 {
		return nil
	}
	flip := binary.NativeEndian.Uint32(b.Xor)
	if binary.NativeEndian.Uint32(b.Mask) == ^uint32(0) {
		return FlipMark{flip}
	}
	return SetMark{flip}
}

// lookup reads values that are loaded one after the other and looked up together.
func (r *ruleReader) lookup() Stmt {
	var key []Part
	for {
		x := r.take()
		if part, ok := r.part(x); ok {
			key = append(key, part)
			continue
		}
		switch x := x.(type) {
		case *expr.Lookup:
			return r.lookedUp(key, x)
		case *expr.Dynset:
			return Remember{Map: x.SetName, Timeout: uint64(x.Timeout.Seconds())}
		}
		return nil
	}
}

func (r *ruleReader) lookedUp(key []Part, x *expr.Lookup) Stmt {
	switch {
	case !x.IsDestRegSet:
		return InSet{Key: key, Set: x.SetName, Not: x.Invert}
	case x.DestRegister == unix.NFT_REG_VERDICT:
		return VerdictFrom{Key: key, Map: x.SetName}
	}
	dnat := DNATFrom{Key: key, Map: x.SetName}
	next := r.take()
	if port, ok := next.(*expr.Immediate); ok && len(port.Data) == 2 {
		dnat.ToPort = binary.BigEndian.Uint16(port.Data)
		next = r.take()
	}
	if _, ok := next.(*expr.NAT); !ok {
		return nil
	}
	return dnat
}

// part reads what an expression loads into a register.
func (r *ruleReader) part(x expr.Any) (Part, bool) {
	switch x := x.(type) {
	case *expr.Payload:
		switch {
		case x.Base == expr.PayloadBaseTransportHeader:
			return Port, true
		case x.Offset == r.family.sourceOffset():
			return Source, true
		}
		return Destination, true
	case *expr.Meta:
		return Protocol, true
	case *expr.Numgen:
		return RandomIndex(x.Modulus), true
	case *expr.Ct:
		return originalPart(x.Key), true
	}
	return Part{}, false
}

func originalPart(key expr.CtKey) Part {
	switch key {
	case expr.CtKeySRCIP, expr.CtKeySRCIP6:
		return OriginalSource
	case expr.CtKeyDSTIP, expr.CtKeyDSTIP6:
		return OriginalDestination
	}
	return OriginalPort
}
