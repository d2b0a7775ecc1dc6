package inspect

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
)

// daemonStatus asks the daemon what the tables do not have: the Services that quotas leave out, and the endpoints that
// do not answer. Without a daemon there is nothing in it.
func daemonStatus(ctx context.Context) *peer.Status {
	if status, err := peer.ReadStatus(ctx, peer.Programs, peer.Shadows); err == nil {
		return status
	}
	return new(peer.Status)
}

// unservedText names a Service that a quota leaves out, and says why.
func unservedText(u *peer.UnservedService) string {
	return fmt.Sprintf("Service %s/%s: %s", nft.Visible(u.Namespace), nft.Visible(u.Name),
		nft.Visible(u.Reason))
}

// ejectedText names an endpoint that does not answer, and says what happens to it.
func ejectedText(e *peer.EjectedEndpoint, now time.Time) string {
	name := layout.PortName{Namespace: e.Namespace, Name: e.Name, Port: e.Port}
	what := "is being tried again"
	if !e.Until.IsZero() {
		what = fmt.Sprintf("does not answer and gets no new connections, %s more",
			max(0, e.Until.Sub(now)).Round(time.Second))
	}
	return fmt.Sprintf("endpoint %s of %s %s (ejection %d in a row, at %s)", e.Endpoint, nft.Visible(name.String()), what,
		e.Times, e.Since.Format(time.RFC3339))
}

// unserved lists the selected Services that quotas leave out, and the endpoints of selected Services that do not
// answer.
func (s *selection) unserved(ctx context.Context) (texts []string) {
	status := daemonStatus(ctx)
	for i := range status.Unserved {
		if u := &status.Unserved[i]; s.has(u.Namespace, u.Name) {
			texts = append(texts, unservedText(u))
		}
	}
	for i := range status.Ejected {
		if e := &status.Ejected[i]; s.has(e.Namespace, e.Name) {
			texts = append(texts, ejectedText(e, time.Now()))
		}
	}
	return texts
}

// unservedFacts name the Services that quotas leave out and that ask for the destination of a packet; for a packet to a
// Service port, its endpoints that do not answer.
func unservedFacts(ctx context.Context, p nft.Packet, service *readback.Frontend) (facts []readback.Fact) {
	if service == nil {
		for _, u := range daemonStatus(ctx).Unserved {
			if slices.Contains(u.Addresses, p.Destination) || p.DestinationLocal && slices.Contains(u.NodePorts, p.Port) {
				facts = append(facts, readback.Fact{Topic: "Left out", Text: unservedText(&u)})
			}
		}
		return facts
	}
	if !slices.Contains(service.Options, "kube-nft.io/eject: true") {
		return nil
	}
	for _, e := range daemonStatus(ctx).Ejected {
		if (layout.PortName{Namespace: e.Namespace, Name: e.Name, Port: e.Port}) == service.Name {
			facts = append(facts, readback.Fact{Topic: "Ejected", Text: ejectedText(&e, time.Now())})
		}
	}
	return facts
}
