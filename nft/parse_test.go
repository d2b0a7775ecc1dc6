package nft_test

import (
	"bytes"
	"testing"

	"github.com/google/nftables/expr"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// typed reads statements out of a rule.
func typed(f nft.Family, rule nft.Rule) nft.Rule {
	t := nft.NewTable(f)
	t.Chains["chain"] = &nft.Chain{Name: "chain", Rules: []nft.Rule{rule}}
	return t.Typed().Chains["chain"].Rules[0]
}

// TestTypedReadsEveryStatement reads back each statement that a rule of ours can have.
func TestTypedReadsEveryStatement(t *testing.T) {
	for _, f := range nft.Families {
		for _, s := range nfttest.Statements {
			want := s.Rule(f)
			if got := typed(f, rawRule(t, f, want)); got.Text(f) != want.Text(f) {
				t.Errorf("%s: %s: read as %s, want %s", f, s.Name, got.Text(f), want.Text(f))
			}
		}
	}
}

// TestTypedLeavesForeignRules: what differs from our statements in one number only must not
// be taken for one of them.
func TestTypedLeavesForeignRules(t *testing.T) {
	for name, x := range map[string]expr.Any{
		"another expression":   &expr.Log{},
		"random, but not full": &expr.Masq{Random: true},
		"continue":             &expr.Verdict{Kind: expr.VerdictContinue},
		"a code of its own":    &expr.Reject{Type: 0, Code: 13},
	} {
		rule := expressionRule(t, x)
		if got := typed(nft.IP, rule); got[0] != rule[0] {
			t.Errorf("%s was read as %s", name, got.Text(nft.IP))
		}
	}
	ones := bytes.Repeat([]byte{0xff}, 16)
	for name, x := range map[string][]expr.Any{
		"a counter with a verdict": {&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictAccept}},
		"a mask that is longer than an address": {
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4},
			&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 16, Mask: ones, Xor: make([]byte, 16)},
			&expr.Lookup{SourceRegister: 1, SetName: "members"}},
	} {
		rule := expressionRule(t, x...)
		if got := typed(nft.IP, rule); len(got) != 1 || got[0] != rule[0] {
			t.Errorf("%s was read as %s", name, got.Text(nft.IP))
		}
	}
}

func FuzzTyped(f *testing.F) {
	for _, s := range nfttest.Statements {
		f.Add(uint8(nft.IP), []byte(rawRule(f, nft.IP, s.Rule(nft.IP))[0].(nft.Raw).Expressions))
		f.Add(uint8(nft.IP6), []byte(rawRule(f, nft.IP6, s.Rule(nft.IP6))[0].(nft.Raw).Expressions))
	}
	f.Fuzz(func(t *testing.T, family uint8, expressions []byte) {
		if nft.Family(family) != nft.IP && nft.Family(family) != nft.IP6 {
			return
		}
		rule := nft.Rule{nft.Raw{Expressions: string(expressions)}}
		if got := typed(nft.Family(family), rule); !got.Equal(nft.Family(family), rule) {
			t.Errorf("read as %s, which is another rule", got.Text(nft.Family(family)))
		}
	})
}
