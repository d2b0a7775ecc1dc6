package kernel

import (
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
	"github.com/kube-nft/kube-nft/nft/wire"
)

// FuzzReplies feeds hostile bytes to what reads an answer, and to what decodes the step of a packet.
func FuzzReplies(f *testing.F) {
	batch := change.Diff(nil, nfttest.SampleTables(2))
	var seed wire.Encoding
	if err := seed.Encode(&batch, wire.Ours, 1); err != nil {
		f.Fatal(err)
	}
	for i := range seed.Messages() {
		f.Add(seed.Message(i))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = answer(b, 1, func(attr.Reply) {})
		attr.Replies(b, func(r attr.Reply) {
			_ = r.Ack()
			for _, family := range nft.Families {
				_ = decodePacketEvent(family, r.Attributes())
			}
		})
	})
}
