package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft/migrate"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

var heldReasons = []string{peer.HeldTakeover, peer.HeldSource, peer.HeldList}

// holds reports that the safety check stops commits, because they would remove Services: in the log, as
// an event of the Node, as a metric. It repeats the same words once in holdRepeat.
type holds struct {
	log    *zap.Logger
	events *events
	set    func(reason string, held bool) // of the metric

	reported map[string]*quota.Once // by reason

	mu   sync.Mutex
	held map[string]string // the latest errors, by reason
}

const holdRepeat = time.Minute

func newHolds(log *zap.Logger, events *events, set func(reason string, held bool)) *holds {
	h := &holds{log: log, events: events, set: set, reported: make(map[string]*quota.Once), held: make(map[string]string)}
	for _, reason := range heldReasons {
		h.reported[reason] = &quota.Once{Interval: holdRepeat}
	}
	return h
}

// report says why commits are stopped for a reason; a nil error, that they no longer are.
func (h *holds) report(reason string, err error) {
	h.set(reason, err != nil)
	h.mu.Lock()
	if delete(h.held, reason); err != nil {
		h.held[reason] = err.Error()
	}
	h.mu.Unlock()
	switch reported := h.reported[reason]; {
	case err == nil && reported.Over():
		h.log.Info("safety check passed", zap.String("reason", reason))
	case err != nil && reported.Report(err.Error()):
		h.log.Error("safety check: not removing Services", zap.String("reason", reason), zap.Error(err))
		h.events.node(warning, "HeldBack", "Program", err.Error())
	}
}

// texts returns why commits are stopped, by reason.
func (h *holds) texts() map[string]string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.held)
}

// doubtedLists tells of the resources whose latest list is doubted.
func (h *holds) doubtedLists() func(resource string, err error) {
	var mu sync.Mutex
	doubted := make(map[string]error)
	return func(resource string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if doubted[resource] = err; err == nil {
			delete(doubted, resource)
		}
		var all []error
		for _, resource := range slices.Sorted(maps.Keys(doubted)) {
			all = append(all, doubted[resource])
		}
		h.report(peer.HeldList, errors.Join(all...))
	}
}

// watchHolds makes the loop say what it holds back.
func (d *daemon) watchHolds(settings *proxysync.Options) {
	settings.Held = func(err error) {
		d.monitor.proxy.Hold(err != nil)
		for _, reason := range []string{peer.HeldTakeover, peer.HeldSource} {
			if err != nil && migrate.IsLoss(err) != (reason == peer.HeldTakeover) {
				continue
			}
			if err != nil && reason == peer.HeldSource {
				err = fmt.Errorf("%w until the source has more, or until %s after the start", err, tracker.SafetyPeriod)
			}
			d.monitor.holds.report(reason, err)
		}
	}
}
