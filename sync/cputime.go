package sync

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadTime returns the CPU time of the calling thread, for Options.CPUTime: on a busy machine a sync waits for
// others, which is not the work of the namespaces that it is for.
func ThreadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
