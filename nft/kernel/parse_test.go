package kernel

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/services"
)

// rawRule is a rule as it would be read back.
func rawRule(t testing.TB, f nft.Family, rule nft.Rule) nft.Rule {
	t.Helper()
	var w attr.Writer
	if err := rule.AppendTo(&w, f); err != nil {
		t.Fatal(err)
	}
	return nft.Rule{nft.Raw{Expressions: string(w.Buf)}}
}

// expressionsOf is a statement of any expressions.
type expressionsOf []expr.Any

func (expressionsOf) text(nft.Family) string                       { return "" }
func (x expressionsOf) expressions(nft.Family) []expr.Any          { return x }
func (expressionsOf) parse(nft.Family, []expr.Any) (nft.Stmt, int) { return nil, 0 }
func (expressionsOf) trace(*nft.tracer, int) nft.flow              { return nft.skip }

// TestTypedReadsEveryStatement reads back each statement that a rule of ours can have.
func TestTypedReadsEveryStatement(t *testing.T) {
	for _, f := range nft.Families {
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
	w, r := services.newWorld(3), services.NewRuleset(services.testConfig())
	for range 20 {
		r.Apply(w.change())
	}
	commit(t, k, nft.Diff(nft.Tables{}, r.Want()))
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

func ruleTexts(f nft.Family, rules []nft.Rule) (texts []string) {
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
		rule := rawRule(t, nft.IP, nft.Rule{expressionsOf{x}})
		if _, raw := rule.typed(nft.IP)[0].(nft.Raw); !raw {
			t.Errorf("%s was read as %s", name, rule.typed(nft.IP).Text(nft.IP))
		}
	}
}

func FuzzTyped(f *testing.F) {
	for _, tt := range statements {
		f.Add(uint8(nft.IP), []byte(rawRule(f, nft.IP, tt.rule(nft.IP))[0].(nft.Raw).Expressions))
		f.Add(uint8(nft.IP6), []byte(rawRule(f, nft.IP6, tt.rule(nft.IP6))[0].(nft.Raw).Expressions))
	}
	f.Fuzz(func(t *testing.T, family uint8, expressions []byte) {
		if nft.Family(family) != nft.IP && nft.Family(family) != nft.IP6 {
			return
		}
		rule := nft.Rule{nft.Raw{Expressions: string(expressions)}}
		if typed := rule.typed(nft.Family(family)); !typed.Equal(nft.Family(family), rule) {
			t.Errorf("read as %s, which is another rule", typed.Text(nft.Family(family)))
		}
	})
}
