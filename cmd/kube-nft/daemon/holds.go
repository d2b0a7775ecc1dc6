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

	mu       sync.Mutex
	reported map[string]*quota.Once // by reason
	held     map[string]string      // the latest errors, by reason
	lists    map[string]error       // the latest errors about lists, by resource
}

const holdRepeat = time.Minute

func newHolds(log *zap.Logger, events *events, set func(reason string, held bool)) *holds {
	h := &holds{
		log: log, events: events, set: set,
		reported: make(map[string]*quota.Once), held: make(map[string]string), lists: make(map[string]error),
	}
	for _, reason := range heldReasons {
		h.reported[reason] = &quota.Once{Interval: holdRepeat}
	}
	return h
}

// report says why commits are stopped for a reason; a nil error, that they no longer are.
func (h *holds) report(reason string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.update(reason, err)
}

// update is report for callers that hold the mutex.
func (h *holds) update(reason string, err error) {
	h.set(reason, err != nil)
	if delete(h.held, reason); err != nil {
		h.held[reason] = err.Error()
	}
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

// reportList says that the safety check keeps objects of a resource that its latest list lacks; a nil error, that it
// no longer does. It may be called from any goroutine.
func (h *holds) reportList(resource string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if delete(h.lists, resource); err != nil {
		h.lists[resource] = err
	}
	var all []error
	for _, resource := range slices.Sorted(maps.Keys(h.lists)) {
		all = append(all, h.lists[resource])
	}
	h.update(peer.HeldList, errors.Join(all...))
}

// reportCommit says that the safety check stops the sync loop's commit; a nil error, that it no longer does.
func (h *holds) reportCommit(err error) {
	switch {
	case err == nil:
		h.report(peer.HeldTakeover, nil)
		h.report(peer.HeldSource, nil)
	case migrate.IsLoss(err):
		h.report(peer.HeldTakeover, err)
	default:
		h.report(peer.HeldSource,
			fmt.Errorf("%w until the source has more, or until %s after the start", err, tracker.SafetyPeriod))
	}
}
