package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// ejected asks the daemon which endpoints get no new connections because they do not answer. Without a daemon it is
// unknown.
func ejected(ctx context.Context) []peer.EjectedEndpoint {
	status, err := peer.ReadStatus(ctx, peer.Programs)
	if err != nil {
		return nil
	}
	return status.Ejected
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

// ejected lists the endpoints of the selected Services that do not answer.
func (s *selection) ejected(ctx context.Context) (texts []string) {
	all := ejected(ctx)
	for i := range all {
		e := &all[i]
		if s.has(e.Namespace, e.Name) {
			texts = append(texts, ejectedText(e, time.Now()))
		}
	}
	return texts
}

// ejectedFacts name the endpoints of a Service port that do not answer.
func ejectedFacts(ctx context.Context, port layout.PortName) (facts []answerFact) {
	all := ejected(ctx)
	for i := range all {
		e := &all[i]
		if e.Namespace == port.Namespace && e.Name == port.Name && e.Port == port.Port {
			facts = append(facts, answerFact{Topic: "Ejected", Text: ejectedText(e, time.Now())})
		}
	}
	return facts
}
