package sync

import "time"

// stopped returns a timer that does not run.
func stopped() *time.Timer {
	timer := time.NewTimer(0)
	<-timer.C
	return timer
}

// A backoff spaces out attempts that fail: each pause is twice the one before, from least to
// most. Its timer runs while the next attempt has to wait.
type backoff struct {
	least, most time.Duration
	timer       *time.Timer
	failures    int // in a row
}

// failed counts one more failure and returns the pause after it.
func (b *backoff) failed() (pause time.Duration) {
	if pause = b.most; b.failures < 20 {
		pause = min(b.least<<b.failures, b.most)
	}
	b.failures++
	b.timer.Reset(pause)
	return pause
}

// Goroutines beside the loop pause for restRatio times as long as a look at the kernel has taken.
const restRatio = 3

// The pace of repairs: promptRepairs are done at once, and one more for every repairEvery
// that has passed; what is beyond that waits, each time twice as long. Nobody with a shell
// gets there.
const (
	promptRepairs = 20
	repairEvery   = time.Second
	firstWait     = 100 * time.Millisecond
	longestWait   = 30 * time.Second
)

// A pace tells how soon damage is to be repaired.
type pace struct {
	spent float64   // of promptRepairs
	waits int       // in a row
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
		p.waits = 0
	}
	if p.spent+1 <= promptRepairs {
		p.spent++
		return 0
	}
	wait := min(firstWait<<min(p.waits, 20), longestWait)
	p.waits++
	p.due = now.Add(wait)
	return wait
}
