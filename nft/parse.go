package nft

import (
	"encoding/binary"
	"reflect"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// Typed returns a table read from the kernel with its rules as statements, so that Trace can follow
// them. A rule that kube-nft never writes stays Raw. The result shares its sets with the table.
func (t *Table) Typed() *Table {
	typed := &Table{Family: t.Family, Comment: t.Comment, Sets: t.Sets, Chains: make(map[string]*Chain, len(t.Chains))}
	for name, chain := range t.Chains {
		c := &Chain{Name: chain.Name, Hook: chain.Hook, Rules: make([]Rule, len(chain.Rules))}
		for i, rule := range chain.Rules {
			c.Rules[i] = rule.Typed(t.Family)
		}
		typed.Chains[name] = c
	}
	return typed
}

// Typed reads statements from a rule's expressions. The statements must give the same expressions
// again; otherwise the rule stays as it was.
func (r Rule) Typed(f Family) Rule {
	if len(r) != 1 {
		return r
	}
	raw, ok := r[0].(Raw)
	if !ok {
		return r
	}
	if rule := parseRule(f, parseExpressions(f, raw.Expressions)); rule != nil && rule.Equal(f, r) {
		return rule
	}
	return r
}

// parseRule turns expressions into statements; nil if some expression belongs to no statement.
func parseRule(f Family, x []expr.Any) (rule Rule) {
	for len(x) > 0 {
		stmt, n := parseStmt(f, x)
		if n == 0 {
			return nil
		}
		rule, x = append(rule, stmt), x[n:]
	}
	if len(rule) > 1 && slices.Contains(rule, Stmt(Counter{})) {
		return nil // ours stand alone
	}
	return rule
}

func parseStmt(f Family, x []expr.Any) (Stmt, int) {
	for _, one := range statementTypes {
		if stmt, n := one.parse(f, x); n > 0 {
			return stmt, n
		}
	}
	return nil, 0
}

// statementTypes holds one of each type, for parse. RejectTCP, DNATFrom and EchoRequest begin as other
// statements do and therefore come first.
var statementTypes = [...]Stmt{
	RejectTCP{}, DNATFrom{}, VerdictFrom{}, InSet{}, Update{}, Forget{}, AddressIn{}, InputInterface{},
	AddressLocal{}, EchoRequest{}, ProtocolIs{}, PortIs{}, Translated{}, MarkHas{}, SetMark{}, FlipMark{},
	Masquerade{}, Reject{}, Redirect{}, Counter{}, Verdict{}, Raw{},
}

// parseExpressions decodes a rule's expressions; nil if one is of a kind that no rule of ours has.
func parseExpressions(f Family, b string) (list []expr.Any) {
	items := attr.NewReader([]byte(b))
	for items.Next() {
		if doesNothing(items.Value) {
			continue
		}
		name := attr.Name(attr.Find(items.Value, unix.NFTA_EXPR_NAME))
		data := attr.Find(items.Value, unix.NFTA_EXPR_DATA)
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
		if verdict := attr.Find(attr.Find(data, unix.NFTA_IMMEDIATE_DATA), unix.NFTA_DATA_VERDICT); verdict != nil {
			return parseVerdict(verdict)
		}
	}
	x := newExpression(name)
	if x == nil || expr.Unmarshal(byte(f), data, x) != nil {
		return nil
	}
	return x
}

// parseVerdict stands in for expr.Verdict, which trusts the length of what it decodes.
func parseVerdict(b []byte) expr.Any {
	code := attr.Find(b, unix.NFTA_VERDICT_CODE)
	if len(code) != 4 {
		return nil
	}
	return &expr.Verdict{Kind: expr.VerdictKind(int32(binary.BigEndian.Uint32(code))),
		Chain: attr.Name(attr.Find(b, unix.NFTA_VERDICT_CHAIN))}
}

// newExpression returns an empty expression of a kind that rules of ours have; nil for other kinds.
func newExpression(name string) expr.Any {
	if kind := ourExpressions[name]; kind != nil {
		return reflect.New(reflect.TypeOf(kind).Elem()).Interface().(expr.Any)
	}
	return nil
}

var ourExpressions = map[string]expr.Any{
	"immediate": &expr.Immediate{}, "cmp": &expr.Cmp{}, "bitwise": &expr.Bitwise{}, "lookup": &expr.Lookup{},
	"payload": &expr.Payload{}, "meta": &expr.Meta{}, "ct": &expr.Ct{}, "fib": &expr.Fib{},
	"numgen": &expr.Numgen{}, "hash": &expr.Hash{}, "nat": &expr.NAT{}, "masq": &expr.Masq{},
	"redir": &expr.Redir{}, "reject": &expr.Reject{}, "dynset": &expr.Dynset{}, "counter": &expr.Counter{},
}
