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

// Syncs that take long, as those do that change verdicts among very many Services, leave the
// kernel to its other users: each is owed a rest of restRatio times its duration, at most
// maxRest, so that however many changes there are, the kernel is kept busy for a quarter of the
// time. Rests of up to maxRest in all may be put off: a Service and its endpoints, which
// come one after the other, need not wait for each other, and nothing waits after a start.
const (
	restRatio = 3
	maxRest   = 20 * time.Millisecond
)

// A Service that changes very much at once, as one whose slot table gets another size does, leaves the loop to the
// others for tracker.ChargeRatio times what its change has taken, if it does so again: see tracker.Tracker.Charge. More than dearElement for an element is not its doing: then
// the machine is busy. Changes below largeChange take less than the pace that each Service has anyway.
const (
	dearElement = 6 * time.Microsecond
	largeChange = 400
)

// A rest says when the next sync may begin.
type rest struct {
	ended  time.Time // of the latest sync
	took   time.Duration
	rested time.Time // when all rests will be over
}

// note takes in a sync.
func (r *rest) note(began, ended time.Time) {
	took := ended.Sub(began)
	if r.rested.Before(began) {
		r.rested = began
	}
	r.ended, r.took, r.rested = ended, took, r.rested.Add(took+min(restRatio*took, maxRest))
}

// next returns when the next sync may begin, if least is the time between two of them; with
// none it may begin at any time.
func (r *rest) next(least time.Duration) time.Time {
	earliest, due := r.ended.Add(least), r.rested.Add(-maxRest)
	if least == 0 || earliest.After(due) {
		return earliest
	}
	return due
}

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
