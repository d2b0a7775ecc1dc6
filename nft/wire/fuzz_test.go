package wire

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// FuzzDecoders feeds hostile bytes to everything that decodes what the kernel sends.
func FuzzDecoders(f *testing.F) {
	batch := change.Diff(nil, nfttest.SampleTables(2))
	var seed Encoding
	if err := seed.Encode(&batch, Ours, 1); err != nil {
		f.Fatal(err)
	}
	for i := range seed.Messages() {
		f.Add(seed.Message(i))
	}
	f.Add([]byte{36, 0, 0, 0, 2, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff, 12, 0, 4, 0, 8, 0, 2, 0,
		1, 0, 0, 0})
	sets := append(nfttest.ElementKinds(nft.IP), &nft.Set{Name: "nothing"})
	f.Fuzz(func(t *testing.T, b []byte) {
		attr.Replies(b, func(r attr.Reply) {
			_ = r.Ack()
			for _, family := range nft.Families {
				decodeAll(family, sets, r.Attributes())
			}
		})
	})
}

func decodeAll(f nft.Family, sets []*nft.Set, b []byte) {
	name, table := DecodeTable(f, b)
	_, set := DecodeSet(f, b)
	_, chain := DecodeChain(b)
	for typ := range uint16(unix.NFT_MSG_MAX) {
		_ = DecodeEvent(typ, f, b)
	}
	_, _, _ = DecodeGeneration(b)
	_, _ = SetCount(b)
	_, _, rule := DecodeRule(b)
	chain.Rules = append(chain.Rules, rule)
	table.Chains[chain.Name] = chain
	table.Sets[set.Name] = &nft.Elements{Set: set}
	for _, s := range sets {
		d := NewElementDecoder(f, s)
		d.Message(b)
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
		var x Encoding
		if err := x.Encode(&b, Ours, 1); err != nil {
			t.Fatal(err)
		}
		d := NewElementDecoder(nft.IP, &nfttest.FrontendSet)
		d.Message(x.Message(3)[attr.MessageHeader+attr.NetfilterHeader:])
		if got, want := d.Elements()[el.Key], nft.PlainComment(comment); got.Comment != want || *got.Verdict != nft.Drop {
			t.Errorf("sent %+v, want comment %q", got, want)
		}
	})
}
