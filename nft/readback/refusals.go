package readback

import (
	"context"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// ruleCounter is what reading refusals needs of the kernel's client.
type ruleCounter interface {
	RuleCounters(ctx context.Context, f nft.Family, chains ...string) (map[string]uint64, error)
}

// ReadRefusals returns how many packets of new connections the table of a family has refused since it was
// made, by cause. A cause is missing if another program has removed the chain that counts it.
func ReadRefusals(ctx context.Context, r ruleCounter, f nft.Family) (map[string]uint64, error) {
	var chains []string
	for _, cause := range layout.RefusalCauses() {
		chains = append(chains, cause.Chain)
	}
	counts, err := r.RuleCounters(ctx, f, chains...)
	if err != nil {
		return nil, err
	}
	causes := make(map[string]uint64, len(counts))
	for _, cause := range layout.RefusalCauses() {
		if n, ok := counts[cause.Chain]; ok {
			causes[cause.Name] = n
		}
	}
	return causes, nil
}
