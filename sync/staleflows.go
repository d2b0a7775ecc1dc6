package sync

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// flows is what staleFlows needs of *conntrack.Reconciler.
type flows interface {
	Clean(context.Context, []tracker.FlowChange, conntrack.Desired) (conntrack.Result, error)
	Full(context.Context, []tracker.FlowChange, conntrack.Desired) (conntrack.Result, error)
}

// staleFlows removes connections that commits have made stale, in a goroutine of its own: to
// look for them takes as long as there are connections on the node, and no commit waits for
// that. The loop hands over what a commit changed. Everything that commits change while a
// clean-up is under way goes into the next one.
type staleFlows struct {
	flows   // nil leaves connections alone
	log     *zap.Logger
	cleaned func(FlowReport) // may be nil
	view    *View
	cpuTime func() time.Duration // Options.CPUTime
	wake    retry.Wake           // holds a value when something may wait

	mu      sync.Mutex
	waiting staleChanges

	failing quota.Once // owned by the goroutine of run
}

// staleChanges is what commits have made stale and what is not cleaned up yet.
type staleChanges struct {
	all       bool // which connections is not known
	frontends map[tracker.Frontend]tracker.FlowChange
	since     time.Time // of the oldest commit; zero if there is nothing
}

func (c *staleChanges) empty() bool { return !c.all && len(c.frontends) == 0 }

// add takes in later changes. Of one frontend there is one change, so that they do not pile
// up while connection tracking cannot be reached.
func (c *staleChanges) add(changes []tracker.FlowChange, all bool, at time.Time) {
	if len(changes) == 0 && !all {
		return
	}
	if c.empty() {
		c.since = at
	}
	c.all = c.all || all
	if c.frontends == nil {
		c.frontends = make(map[tracker.Frontend]tracker.FlowChange, len(changes))
	}
	memo := make(tracker.Memo)
	for _, change := range changes {
		earlier, ok := c.frontends[change.Frontend]
		switch {
		case ok:
			c.frontends[change.Frontend] = earlier.Then(change, memo)
		case c.all && !change.Gone && len(change.Removed) == 0: // a look at all connections needs no more
		default:
			c.frontends[change.Frontend] = change
		}
	}
}

// committed takes in what a commit has made stale; all says that it may be any connection.
func (s *staleFlows) committed(changes []tracker.FlowChange, all bool) {
	if len(changes) == 0 && !all {
		return
	}
	s.mu.Lock()
	s.waiting.add(changes, all, time.Now())
	s.mu.Unlock()
	s.wake.Notify()
}

// lastClean is how long the end of the process may wait for the last clean-up.
const lastClean = 500 * time.Millisecond

// run cleans up until ctx ends, and then what still waits: the next process cannot know all of it. After
// each clean-up it rests, so that a Service whose endpoints never stop moving takes a quarter of one
// CPU at most; the first one after a rest comes at once.
func (s *staleFlows) run(ctx context.Context) {
	defer func() {
		last, stop := context.WithTimeout(context.WithoutCancel(ctx), lastClean)
		defer stop()
		s.clean(last)
	}()
	retry.Repeat(ctx, s.wake, retry.Never, s.cpuTime, func() (again time.Duration, err error) {
		if err = s.clean(ctx); err == nil {
			again = retry.Never
		}
		return again, err
	})
}

// clean removes the connections that commits have made stale. What could not be done waits
// for the next time, together with what has come meanwhile.
func (s *staleFlows) clean(ctx context.Context) error {
	s.mu.Lock()
	work := s.waiting
	s.waiting = staleChanges{}
	s.mu.Unlock()
	if work.empty() {
		return nil
	}
	began, changes := time.Now(), slices.Collect(maps.Values(work.frontends))
	clean := s.Clean
	if work.all {
		clean = s.Full
	}
	result, err := clean(ctx, changes, s.view)
	if err != nil {
		s.mu.Lock()
		work.add(slices.Collect(maps.Values(s.waiting.frontends)), s.waiting.all, s.waiting.since)
		s.waiting = work
		s.mu.Unlock()
	}
	if ctx.Err() != nil { // the end is no failure
		return err
	}
	if s.failing.Fails(err) {
		s.log.Warn("cannot delete stale conntrack entries; retrying", zap.Error(err))
	}
	if s.cleaned != nil {
		s.cleaned(FlowReport{
			Deleted: map[tracker.Family]int{
				tracker.IPv4: result.Deleted - result.Deleted6,
				tracker.IPv6: result.Deleted6,
			},
			Duration: time.Since(began), Lag: time.Since(work.since), Err: err,
		})
	}
	return err
}

// A FlowReport says what became of stale connections.
type FlowReport struct {
	Deleted  map[tracker.Family]int
	Duration time.Duration
	// Lag is the time from the oldest of the commits that made them stale to the end of the
	// clean-up. One that fails does not end it.
	Lag time.Duration
	Err error
}
