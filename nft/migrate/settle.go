package migrate

import (
	"context"
	"time"

	"golang.org/x/sys/unix"
)

// membarrierGlobal is MEMBARRIER_CMD_GLOBAL of linux/membarrier.h. The kernel returns from it
// when everything has ended that was going on under its read lock (synchronize_rcu): among
// that, every packet that is between two hooks of netfilter.
const membarrierGlobal = 1

// settleTime is what is waited where the kernel does not offer that.
const settleTime = 100 * time.Millisecond

// settle waits until no packet is under way that has seen only the rules of before.
func settle(ctx context.Context) (string, error) {
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierGlobal, 0, 0); errno == 0 {
		return "those that were between two hooks have left them", nil
	}
	select {
	case <-time.After(settleTime):
		return "waited for " + settleTime.String(), nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}
