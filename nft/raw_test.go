package nft_test

import (
	"testing"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/nfttest"
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

// expressionRule is a rule of any expressions, as it would be read back.
func expressionRule(t testing.TB, expressions ...expr.Any) nft.Rule {
	t.Helper()
	var w attr.Writer
	for _, x := range expressions {
		b, err := expr.Marshal(byte(nft.IP), x)
		if err != nil {
			t.Fatal(err)
		}
		at := w.Open(unix.NFTA_LIST_ELEM)
		w.Buf = append(w.Buf, b...)
		w.Pad()
		w.Close(at)
	}
	return nft.Rule{nft.Raw{Expressions: string(w.Buf)}}
}

// TestRuleEqual compares every statement with every other one: each equals itself alone.
func TestRuleEqual(t *testing.T) {
	for _, f := range nft.Families {
		for i, a := range nfttest.Statements {
			for j, b := range nfttest.Statements {
				if got := a.Rule(f).Equal(f, b.Rule(f)); got != (i == j) {
					t.Errorf("%s: %q equals %q: %v", f, a.Name, b.Name, got)
				}
			}
		}
	}
}

// TestRuleUnequal compares pairs that differ in one small thing.
func TestRuleUnequal(t *testing.T) {
	raw := func(exprs ...expr.Any) nft.Rule { return expressionRule(t, exprs...) }
	for name, pair := range map[string][2]nft.Rule{
		"lookup with and without verdict": {raw(&expr.Lookup{SourceRegister: 1, SetName: "s"}),
			raw(&expr.Lookup{SourceRegister: 1, SetName: "s", IsDestRegSet: true})},
		"length of zeros": {raw(&expr.Cmp{Register: 1, Data: make([]byte, 4)}),
			raw(&expr.Cmp{Register: 1, Data: make([]byte, 8)})},
		"counter and none": {raw(&expr.Counter{}), raw()},
		"nat flags":        {raw(&expr.NAT{Type: 1, RegAddrMin: 1}), raw(&expr.NAT{Type: 1, RegAddrMin: 1, Random: true})},
		"nat range":        {raw(&expr.NAT{Type: 1, RegAddrMin: 1}), raw(&expr.NAT{Type: 1, RegAddrMin: 1, RegAddrMax: 2})},
		"masquerade":       {raw(&expr.Masq{}), {nft.Masquerade{}}},
		"reject code":      {raw(&expr.Reject{Type: 0, Code: 1}), {nft.Reject{}}},
		"order":            {{nft.Drop, nft.Return}, {nft.Return, nft.Drop}},
		"number":           {{nft.Drop}, {nft.Drop, nft.Drop}},
	} {
		if pair[0].Equal(nft.IP, pair[1]) || pair[1].Equal(nft.IP, pair[0]) {
			t.Errorf("%s: equal", name)
		}
	}
	if counted := raw(&expr.Counter{Bytes: 7, Packets: 1}); !counted.Equal(nft.IP, raw(&expr.Counter{})) {
		t.Error("counters of other values: unequal")
	}
}

func TestRawText(t *testing.T) {
	raw := rawRule(t, nft.IP, nft.Rule{nft.RejectTCP{}, nft.Drop})
	got := raw.Text(nft.IP)
	if want := "# expressions: meta cmp reject immediate"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if again := rawRule(t, nft.IP, raw); again[0] != raw[0] {
		t.Error("a raw rule is not written as it was read")
	}
}

// FuzzCanonical holds the comparison of rules to its laws on any bytes.
func FuzzCanonical(f *testing.F) {
	for _, s := range nfttest.Statements {
		f.Add([]byte(rawRule(f, nft.IP6, s.Rule(nft.IP6))[0].(nft.Raw).Expressions))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rule := nft.Rule{nft.Raw{Expressions: string(b)}}
		if !rule.Equal(nft.IP, rule) {
			t.Error("a rule does not equal itself")
		}
		_ = rule.Text(nft.IP)
	})
}
