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
)

// Why something is held back; for metrics.
const (
	heldTakeover = "takeover" // frontends of kube-proxy's would vanish
	heldSource   = "source"   // the source would empty our tables
	heldList     = "list"     // a new list lacks nearly all objects that there were
)

var heldReasons = []string{heldTakeover, heldSource, heldList}

// holds tells what is held back because it would take Services away: in the log, as an event of the
// Node, as a metric. The same words are repeated once in holdRepeat.
type holds struct {
	log    *zap.Logger
	events *events
	set    func(reason string, held bool) // of the metric

	mu   sync.Mutex
	told map[string]telling // by reason, while something is held back
}

// A telling is what was told last.
type telling struct {
	text string
	at   time.Time
}

const holdRepeat = time.Minute

// tell says why something is held back; a nil error, that it no longer is.
func (h *holds) tell(reason string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, holding := h.told[reason]
	h.set(reason, err != nil)
	switch {
	case err == nil && holding:
		delete(h.told, reason)
		h.log.Info("not held back any more", zap.String("reason", reason))
	case err == nil:
	case !holding, last.text != err.Error(), time.Since(last.at) >= holdRepeat:
		h.told[reason] = telling{err.Error(), time.Now()}
		h.log.Error("held back, for Services would be lost", zap.String("reason", reason), zap.Error(err))
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
		h.tell(heldList, errors.Join(all...))
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
				err = fmt.Errorf("%w until the source has more, or until %s after the start", err, proxysync.DoubtFor)
			}
			d.monitor.holds.tell(reason, err)
		}
	}
}
