package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// poll is the pause between two looks at all processes; glance, between two looks at those that are
// known. Health-check node ports of a daemon do not answer between kube-proxy's end and the look that
// notices it.
const (
	poll   = 500 * time.Millisecond
	glance = 20 * time.Millisecond
)

// How long a listener without a visible process is looked at again, and how often. While the kernel
// ends a killed kube-nft, the process has no visible files.
const (
	hiddenGrace = time.Second
	hiddenRetry = 50 * time.Millisecond
)

// A processList is legacy.Processes.
type processList func(root string) ([]legacy.Process, error)

// visible leaves out a process that is known by its port alone: where a kube-nft runs, the port is its
// own, though the container of the next one may not see that.
func (list processList) visible(root string) ([]legacy.Process, error) {
	found, err := list(root)
	return slices.DeleteFunc(found, func(p legacy.Process) bool { return p.PID == 0 }), err
}

// steady lists the live kube-proxies of a node. It reports a process known by its port alone only
// if that process stays.
func (list processList) steady(ctx context.Context, node legacy.Node) (found []legacy.Process, err error) {
	for began := time.Now(); ; {
		found, err = list(cmp.Or(node.Proc, "/proc"))
		hidden := len(found) == 1 && found[0].PID == 0
		if err != nil || !hidden || time.Since(began) >= hiddenGrace {
			return found, err
		}
		if !retry.Pause(ctx, hiddenRetry) {
			return found, err
		}
	}
}

// remind is the time after which a takeover says again for whom it waits: events are kept for an hour.
const remind = 30 * time.Minute

// waitForEnd waits until no kube-proxy is alive. It calls alive whenever the list of processes
// changes, and again every half hour.
func (list processList) waitForEnd(ctx context.Context, node legacy.Node, alive func(processes string)) error {
	waiting := quota.Once{Interval: remind}
	for {
		processes, err := list.steady(ctx, node)
		if err != nil || len(processes) == 0 {
			return err
		}
		found := describe(processes)
		if waiting.Report(found) {
			alive(found)
		}
		for began := time.Now(); time.Since(began) < poll && !ended(cmp.Or(node.Proc, "/proc"), processes); {
			if !retry.Pause(ctx, glance) {
				return fmt.Errorf("%s is still running: %w", found, context.Cause(ctx))
			}
		}
	}
}

// ended reports whether one of some processes is gone.
func ended(proc string, processes []legacy.Process) bool {
	return slices.ContainsFunc(processes, func(p legacy.Process) bool {
		if p.PID == 0 { // known by its port alone
			return false
		}
		_, err := os.Stat(filepath.Join(proc, strconv.Itoa(p.PID)))
		return errors.Is(err, fs.ErrNotExist)
	})
}
