package nft

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Raw is a rule as the kernel holds it: the content of NFTA_RULE_EXPRESSIONS.
type Raw struct{ Expressions string }

// text names the expressions; it is no nft syntax.
func (s Raw) text(Family) string {
	var names []string
	items := attributes{b: []byte(s.Expressions)}
	for items.next() {
		name := strings.TrimRight(string(find(items.value, unix.NFTA_EXPR_NAME)), "\x00")
		names = append(names, plainComment(name))
	}
	return "# expressions: " + strings.Join(names, " ")
}

// expressions has no use: the encoder and Equal take the bytes as they are.
func (Raw) expressions(Family) []expr.Any { return nil }

func (Raw) parse(Family, []expr.Any) (Stmt, int) { return nil, 0 }

func (Raw) trace(t *tracer, step int) flow { return t.foreign(step) }

// Equal reports whether two rules do the same in a table of family f: whether they are made
// of the same expressions. Comments and the values of counters do not matter. Either rule may
// have been read from the kernel.
func (r Rule) Equal(f Family, other Rule) bool {
	return string(r.canonical(f)) == string(other.canonical(f))
}

// canonical brings the rule's expressions into the one form that everything equal has.
func (r Rule) canonical(f Family) []byte {
	var given, c wire
	if err := r.append(&given, f); err != nil {
		return nil
	}
	items := attributes{b: given.buf}
	for items.next() {
		if doesNothing(items.value) {
			continue
		}
		at := c.open(unix.NFTA_LIST_ELEM)
		c.expression(items.value)
		c.close(at)
	}
	return c.buf
}

// append appends the rule's expressions, the content of NFTA_RULE_EXPRESSIONS.
func (r Rule) append(w *wire, f Family) error {
	for _, stmt := range r {
		if raw, ok := stmt.(Raw); ok {
			w.buf = append(w.buf, raw.Expressions...)
			continue
		}
		for _, x := range stmt.expressions(f) {
			b, err := expr.Marshal(byte(f), x)
			if err != nil {
				return err
			}
			at := w.open(unix.NFTA_LIST_ELEM)
			w.buf = append(w.buf, b...)
			w.pad()
			w.close(at)
		}
	}
	return nil
}

// doesNothing recognises the change of byte order of a single byte, which nft 1.0.6 writes for
// a protocol that is looked up among ranges.
func doesNothing(b []byte) bool {
	length := attributes{b: find(b, unix.NFTA_EXPR_DATA)}
	for length.next() {
		if length.typ == unix.NFTA_BYTEORDER_LEN {
			return length.uint32() == 1 && string(find(b, unix.NFTA_EXPR_NAME)) == "byteorder\x00"
		}
	}
	return false
}

// expression appends the canonical form of one expression. What counts is its state and left
// out.
func (w *wire) expression(b []byte) {
	name := string(find(b, unix.NFTA_EXPR_NAME))
	w.bytes(unix.NFTA_EXPR_NAME, name)
	if name == "counter\x00" {
		return
	}
	at := w.open(unix.NFTA_EXPR_DATA)
	w.sorted(name, find(b, unix.NFTA_EXPR_DATA))
	w.close(at)
}

// sorted appends an expression's attributes by type, without those that say nothing.
func (w *wire) sorted(name string, b []byte) {
	var list []attributes
	attrs := attributes{b: b}
	for attrs.next() {
		if !attrs.idle(name, b) {
			list = append(list, attrs)
		}
	}
	slices.SortStableFunc(list, func(a, b attributes) int { return int(a.typ) - int(b.typ) })
	for _, a := range list {
		w.head(a.typ, len(a.value))
		w.buf = append(w.buf, plainNested(a.value, maxNested)...)
		w.pad()
	}
}

// idle reports whether an attribute of the named expression says nothing: flags, operations
// and the like that are zero, which the kernel lists and a writer need not mention; the
// identity of a set within the batch that made it; and the code of a TCP reset. siblings are
// all attributes of the expression.
func (a *attributes) idle(name string, siblings []byte) bool {
	switch strings.TrimRight(name, "\x00") {
	case "lookup":
		return a.typ == unix.NFTA_LOOKUP_SET_ID || a.typ == unix.NFTA_LOOKUP_FLAGS && a.isZero()
	case "dynset":
		return a.typ == unix.NFTA_DYNSET_SET_ID || a.typ == unix.NFTA_DYNSET_FLAGS && a.isZero()
	case "bitwise":
		const operation = 6 // NFTA_BITWISE_OP
		return a.typ == operation && a.isZero()
	case "numgen":
		return a.typ == unix.NFTA_NG_OFFSET && a.isZero()
	case "nat":
		return a.idleNAT(siblings)
	case "masq":
		return a.typ == unix.NFTA_MASQ_FLAGS && a.isZero()
	case "reject":
		return a.typ == unix.NFTA_REJECT_ICMP_CODE && a.isZero()
	}
	return false
}

// idleNAT is idle for the nat expression: the kernel makes a range of a single register and
// adds the flags that say which registers are given.
func (a *attributes) idleNAT(siblings []byte) bool {
	const given = 1 | 2 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED
	switch a.typ {
	case unix.NFTA_NAT_FLAGS:
		return a.uint32()&^given == 0
	case unix.NFTA_NAT_REG_ADDR_MAX:
		return bytes.Equal(a.value, find(siblings, unix.NFTA_NAT_REG_ADDR_MIN))
	case unix.NFTA_NAT_REG_PROTO_MAX:
		return bytes.Equal(a.value, find(siblings, unix.NFTA_NAT_REG_PROTO_MIN))
	}
	return false
}

func (a *attributes) isZero() bool { return len(bytes.Trim(a.value, "\x00")) == 0 }

// maxNested is how deep attributes are nested in any expression, and more.
const maxNested = 8

// plainNested is a value without the flag that marks nested attributes, which the kernel
// sets, or does not, as it likes. It is applied to anything that looks like attributes, in
// both rules of a comparison alike.
func plainNested(b []byte, depth int) []byte {
	out := slices.Clone(b)
	attrs := attributes{b: out}
	for depth > 0 && attrs.next() {
		binary.NativeEndian.PutUint16(out[attrs.at+2:], attrs.typ)
		copy(attrs.value, plainNested(attrs.value, depth-1))
	}
	return out
}
