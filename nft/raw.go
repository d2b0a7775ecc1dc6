package nft

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// Raw is a rule as the kernel holds it: the content of NFTA_RULE_EXPRESSIONS.
type Raw struct{ Expressions string }

// RuleOf returns the rule of expressions that are no statement of ours.
func RuleOf(f Family, x ...expr.Any) (Rule, error) {
	var w attr.Writer
	for _, e := range x {
		if err := appendExpression(&w, f, e); err != nil {
			return nil, err
		}
	}
	return Rule{Raw{Expressions: string(w.Buf)}}, nil
}

// appendExpression appends one expression.
func appendExpression(w *attr.Writer, f Family, x expr.Any) error {
	b, err := expr.Marshal(byte(f), x)
	if err != nil {
		return err
	}
	at := w.Open(unix.NFTA_LIST_ELEM)
	w.Buf = append(w.Buf, b...)
	w.Pad()
	w.Close(at)
	return nil
}

// text names the expressions; it is no nft syntax.
func (s Raw) text(Family) string {
	var names []string
	items := attr.NewReader([]byte(s.Expressions))
	for items.Next() {
		names = append(names, PlainComment(attr.Name(attr.Find(items.Value, unix.NFTA_EXPR_NAME))))
	}
	return "# expressions: " + strings.Join(names, " ")
}

// expressions is never called: the encoder and Equal take the bytes.
func (Raw) expressions(Family) []expr.Any { return nil }

func (Raw) parse(Family, []expr.Any) (Stmt, int) { return nil, 0 }

func (Raw) trace(t *tracer, step int) flow { return t.foreign(step) }

// Equal reports whether two rules do the same in a table of family f: whether they have the same
// expressions. Comments and the values of counters do not matter. Either rule may come from the
// kernel.
func (r Rule) Equal(f Family, other Rule) bool {
	for len(r) > 0 && len(other) > 0 && reflect.DeepEqual(r[0], other[0]) { // mostly, and quicker
		r, other = r[1:], other[1:]
	}
	if len(r) > 0 && len(other) > 0 { // what follows cannot make rules equal that differ here
		a, b := r[:1].canonical(f), other[:1].canonical(f)
		if !bytes.HasPrefix(a, b) && !bytes.HasPrefix(b, a) {
			return false
		}
	}
	return string(r.canonical(f)) == string(other.canonical(f))
}

// canonical returns the form that all rules equal to this one share.
func (r Rule) canonical(f Family) []byte {
	var given, c attr.Writer
	if err := r.AppendTo(&given, f); err != nil {
		return nil
	}
	items := attr.NewReader(given.Buf)
	for items.Next() {
		if doesNothing(items.Value) {
			continue
		}
		at := c.Open(unix.NFTA_LIST_ELEM)
		canonicalExpression(&c, items.Value)
		c.Close(at)
	}
	return c.Buf
}

// AppendTo appends the rule's expressions, the content of NFTA_RULE_EXPRESSIONS.
func (r Rule) AppendTo(w *attr.Writer, f Family) error {
	for _, stmt := range r {
		if raw, ok := stmt.(Raw); ok {
			w.Buf = append(w.Buf, raw.Expressions...)
			continue
		}
		for _, x := range stmt.expressions(f) {
			if err := appendExpression(w, f, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// doesNothing recognises a change of byte order of a single byte. nft 1.0.6 writes one for a
// protocol that is looked up among ranges.
func doesNothing(b []byte) bool {
	return string(attr.Find(b, unix.NFTA_EXPR_NAME)) == "byteorder\x00" &&
		attr.Uint32(attr.Find(attr.Find(b, unix.NFTA_EXPR_DATA), unix.NFTA_BYTEORDER_LEN)) == 1
}

// canonicalExpression appends the canonical form of one expression. A counter's state, its counts,
// is left out.
func canonicalExpression(w *attr.Writer, b []byte) {
	name := string(attr.Find(b, unix.NFTA_EXPR_NAME))
	w.Bytes(unix.NFTA_EXPR_NAME, name)
	if name == "counter\x00" {
		return
	}
	at := w.Open(unix.NFTA_EXPR_DATA)
	var list []attr.Reader
	data := attr.Find(b, unix.NFTA_EXPR_DATA)
	attrs := attr.NewReader(data)
	for attrs.Next() {
		if !idle(&attrs, name, data) {
			list = append(list, attrs)
		}
	}
	slices.SortStableFunc(list, func(a, b attr.Reader) int { return int(a.Type) - int(b.Type) })
	for _, a := range list {
		w.Head(a.Type, len(a.Value))
		w.Buf = append(w.Buf, plainNested(a.Value, maxNested)...)
		w.Pad()
	}
	w.Close(at)
}

// idle reports whether an attribute of the named expression means nothing. These are those of idleIfZero;
// the identity of a set within the batch that made it; and what the kernel adds to a nat expression. siblings are all
// attributes of the expression.
func idle(a *attr.Reader, name string, siblings []byte) bool {
	name = strings.TrimRight(name, "\x00")
	switch {
	case name == "lookup" && a.Type == unix.NFTA_LOOKUP_SET_ID, name == "dynset" && a.Type == unix.NFTA_DYNSET_SET_ID:
		return true
	case name == "nat":
		return idleNAT(a, siblings)
	}
	return slices.Contains(idleIfZero[name], a.Type) && len(bytes.Trim(a.Value, "\x00")) == 0
}

// idleIfZero are flags, operations and the like of expressions that the kernel lists even if they are zero, and that a
// writer may leave out; and the code of a TCP reset.
var idleIfZero = map[string][]uint16{
	"lookup":  {unix.NFTA_LOOKUP_FLAGS},
	"dynset":  {unix.NFTA_DYNSET_FLAGS, unix.NFTA_DYNSET_TIMEOUT},
	"bitwise": {6}, // NFTA_BITWISE_OP
	"numgen":  {unix.NFTA_NG_OFFSET},
	"hash":    {unix.NFTA_HASH_OFFSET},
	"masq":    {unix.NFTA_MASQ_FLAGS},
	"reject":  {unix.NFTA_REJECT_ICMP_CODE},
}

// idleNAT is idle for the nat expression: the kernel turns a single register into a range and adds
// the flags that say which registers are given.
func idleNAT(a *attr.Reader, siblings []byte) bool {
	const given = 1 | 2 // NF_NAT_RANGE_MAP_IPS, NF_NAT_RANGE_PROTO_SPECIFIED
	switch a.Type {
	case unix.NFTA_NAT_FLAGS:
		return a.Uint32()&^given == 0
	case unix.NFTA_NAT_REG_ADDR_MAX:
		return bytes.Equal(a.Value, attr.Find(siblings, unix.NFTA_NAT_REG_ADDR_MIN))
	case unix.NFTA_NAT_REG_PROTO_MAX:
		return bytes.Equal(a.Value, attr.Find(siblings, unix.NFTA_NAT_REG_PROTO_MIN))
	}
	return false
}

// maxNested is how deep attributes are nested in any expression, and more.
const maxNested = 8

// plainNested is a value without the flag that marks nested attributes: the kernel sets it
// inconsistently. It is applied to anything that looks like attributes, in both rules of a
// comparison alike.
func plainNested(b []byte, depth int) []byte {
	out := slices.Clone(b)
	attrs := attr.NewReader(out)
	for depth > 0 && attrs.Next() {
		binary.NativeEndian.PutUint16(out[attrs.At()+2:], attrs.Type)
		copy(attrs.Value, plainNested(attrs.Value, depth-1))
	}
	return out
}

// EqualRules reports whether the rules of two chains in a table of family f do the same.
func (c *Chain) EqualRules(f Family, other *Chain) bool {
	return c == other || slices.EqualFunc(c.Rules, other.Rules, func(a, b Rule) bool { return a.Equal(f, b) })
}
