package readback

import (
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// MasqueradeMark is the mark of packets that the table masquerades; 0 if no rule says so.
func (t Table) MasqueradeMark() uint32 {
	chain := t.Chains[layout.PostroutingChain]
	if chain == nil {
		return 0
	}
	for _, rule := range chain.Rules {
		for _, stmt := range rule {
			if mark, ok := stmt.(nft.MarkHas); ok {
				return mark.Bits
			}
		}
	}
	return 0
}
