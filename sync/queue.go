package sync

import (
	"sync"
	"time"

	"github.com/kube-nft/kube-nft/sync/retry"
)

// A Queue tells the loop that its source has changed, and its callers since when a change waits.
// Make it with NewQueue. Its methods may be called from any goroutine and do not block.
type Queue struct {
	wake retry.Wake

	mu             sync.Mutex
	oldest, newest time.Time // of the changes that may not be in the kernel; oldest is zero if all are
}

// NewQueue returns a Queue in which nothing waits.
func NewQueue() *Queue { return &Queue{wake: retry.NewWake()} }

// Notify says that there is a change.
func (q *Queue) Notify() {
	q.mu.Lock()
	q.newest = time.Now()
	if q.oldest.IsZero() {
		q.oldest = q.newest
	}
	q.mu.Unlock()
	q.wake.Notify()
}

// Notified receives when there is a change that the loop has not looked at. The loop listens to it once
// it runs.
func (q *Queue) Notified() <-chan struct{} { return q.wake }

// Served says that the kernel has all changes that came before taken. Those that came later
// go on waiting.
func (q *Queue) Served(taken time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.newest.After(taken) {
		q.oldest = taken
		return
	}
	q.oldest = time.Time{}
}

// Waiting returns since when the oldest change waits, zero if none does, and when the latest
// one came.
func (q *Queue) Waiting() (oldest, newest time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.oldest, q.newest
}
