package change_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// fresh is the batch that makes a table of one base chain, with three frontends of one, two and
// three endpoints, and a set of addresses.
func fresh() nft.Batch {
	b := nfttest.EndpointBatch(1, 2, 3)
	table := nfttest.TableOf(b)
	addresses := &nft.Set{Name: "addresses", Rank: 9, Key: []nft.Field{nft.FieldAddr}}
	table.Sets["addresses"] = &nft.Elements{Set: addresses, Map: map[string]nft.Element{"\x0a\x00\x00\x01": {}}}
	services := &nft.Elements{Set: &nfttest.FrontendSet, Map: make(map[string]nft.Element)}
	for _, frontend := range nfttest.Frontends(3, nft.Drop) {
		services.Map[frontend.Key] = frontend.Element
	}
	table.Sets["services"] = services
	table.Chains["nat-output"] = &nft.Chain{Name: "nat-output", Rules: []nft.Rule{{nft.Drop}},
		Hook: &nft.Hook{Type: "nat", Point: "output", Priority: -101}}
	return change.Diff(nil, nft.Tables{nft.IP: table})
}

// TestParts takes the batch apart: what packets see comes last, frontends come before their lists, and no list is cut.
func TestParts(t *testing.T) {
	whole := fresh()
	whole.Generation, whole.Foreign = 7, make([]nft.ForeignMessage, 1)
	before, last := change.Parts(&whole, 4)
	type part struct {
		structure, lists, verdicts, others, base int
		generation                               uint32
	}
	var got []part
	for _, b := range append(before, last) {
		p := part{generation: b.Generation}
		for _, op := range b.Ops {
			switch {
			case op.Chain != nil && op.Chain.Hook != nil:
				p.base++
			case op.Elements == nil:
				p.structure++
			case op.Set.Verdicts:
				p.verdicts += len(op.Elements)
			case op.Set.Name == nfttest.EndpointSet.Name:
				p.lists += len(op.Elements)
			default:
				p.others += len(op.Elements)
			}
		}
		got = append(got, p)
	}
	want := []part{
		{structure: 4, verdicts: 3, lists: 1, generation: 7}, {lists: 5}, {others: 1}, {base: 2, generation: 10}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(part{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(last.Foreign) != 1 {
		t.Errorf("the last part has %d messages about tables of others, want 1", len(last.Foreign))
	}
}

// TestOnePart: what packets may see on the way is not taken apart, nor what is no trouble.
func TestOnePart(t *testing.T) {
	check, small, replaced, live := fresh(), fresh(), fresh(), fresh()
	check.Check = true
	replaced.Ops = append([]nft.Op{{Verb: nft.Delete, Family: nft.IP, Table: nft.NewTable(nft.IP)}}, replaced.Ops...)
	live.Ops = live.Ops[:0]
	for _, op := range fresh().Ops {
		if op.Chain == nil {
			live.Ops = append(live.Ops, op)
		}
	}
	for _, tt := range []struct {
		name  string
		batch nft.Batch
		most  int
	}{{"check", check, 4}, {"small", small, 10}, {"replaced", replaced, 4}, {"without base chains", live, 4}} {
		before, last := change.Parts(&tt.batch, tt.most)
		if diff := cmp.Diff(texts(tt.batch), texts(last)); diff != "" || len(before) > 0 {
			t.Errorf("%s: %d parts come before; the last (-want +got):\n%s", tt.name, len(before), diff)
		}
	}
}
