package inspect

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
)

func newReady() *cobra.Command {
	return &cobra.Command{
		Use:   "ready",
		Short: "Say whether the newest daemon of this node works, for startup probes",
		Long: `ready exits 0 if the daemon has programmed this node since it was started. If a second daemon
waits for the first one to end, as during an update of the DaemonSet, ready asks the second:
it exits 0 as soon as that one has read all objects. Otherwise it says what the daemon waits
for, and exits 1.

HTTP probes cannot tell two daemons of one node apart: both have the same address.`,
		Example: "  kube-nft ready",
		RunE:    func(cmd *cobra.Command, _ []string) error { return ready(cmd.Context()) },
	}
}

// ready returns an error that says why the newest daemon is not ready.
func ready(ctx context.Context) error {
	status, err := peer.ReadStatus(ctx, peer.Waits)
	if err == nil && status.Synced {
		return nil
	}
	if err != nil { // no daemon waits
		status, err = peer.ReadStatus(ctx, peer.Programs, peer.Shadows)
	}
	switch {
	case err != nil:
		return err
	case status.Ready:
		return nil
	case status.WaitingFor != "":
		return fmt.Errorf("the daemon waits for %s", status.WaitingFor)
	}
	return errors.New("the daemon has not programmed this node yet")
}
