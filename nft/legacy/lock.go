package legacy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// LockFile is what iptables programs lock while they change a table of ip_tables, for the
// kernel does not order them. A container must have it from the host.
const LockFile = "/run/xtables.lock"

// lockPoll is how often a lock that somebody else holds is tried; they hold it for
// milliseconds, or seconds if they load many rules.
const lockPoll = 20 * time.Millisecond

// lock takes the lock of the iptables programs and returns what releases it. Where the
// file cannot be, nobody can hold it, and the kernel's own check must do.
func lock(ctx context.Context, path string) (release func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o600)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EROFS) {
		return func() {}, nil
	}
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil // closing releases it
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			_ = file.Close()
			return nil, fmt.Errorf("an iptables program holds %s: %w", path, ctx.Err())
		}
	}
}
