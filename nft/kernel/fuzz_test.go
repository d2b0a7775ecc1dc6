package kernel

import (
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// FuzzReplies feeds hostile bytes to everything that reads what a socket received.
func FuzzReplies(f *testing.F) {
	batch := change.Diff(nil, sampleTables(2))
	seed, err := encodeBatch(&batch, scope{table: nft.TableName}, 1)
	if err != nil {
		f.Fatal(err)
	}
	for _, ref := range seed.refs {
		f.Add(attr.MessageAt(seed.buf, ref.offset))
	}
	f.Add([]byte{36, 0, 0, 0, 2, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 12, 0, 4, 0, 8, 0, 2, 0, 1, 0, 0, 0})
	sets := append(elementKinds(nft.IP), &nft.Set{Name: "nothing"})
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = answer(b, 1, func(attr.Reply) {})
		attr.Replies(b, func(r attr.Reply) {
			_ = r.Ack()
			for _, family := range nft.Families {
				decodeAll(family, sets, r.Attributes())
			}
		})
	})
}

func decodeAll(f nft.Family, sets []*nft.Set, b []byte) {
	name, table := decodeTable(f, b)
	_, set := decodeSet(f, b)
	_, chain := decodeChain(b)
	_ = decodePacketEvent(f, b)
	_, _, rule := decodeRule(b)
	chain.Rules = append(chain.Rules, rule)
	table.Chains[chain.Name] = chain
	table.Sets[set.Name] = &nft.Elements{Set: set}
	for _, s := range sets {
		d := newElementDecoder(f, s)
		d.message(b)
		table.Sets[s.Name] = &nft.Elements{Set: s, Map: d.Elements()}
	}
	_ = rule.Equal(f, nft.Rule{nft.Drop})
	if name != "" {
		_ = nft.Tables{f: table}.Text()
	}
}

// FuzzCommentOnWire checks that the kernel gets a comment as nft prints it, and that it does not
// run into what follows.
func FuzzCommentOnWire(f *testing.F) {
	for _, s := range nfttest.Comments {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, comment string) {
		b := nfttest.FrontendBatch(1, nft.Drop)
		el := &b.Ops[3].Elements[0]
		el.Comment = comment
		x, err := encodeBatch(&b, scope{table: nft.TableName}, 1)
		if err != nil {
			t.Fatal(err)
		}
		d := newElementDecoder(nft.IP, &nfttest.FrontendSet)
		d.message(attr.MessageAt(x.buf, x.refs[3].offset)[attr.MessageHeader+attr.NetfilterHeader:])
		if got, want := d.Elements()[el.Key], nft.PlainComment(comment); got.Comment != want || *got.Verdict != nft.Drop {
			t.Errorf("sent %+v, want comment %q", got, want)
		}
	})
}
