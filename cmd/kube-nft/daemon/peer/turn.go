package peer

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/sync/web"
)

// overlap bounds how long a daemon answers health checks after it has given up the lock, until the next one has
// programmed and listens at the same addresses.
const overlap = 3 * time.Second

// lockInterval is the pause between two looks at the lock. Health checks have no answer for about as
// long after a daemon was killed.
const lockInterval = 20 * time.Millisecond

// A Turn is the time in which this process may program its network namespace. It has the lock and the socket
// file meanwhile. Make it with NewTurn.
type Turn struct {
	// Begun is closed when the turn has begun, or when the context of Await has ended.
	Begun chan struct{}
	// Follows says that another daemon programmed when this one started. Read it once Begun is closed.
	Follows bool

	lock *kernel.Lock // nil if the kernel has none
	door *Door        // nil if it cannot be opened
}

// NewTurn returns a turn that has not begun.
func NewTurn() *Turn { return &Turn{Begun: make(chan struct{})} }

// Await waits until no other daemon programs this network namespace, and then opens the socket file. While it
// waits, the socket file for the startup probe is open. It returns false if ctx ended. Call it once.
func (t *Turn) Await(ctx context.Context, answers *Answers, log *zap.Logger) bool {
	defer close(t.Begun)
	lock, err := kernel.AcquireLock()
	if t.Follows = errors.Is(err, kernel.ErrLocked); t.Follows {
		log.Warn("another kube-nft programs this network namespace: waiting until it ends")
		next, openErr := Open(Waits, answers, log)
		if openErr != nil {
			log.Warn("the command kube-nft ready does not reach this kube-nft", zap.Error(openErr))
		}
		for errors.Is(err, kernel.ErrLocked) && retry.Pause(ctx, lockInterval) {
			lock, err = kernel.AcquireLock()
		}
		next.Close() // what is left of the file does no harm
	}
	t.lock = lock
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		log.Warn("this kernel has no lock that would keep two kube-nfts from programming the same network namespace",
			zap.Error(err))
	case t.Follows:
		log.Info("the other kube-nft has ended: taking over")
	}
	t.open(Programs, answers, log)
	return true
}

// Watch opens the socket file of a daemon that never programs. It takes no lock: a daemon that programs need not wait
// for this one.
func (t *Turn) Watch(answers *Answers, log *zap.Logger) {
	defer close(t.Begun)
	t.open(Shadows, answers, log)
}

// open opens the socket file of a role. The daemon works without it.
func (t *Turn) open(role Role, answers *Answers, log *zap.Logger) {
	var err error
	if t.door, err = Open(role, answers, log); err != nil {
		log.Warn("commands such as kube-nft status do not reach this kube-nft", zap.Error(err))
	}
}

// End gives up the lock as soon as written is closed: then this process does not write to the kernel any more. If
// another daemon waits for the lock, End returns when that one is ready. While a commit is under way End does not
// wait for long: the lock ends with the process.
func (t *Turn) End(written <-chan struct{}, log *zap.Logger) {
	<-t.Begun
	select {
	case <-written:
	case <-time.After(web.Farewell):
		return
	}
	followed := t.lock != nil && answers(context.Background(), Waits)
	t.door.Close() // what is left of the file does no harm
	if t.lock != nil {
		t.lock.Release() // a socket that does not close ends with the process
	}
	if followed {
		awaitNext(log)
	}
}

// awaitNext waits until the daemon that programs now is ready. It warns if that takes too long.
func awaitNext(log *zap.Logger) {
	ctx, cancel := context.WithTimeout(context.Background(), overlap)
	defer cancel()
	missing := "its answer at the socket for commands"
	for retry.Pause(ctx, lockInterval) {
		next, err := ReadStatus(ctx, Programs)
		switch {
		case err == nil && next.Ready:
			return
		case err == nil:
			missing = cmp.Or(next.WaitingFor, "its first commit")
		}
	}
	log.Warn("this kube-nft ends before the next one is ready: health checks have no answer until then",
		zap.Duration("waited", overlap), zap.String("missing", missing))
}

// Running reports whether a daemon programs this network namespace. Without CAP_NET_ADMIN, or with a
// kernel that has no lock, only a daemon that answers counts.
func Running(ctx context.Context) bool {
	if kernel.Unlocked() {
		return false
	}
	return kernel.Locked() || answers(ctx, Programs)
}

// answers reports whether a daemon of this role can be asked.
func answers(ctx context.Context, role Role) bool {
	conn, err := role.dial(ctx)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// WaitForEnd waits until no daemon programs this network namespace, or returns the reason why ctx ended.
func WaitForEnd(ctx context.Context) error {
	for Running(ctx) {
		if !retry.Pause(ctx, lockInterval) {
			return context.Cause(ctx)
		}
	}
	return nil
}
