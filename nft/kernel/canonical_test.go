package kernel

import (
	"testing"

	"github.com/google/nftables/expr"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

// TestRuleEqual compares every statement with every other one: each equals itself alone.
func TestRuleEqual(t *testing.T) {
	for _, f := range nft.Families {
		for i, a := range statements {
			for j, b := range statements {
				if got := a.rule(f).Equal(f, b.rule(f)); got != (i == j) {
					t.Errorf("%s: %q equals %q: %v", f, a.name, b.name, got)
				}
			}
		}
	}
}

// TestRuleEqualInKernel compares rules as nft wrote them with ours.
func TestRuleEqualInKernel(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	tables := statementTables()
	lab.Run(t, tables.Text(), "nft", "-f", "-")
	checkRead(t, k, tables)
	for _, odd := range []struct{ command, chain string }{
		{"add rule ip kube-nft other counter", "other"},
		{"insert rule ip kube-nft after drop", "after"},
		{"add rule ip kube-nft before ip saddr 10.244.0.0/17", "before"},
		{"add rule ip kube-nft before dnat to 10.0.0.1", "before"},
	} {
		lab.Run(t, "", "nft", odd.command)
		got, _, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		have, want := got[nft.IP].Chains[odd.chain], tables[nft.IP].Chains[odd.chain]
		if len(have.Rules) != len(want.Rules)+1 {
			t.Errorf("after %q: %d rules, want one more than %d", odd.command, len(have.Rules), len(want.Rules))
		}
		commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Flush, Family: nft.IP, Chain: want}}})
		if len(want.Rules) > 0 {
			commit(t, k, nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Chain: want, Rules: want.Rules}}})
		}
		checkRead(t, k, tables)
	}
}

// TestRuleUnequal compares pairs that differ in one small thing.
func TestRuleUnequal(t *testing.T) {
	raw := func(exprs ...expr.Any) nft.Rule {
		return rawRule(t, nft.IP, nft.Rule{expressionsOf(exprs)})
	}
	for name, pair := range map[string][2]nft.Rule{
		"lookup with and without verdict": {raw(&expr.Lookup{SourceRegister: 1, SetName: "s"}), raw(&expr.Lookup{SourceRegister: 1, SetName: "s", IsDestRegSet: true})},
		"length of zeros":                 {raw(&expr.Cmp{Register: 1, Data: make([]byte, 4)}), raw(&expr.Cmp{Register: 1, Data: make([]byte, 8)})},
		"counter and none":                {raw(&expr.Counter{}), raw()},
		"nat flags":                       {raw(&expr.NAT{Type: 1, RegAddrMin: 1}), raw(&expr.NAT{Type: 1, RegAddrMin: 1, Random: true})},
		"nat range":                       {raw(&expr.NAT{Type: 1, RegAddrMin: 1}), raw(&expr.NAT{Type: 1, RegAddrMin: 1, RegAddrMax: 2})},
		"masquerade":                      {raw(&expr.Masq{}), {nft.Masquerade{}}},
		"reject code":                     {raw(&expr.Reject{Type: 0, Code: 1}), {nft.Reject{}}},
		"order":                           {{nft.Drop, nft.Return}, {nft.Return, nft.Drop}},
		"number":                          {{nft.Drop}, {nft.Drop, nft.Drop}},
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
