package nft

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"

	"github.com/kube-nft/kube-nft/integration/lab"

	"github.com/kube-nft/kube-nft/nft/attr"
)

// rawRule is a rule as it would be read back.
func rawRule(t testing.TB, f Family, rule Rule) Rule {
	t.Helper()
	var w attr.Writer
	if err := rule.append(&w, f); err != nil {
		t.Fatal(err)
	}
	return Rule{Raw{Expressions: string(w.Buf)}}
}

// expressionsOf is a statement of any expressions.
type expressionsOf []expr.Any

func (expressionsOf) text(Family) string                   { return "" }
func (x expressionsOf) expressions(Family) []expr.Any      { return x }
func (expressionsOf) parse(Family, []expr.Any) (Stmt, int) { return nil, 0 }
func (expressionsOf) trace(*tracer, int) flow              { return skip }

// TestTypedReadsEveryStatement reads back each statement that a rule of ours can have.
func TestTypedReadsEveryStatement(t *testing.T) {
	for _, f := range Families {
		for _, tt := range statements {
			want := tt.rule(f)
			if got := rawRule(t, f, want).typed(f); got.Text(f) != want.Text(f) {
				t.Errorf("%s: %s: read as %s, want %s", f, tt.name, got.Text(f), want.Text(f))
			}
		}
	}
}

// TestTypedReadsWholeRulesets does so with the rules of random worlds, as the kernel lists
// them.
func TestTypedReadsWholeRulesets(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	w, r := newWorld(3), NewRuleset(testConfig())
	for range 20 {
		r.Apply(w.change())
	}
	commit(t, k, Diff(Tables{}, r.Want()))
	tables, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for f, want := range r.Want() {
		for name, chain := range tables[f].Typed().Chains {
			if diff := cmp.Diff(ruleTexts(f, want.Chains[name].Rules), ruleTexts(f, chain.Rules)); diff != "" {
				t.Errorf("%s %s (-want +got):\n%s", f, name, diff)
			}
		}
	}
}

func ruleTexts(f Family, rules []Rule) (texts []string) {
	for _, rule := range rules {
		texts = append(texts, rule.Text(f))
	}
	return texts
}

// TestTypedLeavesForeignRules: what differs from our statements in one number only must not
// be taken for one of them.
func TestTypedLeavesForeignRules(t *testing.T) {
	for name, x := range map[string]expr.Any{
		"a counter":            &expr.Counter{},
		"another expression":   &expr.Log{},
		"random, but not full": &expr.Masq{Random: true},
		"continue":             &expr.Verdict{Kind: expr.VerdictContinue},
		"a code of its own":    &expr.Reject{Type: 0, Code: 13},
	} {
		rule := rawRule(t, IP, Rule{expressionsOf{x}})
		if _, raw := rule.typed(IP)[0].(Raw); !raw {
			t.Errorf("%s was read as %s", name, rule.typed(IP).Text(IP))
		}
	}
}

func FuzzTyped(f *testing.F) {
	for _, tt := range statements {
		f.Add(uint8(IP), []byte(rawRule(f, IP, tt.rule(IP))[0].(Raw).Expressions))
		f.Add(uint8(IP6), []byte(rawRule(f, IP6, tt.rule(IP6))[0].(Raw).Expressions))
	}
	f.Fuzz(func(t *testing.T, family uint8, expressions []byte) {
		if Family(family) != IP && Family(family) != IP6 {
			return
		}
		rule := Rule{Raw{Expressions: string(expressions)}}
		if typed := rule.typed(Family(family)); !typed.Equal(Family(family), rule) {
			t.Errorf("read as %s, which is another rule", typed.Text(Family(family)))
		}
	})
}
