package change_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

func texts(b nft.Batch) (list []string) {
	for _, op := range b.Ops {
		list = append(list, op.Text())
	}
	return list
}

// growth is the batch by which the table of a FrontendBatch gets a set, a chain that names it,
// and an element that goes there.
func growth() nft.Batch {
	chain := &nft.Chain{Name: "new", Rules: []nft.Rule{{nft.InSet{Key: []nft.Part{nft.Source}, Set: "members"}, nft.Drop}}}
	have, want := nft.NewTable(nft.IP), nft.NewTable(nft.IP)
	have.Sets["services"] = &nft.Elements{Set: &nfttest.FrontendSet}
	frontend := nfttest.Frontends(1, nft.Goto("new"))[0]
	want.Sets["services"] = &nft.Elements{Set: &nfttest.FrontendSet,
		Map: map[string]nft.Element{frontend.Key: frontend.Element}}
	want.Sets["members"] = &nft.Elements{Set: &nft.Set{Name: "members", Key: []nft.Field{nft.FieldAddr}}}
	want.Chains["new"] = chain
	return change.Diff(nft.Tables{nft.IP: have}, nft.Tables{nft.IP: want})
}

// TestTwoPhases makes a chain before anything leads to it, and takes that back.
func TestTwoPhases(t *testing.T) {
	whole := growth()
	first, rest := change.TwoPhases(&whole)
	for name, tt := range map[string]struct {
		batch nft.Batch
		want  []string
	}{
		"first": {first, []string{
			"add set ip kube-nft members { type ipv4_addr; }",
			"add chain ip kube-nft new",
			"add rule ip kube-nft new ip saddr @members drop",
		}},
		"rest": {rest, []string{
			`add element ip kube-nft services { 10.0.0.0 . tcp . 80 comment "shop/cart-0:http" : goto new }`,
		}},
		"back": {change.Reverse(&first), []string{
			"flush chain ip kube-nft new",
			"delete chain ip kube-nft new",
			"delete set ip kube-nft members",
		}},
	} {
		if diff := cmp.Diff(tt.want, texts(tt.batch)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestOnePhase: a batch that makes its table, or no chain, is not taken apart.
func TestOnePhase(t *testing.T) {
	for name, whole := range map[string]nft.Batch{
		"table":    change.Diff(nil, nfttest.StatementTables()),
		"elements": {Ops: nfttest.FrontendBatch(3, nft.Drop).Ops[3:]},
	} {
		first, rest := change.TwoPhases(&whole)
		if diff := cmp.Diff(texts(whole), texts(rest)); diff != "" || !first.Empty() {
			t.Errorf("%s: %d operations come first; the rest (-want +got):\n%s", name, len(first.Ops), diff)
		}
	}
}

func TestWithoutDestroy(t *testing.T) {
	elements := nfttest.Frontends(1, nft.Drop)
	b := nft.Batch{Generation: 7, Ops: []nft.Op{
		{Verb: nft.Destroy, Family: nft.IP, Set: &nfttest.FrontendSet, Elements: elements},
		{Verb: nft.Flush, Family: nft.IP, Chain: &nft.Chain{Name: "other"}},
	}}
	want := []string{
		`add element ip kube-nft services { 10.0.0.0 . tcp . 80 comment "shop/cart-0:http" : drop }`,
		"delete element ip kube-nft services { 10.0.0.0 . tcp . 80 }",
		"flush chain ip kube-nft other",
	}
	same := change.WithoutDestroy(&b)
	if diff := cmp.Diff(want, texts(*same)); diff != "" || same.Generation != 7 {
		t.Errorf("generation %d (-want +got):\n%s", same.Generation, diff)
	}
	if again := change.WithoutDestroy(same); again != same {
		t.Error("a batch without Destroy is written again")
	}
}
