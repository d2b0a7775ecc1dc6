package sync

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/sync/retry"
)

// stopped returns a timer that does not run.
func stopped() *time.Timer {
	timer := time.NewTimer(0)
	<-timer.C
	return timer
}

// ThreadTime returns the CPU time of the calling thread, for Options.CPUTime: on a busy machine a sync waits for
// others, which is not the work of the namespaces that it is for.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// The pace of repairs: promptRepairs are done at once, and one more for every repairEvery that has passed.
// Further repairs back off. Manual commands never reach this limit.
const (
	promptRepairs = 20
	repairEvery   = time.Second
	firstWait     = 100 * time.Millisecond
	longestWait   = 30 * time.Second
)

// A pace tells how soon damage is to be repaired.
type pace struct {
	spent float64 // of promptRepairs
	waits retry.Backoff
	last  time.Time // when damage was found last
	due   time.Time // of the repair that waits
}

// next returns how long to wait before the damage found now is repaired.
func (p *pace) next(now time.Time) time.Duration {
	p.spent = max(0, p.spent-now.Sub(p.last).Seconds()/repairEvery.Seconds())
	p.last = now
	switch {
	case now.Before(p.due):
		return p.due.Sub(now) // it goes with the repair that waits
	case p.spent == 0:
		p.waits = retry.Backoff{Min: firstWait, Max: longestWait}
	}
	if p.spent+1 <= promptRepairs {
		p.spent++
		return 0
	}
	wait := p.waits.Next()
	p.due = now.Add(wait)
	return wait
}
