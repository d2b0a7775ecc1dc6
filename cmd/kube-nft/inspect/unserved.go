package inspect

import (
	"context"
	"fmt"
	"slices"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
)

// unserved asks the daemon which Services the quotas of their namespaces leave out. The tables do not have them, and
// without a daemon it is unknown.
func unserved(ctx context.Context) []peer.UnservedService {
	status, err := peer.ReadStatus(ctx, peer.Programs)
	if err != nil {
		return nil
	}
	return status.Unserved
}

// unservedText names a Service that is left out, and says why.
func unservedText(u *peer.UnservedService) string {
	return fmt.Sprintf("Service %s/%s: %s", nft.Visible(u.Namespace), nft.Visible(u.Name),
		nft.Visible(u.Reason))
}

// unserved lists the selected Services that are left out.
func (s *selection) unserved(ctx context.Context) (texts []string) {
	for _, u := range unserved(ctx) {
		if s.has(u.Namespace, u.Name) {
			texts = append(texts, unservedText(&u))
		}
	}
	return texts
}

// unservedFacts name the Services that are left out and ask for the destination of a packet.
func unservedFacts(ctx context.Context, p nft.Packet) (facts []answerFact) {
	for _, u := range unserved(ctx) {
		if slices.Contains(u.Addresses, p.Destination) || p.DestinationLocal && slices.Contains(u.NodePorts, p.Port) {
			facts = append(facts, answerFact{Topic: "Left out", Text: unservedText(&u)})
		}
	}
	return facts
}
