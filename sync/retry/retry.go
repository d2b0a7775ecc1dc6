// Package retry says when something is done again: after a pause, or when a Wake is notified.
//
//	var backoff retry.Backoff
//	for try() != nil && retry.Pause(ctx, backoff.Next()) {
//	}
package retry

import (
	"cmp"
	"context"
	"runtime"
	"time"
)

// A Backoff spaces out attempts that fail: each pause is twice the one before, from Min to Max. Zero stands for 50
// milliseconds and 30 seconds.
type Backoff struct {
	Min, Max time.Duration
	failures int
}

// Next counts one more failure and returns the pause after it.
func (b *Backoff) Next() time.Duration {
	pause := min(cmp.Or(b.Min, 50*time.Millisecond)<<min(b.failures, 20), cmp.Or(b.Max, 30*time.Second))
	b.failures++
	return pause
}

// Failures returns the number of failures in a row.
func (b *Backoff) Failures() int { return b.failures }

// Reset ends the row of failures.
func (b *Backoff) Reset() { b.failures = 0 }

// Rest returns the pause after work that took so long and that comes again and again: the work takes a
// quarter of the time at most.
func Rest(took time.Duration) time.Duration { return 3 * took }

// Repeat calls work when wake is notified and, unless it is Never, after the time that work returned; first is the time
// to the first call. In between it rests, see Rest; after an error, for the pause of a Backoff at least. clock tells
// how long the calling thread has worked. Repeat returns when ctx ends.
func Repeat(ctx context.Context, wake Wake, first time.Duration, clock func() time.Duration,
	work func() (again time.Duration, err error)) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var backoff Backoff
	for after := first; ; {
		var timer <-chan time.Time
		if after != Never {
			timer = time.After(after)
		}
		select {
		case <-ctx.Done():
			return
		case <-wake:
		case <-timer:
		}
		began := clock()
		again, err := work()
		rest := Rest(clock() - began)
		if err != nil {
			rest = max(rest, backoff.Next())
		} else {
			backoff.Reset()
		}
		if !Pause(ctx, rest) {
			return
		}
		if after = again; again != Never {
			after = max(0, again-rest)
		}
	}
}

// Never is no time at all.
const Never time.Duration = -1

// A Wake wakes the goroutine that receives from it. Until it does, further notices count as one. Make it with NewWake.
type Wake chan struct{}

// NewWake returns a Wake without a notice.
func NewWake() Wake { return make(Wake, 1) }

// Notify wakes the goroutine. It never blocks.
func (w Wake) Notify() {
	select {
	case w <- struct{}{}:
	default:
	}
}

// Pause waits for d. It returns false if ctx ends before.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
