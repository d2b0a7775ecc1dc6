package sync

import "time"

// Syncs that take long, as those do that change verdicts among very many Services, leave the
// kernel to its other users: each is owed a rest of restRatio times its duration, at most
// maxRest, so that however many changes there are, the kernel is kept busy for a quarter of the
// time. Rests of up to maxRest in all may be put off: a Service and its endpoints, which
// come one after the other, need not wait for each other, and nothing waits after a start.
const (
	restRatio = 3
	maxRest   = 20 * time.Millisecond
)

// A tempo says when the next sync may begin.
type tempo struct {
	ended  time.Time // the latest sync
	rested time.Time // when all rests will be over
}

// note takes in a sync.
func (t *tempo) note(began, ended time.Time) {
	took := ended.Sub(began)
	if t.rested.Before(began) {
		t.rested = began
	}
	t.ended, t.rested = ended, t.rested.Add(took+min(restRatio*took, maxRest))
}

// next returns when the next sync may begin, if least is the time between two of them; with
// none it may begin at any time.
func (t *tempo) next(least time.Duration) time.Time {
	earliest, due := t.ended.Add(least), t.rested.Add(-maxRest)
	if least == 0 || earliest.After(due) {
		return earliest
	}
	return due
}
