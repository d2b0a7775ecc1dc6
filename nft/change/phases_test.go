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

// TestPhases makes a chain before anything leads to it, and takes that back.
func TestPhases(t *testing.T) {
	whole := growth()
	first, rest, last := change.Phases(&whole)
	checkTexts(t, "first", first,
		"add set ip kube-nft members { type ipv4_addr; }",
		"add chain ip kube-nft new",
		"add rule ip kube-nft new ip saddr @members drop")
	checkTexts(t, "rest", rest,
		`add element ip kube-nft services { 10.0.0.0 . tcp . 80 comment "shop/cart-0:http" : goto new }`)
	checkTexts(t, "last", last)
	checkTexts(t, "back", change.Reverse(&first),
		"flush chain ip kube-nft new",
		"delete chain ip kube-nft new",
		"delete set ip kube-nft members")
}

func checkTexts(t *testing.T, name string, b nft.Batch, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, texts(b)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", name, diff)
	}
}

// TestLastPhase: what packets under way may still look up goes last, unless the batch replaces it.
func TestLastPhase(t *testing.T) {
	list := &nft.Set{Name: "list-7", Key: []nft.Field{nft.FieldIndex, nft.FieldIndex}, Data: []nft.Field{nft.FieldAddr}}
	ports := &nft.Set{Name: "ports-7", Key: []nft.Field{nft.FieldIndex, nft.FieldPort}, Data: []nft.Field{nft.FieldPort}}
	entries := &nft.Set{Name: "affinity-7", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr},
		Dynamic: true}
	at := func(number, index uint32, octet byte) nft.KeyedElement {
		return nft.KeyedElement{Key: nft.IndexedKey(nft.IndexedKey("", int(number)), int(index)),
			Element: nft.Element{Data: string([]byte{10, 0, 0, octet})}}
	}
	port := nft.KeyedElement{Key: nft.IndexedKey("", 7) + nft.PortData(80) + "\x00\x00",
		Element: nft.Element{Data: nft.PortData(8080)}}
	entry := nft.KeyedElement{Key: "\x0a\x00\x00\x09", Element: nft.Element{Data: "\x0a\x00\x00\x01"}}
	remove := func(set *nft.Set, elements ...nft.KeyedElement) nft.Op {
		return nft.Op{Verb: nft.Delete, Family: nft.IP, Set: set, Elements: elements}
	}
	whole := nft.Batch{Ops: []nft.Op{
		remove(list, at(7, 0, 1), at(7, 1, 2), at(8, 0, 1)),
		{Verb: nft.Add, Family: nft.IP, Set: list, Elements: []nft.KeyedElement{at(8, 0, 3)}},
		remove(ports, port),
		remove(entries, entry),
		{Verb: nft.Delete, Family: nft.IP, Chain: &nft.Chain{Name: "list-7"}},
		remove(entries),
	}}
	first, rest, last := change.Phases(&whole)
	checkTexts(t, "first", first)
	checkTexts(t, "rest", rest,
		"delete element ip kube-nft list-7 { 7 . 1, 8 . 0 }",
		"add element ip kube-nft list-7 { 8 . 0 : 10.0.0.3 }",
		"delete element ip kube-nft affinity-7 { 10.0.0.9 }",
		"delete chain ip kube-nft list-7")
	checkTexts(t, "last", last,
		"delete element ip kube-nft list-7 { 7 . 0 }",
		"delete element ip kube-nft ports-7 { 7 . 80 }",
		"delete map ip kube-nft affinity-7")
	whole.Ops = whole.Ops[len(whole.Ops)-1:]
	_, rest, last = change.Phases(&whole)
	checkTexts(t, "alone", rest, "delete map ip kube-nft affinity-7")
	checkTexts(t, "after it", last)
}

// TestOnePhase: a batch that makes its table, or neither makes nor removes what choices end with, is not taken apart.
func TestOnePhase(t *testing.T) {
	made := change.Diff(nil, nfttest.StatementTables())
	for name, whole := range map[string]nft.Batch{
		"table":    made,
		"remade":   {Ops: append([]nft.Op{{Verb: nft.Delete, Family: nft.IP, Set: &nfttest.FrontendSet}}, made.Ops...)},
		"elements": {Ops: nfttest.FrontendBatch(3, nft.Drop).Ops[3:]},
	} {
		first, rest, last := change.Phases(&whole)
		if diff := cmp.Diff(texts(whole), texts(rest)); diff != "" || !first.Empty() || !last.Empty() {
			t.Errorf("%s: %d operations come first, %d last; the rest (-want +got):\n%s", name, len(first.Ops),
				len(last.Ops), diff)
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
