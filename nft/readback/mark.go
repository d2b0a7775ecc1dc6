package readback

import (
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// MasqueradeMark is the mark of packets that the table masquerades; 0 if no rule says so.
func (t Table) MasqueradeMark() uint32 {
	for _, rule := range t.Rules(layout.PostroutingChain) {
		for _, stmt := range rule {
			if mark, ok := stmt.(nft.MarkHas); ok {
				return mark.Bits
			}
		}
	}
	return 0
}
