package wire

import (
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// TestErrorOfEncoding: an error names the operation, and the element, that cannot be encoded.
func TestErrorOfEncoding(t *testing.T) {
	for text, op := range map[string]nft.Op{
		`table ip kube-nft: add element services { 1.2.3.4 . tcp . 80 :  }: an element of a verdict map without a verdict; nothing was changed`: {Verb: nft.Add, Family: nft.IP, Set: &nfttest.FrontendSet,
			Elements: []nft.KeyedElement{{Key: "\x01\x02\x03\x04\x06\x00\x00\x00\x00\x50\x00\x00", Element: nft.Element{}}}},
		`table ip kube-nft: add element services { 1.2.3.4 : drop }: the key has 4 bytes instead of 12; nothing was changed`: {Verb: nft.Add, Family: nft.IP, Set: &nfttest.FrontendSet,
			Elements: []nft.KeyedElement{{Key: "\x01\x02\x03\x04", Element: nft.Element{Verdict: &nft.Drop}}}},
		`table ip kube-nft: add chain base { type nat hook nowhere priority filter; policy accept; } (base chains): unknown hook "nowhere"; nothing was changed`: {Verb: nft.Add, Family: nft.IP,
			Chain: &nft.Chain{Name: "base", Hook: &nft.Hook{Type: "nat", Point: "nowhere", Priority: 0}}},
		"operation 0 of the batch has no object": {Verb: nft.Add, Family: nft.IP},
	} {
		err := new(Encoding).Encode(&nft.Batch{Ops: []nft.Op{op}}, Ours, 1)
		if err == nil || err.Error() != text {
			t.Errorf("got  %v\nwant %s", err, text)
		}
	}
}
