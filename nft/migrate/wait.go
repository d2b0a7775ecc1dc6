package migrate

import (
	"context"
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/nft/legacy"
)

// poll is how often it is looked whether something has come or gone.
const poll = 500 * time.Millisecond

// WaitForEnd waits until no kube-proxy is alive, as list, which is legacy.Processes, shows it
// under proc. It calls alive whenever others than before are there.
func WaitForEnd(ctx context.Context, proc string, list func(root string) ([]legacy.Process, error), alive func([]legacy.Process)) error {
	tick := time.NewTicker(poll)
	defer tick.Stop()
	last := ""
	for {
		processes, err := list(proc)
		if err != nil {
			return err
		}
		if len(processes) == 0 {
			return nil
		}
		if now := Describe(processes); now != last {
			alive(processes)
			last = now
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is still running: %w", last, ctx.Err())
		}
	}
}
