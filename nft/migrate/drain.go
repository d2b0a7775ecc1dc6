package migrate

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// A drainError says that connections still use kube-proxy's IPVS mode. ip_vs translates them while the
// packets of their clients are addressed to this node, that is while kube-ipvs0 has its addresses, and while
// it has the virtual servers.
type drainError struct {
	connections int
	until       time.Time
}

func (e *drainError) Error() string {
	return fmt.Sprintf("kube-proxy's IPVS mode still has %s; its virtual servers accept no new connections; kube-nft "+
		"removes the virtual servers and kube-ipvs0 when the last connection has ended, at %s at the latest",
		words.Plural(e.connections, "connection"), e.until.UTC().Format(time.RFC3339))
}

// IsDraining reports whether err of Remove means that only connections of the IPVS mode are left. Call
// Drained, and Remove again.
func IsDraining(err error) bool { return errors.As(err, new(*drainError)) }

// drain lets kube-proxy's virtual servers take no new connections. It returns a drainError while they have
// connections, and nil when all of IPVS may go.
func (t *Takeover) drain(ctx context.Context) (*drainError, error) {
	if t.drained.IsZero() {
		t.drained = time.Now().Add(t.Drain)
	}
	if err := legacy.Quiesce(ctx); err != nil {
		return nil, err
	}
	if _, err := waitForPackets(ctx); err != nil { // a packet may have found its endpoint and have no connection yet
		return nil, err
	}
	return t.connections()
}

// connections returns a drainError while kube-proxy's virtual servers have connections and may keep them.
func (t *Takeover) connections() (*drainError, error) {
	n, err := legacy.Connections()
	if err != nil || n == 0 || !time.Now().Before(t.drained) {
		return nil, err
	}
	return &drainError{n, t.drained}, nil
}

// The virtual servers are counted every drainPoll. It takes a fifth of a second where there are 30,000:
// drainShare bounds the share of a CPU.
const (
	drainPoll  = 5 * time.Second
	drainShare = 20
)

// Drained waits until Remove may remove the rest of IPVS. Now and then it calls report with what it waits for.
func (t *Takeover) Drained(ctx context.Context, report func(string)) error {
	for pause := drainPoll; ; {
		if !retry.Pause(ctx, min(pause, time.Until(t.drained))) {
			return context.Cause(ctx)
		}
		began := time.Now()
		draining, err := t.connections()
		if err != nil || draining == nil {
			return err
		}
		report(draining.Error())
		pause = max(drainPoll, drainShare*time.Since(began))
	}
}
