package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/migrate"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// Why the safety check keeps Services; for metrics.
const (
	heldTakeover = "takeover" // frontends of kube-proxy's would vanish
	heldSource   = "source"   // the source would empty our tables
	heldList     = "list"     // a new list lacks nearly all objects that there were
)

var heldReasons = []string{heldTakeover, heldSource, heldList}

// holds reports that the safety check stops commits, because they would remove Services: in the log, as
// an event of the Node, as a metric. It repeats the same words once in holdRepeat.
type holds struct {
	log    *zap.Logger
	events *events
	set    func(reason string, held bool) // of the metric

	reported map[string]*quota.Once // by reason
}

const holdRepeat = time.Minute

func newHolds(log *zap.Logger, events *events, set func(reason string, held bool)) *holds {
	h := &holds{log: log, events: events, set: set, reported: make(map[string]*quota.Once)}
	for _, reason := range heldReasons {
		h.reported[reason] = &quota.Once{Interval: holdRepeat}
	}
	return h
}

// report says why commits are stopped for a reason; a nil error, that they no longer are.
func (h *holds) report(reason string, err error) {
	h.set(reason, err != nil)
	switch reported := h.reported[reason]; {
	case err == nil && reported.Over():
		h.log.Info("safety check passed", zap.String("reason", reason))
	case err != nil && reported.Report(err.Error()):
		h.log.Error("safety check: not removing Services", zap.String("reason", reason), zap.Error(err))
		h.events.node(warning, "HeldBack", "Program", err.Error())
	}
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
		h.report(heldList, errors.Join(all...))
	}
}

// watchHolds makes the loop say what it holds back.
func (d *daemon) watchHolds(settings *proxysync.Options) {
	settings.Held = func(err error) {
		d.monitor.proxy.Hold(err != nil)
		for _, reason := range []string{heldTakeover, heldSource} {
			if err != nil && migrate.IsLoss(err) != (reason == heldTakeover) {
				continue
			}
			if err != nil && reason == heldSource {
				err = fmt.Errorf("%w until the source has more, or until %s after the start", err, tracker.SafetyPeriod)
			}
			d.monitor.holds.report(reason, err)
		}
	}
}
