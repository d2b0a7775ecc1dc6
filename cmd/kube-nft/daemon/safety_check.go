package daemon

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/events"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

var safetyReasons = []string{peer.SafetyTakeover, peer.SafetySource, peer.SafetyList}

// A safetyCheck reports that the safety check stops commits, because they would remove Services: in the log, as
// an event of the Node, as a metric. It repeats the same words once in safetyRepeat.
type safetyCheck struct {
	log    *zap.Logger
	events *events.Recorder
	set    func(reason string, active bool) // of the metric

	mu       sync.Mutex
	reported map[string]*quota.Once // by reason
	active   map[string]string      // the latest errors, by reason
	lists    map[string]error       // the latest errors about lists, by resource
}

const safetyRepeat = time.Minute

func newSafetyCheck(log *zap.Logger, events *events.Recorder, set func(reason string, active bool)) *safetyCheck {
	c := &safetyCheck{
		log: log, events: events, set: set,
		reported: make(map[string]*quota.Once), active: make(map[string]string), lists: make(map[string]error),
	}
	for _, reason := range safetyReasons {
		c.reported[reason] = &quota.Once{Interval: safetyRepeat}
	}
	return c
}

// report says why commits are stopped for a reason; a nil error, that they no longer are.
func (c *safetyCheck) report(reason string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.update(reason, err)
}

// update is report for callers that hold the mutex.
func (c *safetyCheck) update(reason string, err error) {
	c.set(reason, err != nil)
	if delete(c.active, reason); err != nil {
		c.active[reason] = err.Error()
	}
	switch reported := c.reported[reason]; {
	case err == nil && reported.Over():
		c.log.Info("safety check passed", zap.String("reason", reason))
	case err != nil && reported.Report(err.Error()):
		c.log.Error("safety check: not removing Services", zap.String("reason", reason), zap.Error(err))
		c.events.Node("SafetyCheck", "Program", err.Error())
	}
}

// texts returns why commits are stopped, by reason.
func (c *safetyCheck) texts() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.active)
}

// reportList says that the safety check keeps objects of a resource that its latest list lacks; a nil error, that it
// no longer does. It may be called from any goroutine.
func (c *safetyCheck) reportList(resource string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.lists, resource); err != nil {
		c.lists[resource] = err
	}
	var all []error
	for _, resource := range slices.Sorted(maps.Keys(c.lists)) {
		all = append(all, c.lists[resource])
	}
	c.update(peer.SafetyList, errors.Join(all...))
}

// reportCommit says that the safety check stops the sync loop's commit; a nil error, that it no longer does.
func (c *safetyCheck) reportCommit(err error) {
	switch {
	case err == nil:
		c.report(peer.SafetyTakeover, nil)
		c.report(peer.SafetySource, nil)
	case migrate.IsLoss(err):
		c.report(peer.SafetyTakeover, err)
	default:
		c.report(peer.SafetySource,
			fmt.Errorf("%w until the source has more and has stopped growing, or until %s after the start", err,
				tracker.SafetyPeriod))
	}
}
