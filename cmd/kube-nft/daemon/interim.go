package daemon

import (
	"context"
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// An interim keeps the answers at health-check node ports up to date before the sync loop begins, if what
// another proxy programmed serves meanwhile: the kube-nft before this one, or a kube-proxy for whose end a
// takeover waits. The loop's first Take returns what the interim took.
type interim struct {
	tracker *tracker.Tracker
	monitor *monitor
	wake    <-chan struct{} // has a value when the tracker has changed
	taken   tracker.Delta   // of the goroutine that follows, then of the loop

	mu       sync.Mutex
	end      func() // nil if it never began
	finished bool
}

// begin follows the tracker until finish. It does nothing the second time, and after finish.
func (i *interim) begin(ctx context.Context) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.end != nil || i.finished {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	i.end = func() {
		cancel()
		following.Wait()
	}
	following.Go(func() {
		for {
			delta := i.tracker.Take()
			i.monitor.applyHealthChecks(&delta, i.tracker)
			i.taken.Merge(delta)
			select {
			case <-ctx.Done():
				return
			case <-i.wake:
			case <-time.After(interimReview): // addresses of the node come and go, too
			}
		}
	})
}

// interimReview is the time after which an interim looks again though nothing has changed.
const interimReview = time.Second

// finish leaves the tracker to the loop.
func (i *interim) finish() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.finished = true
	if i.end != nil {
		i.end()
		i.tracker.TakeAll()
	}
}

// Take returns what the tracker has, and at first what the interim took of it.
func (i *interim) Take() tracker.Delta {
	newer := i.tracker.Take()
	if i.taken.Empty() {
		return newer
	}
	delta := i.taken
	i.taken = tracker.Delta{}
	delta.Merge(newer)
	delta.Due = newer.Due
	return delta
}
