package peer

import (
	"context"
	"errors"
	"time"

	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// lockInterval is the pause between two looks at the lock. Health checks have no answer for about as
// long after a daemon was killed.
const lockInterval = 20 * time.Millisecond

// waitForLock waits until this process has the lock of its network namespace. It calls waiting if another daemon
// has it. It returns an error without a lock if ctx ends, or if this kernel has no such lock.
func waitForLock(ctx context.Context, waiting func()) (*kernel.Lock, error) {
	lock, err := kernel.AcquireLock()
	if errors.Is(err, kernel.ErrLocked) {
		waiting()
	}
	for errors.Is(err, kernel.ErrLocked) {
		if !retry.Pause(ctx, lockInterval) {
			return nil, context.Cause(ctx)
		}
		lock, err = kernel.AcquireLock()
	}
	return lock, err
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
