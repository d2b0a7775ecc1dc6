package move

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/sync/localhost"
)

// cleanupTimeout is how long cleanup waits for a daemon to end, by default.
const cleanupTimeout = time.Minute

func newCleanup() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that kube-nft has programmed on this node",
		Long: `cleanup deletes the tables ip kube-nft and ip6 kube-nft and says so. Established connections
keep their translation; new ones to Services are not answered any more, unless another proxy
has rules in place. Stop the daemon first.`,
		Example: "  kube-nft cleanup\n  kube-nft cleanup --timeout 5m",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return remove(cmd.Context(), timeout, migrate.Rollback{}, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", cleanupTimeout, "how long to wait for a daemon to end")
	return cmd
}

// Cleanup is the command cleanup without flags.
func Cleanup(ctx context.Context, journal io.Writer) error {
	return remove(ctx, cleanupTimeout, migrate.Rollback{}, journal)
}

func newRollback() *cobra.Command {
	var timeout time.Duration
	var wait bool
	cmd := &cobra.Command{
		Use:   "rollback",
		Short: "Give the node back to kube-proxy: remove kube-nft's tables without a gap",
		Long: `rollback removes every trace of kube-nft, so that kube-proxy finds a clean node. To lose
no connection, stop the daemon, start kube-proxy, and then run this: our rules come before
kube-proxy's, and serve until rollback removes them.

rollback removes our tables only if kube-proxy's rules are in place, in each IP family that
ours serve. If a kube-proxy runs, or with --wait, rollback waits for its rules; otherwise it
removes nothing when they are missing. kube-nft cleanup removes our tables in any case.`,
		Example: "  kube-nft migrate rollback --wait",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return remove(cmd.Context(), timeout, migrate.Rollback{Back: true, Wait: wait}, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&wait, "wait", false,
		"wait for kube-proxy's rules even if kube-proxy does not run yet")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "time limit for the whole command")
	return cmd
}

// remove removes our tables and writes a journal. It waits until no daemon is left that would write
// the tables again.
func remove(ctx context.Context, timeout time.Duration, r migrate.Rollback, journal io.Writer) (err error) {
	ctx, cancel := withTimeout(ctx, timeout)
	defer cancel()
	if r.Kernel, err = kernel.Open(); err != nil {
		return err
	}
	defer r.Kernel.Close()
	r.Journal = migrate.WriteJournal(journal)
	r.Notice = func(text string) { fmt.Fprintln(journal, "kube-nft: "+text) }
	r.Stopped = func(ctx context.Context) error { return waitForDaemon(ctx, journal) }
	found, err := r.Run(ctx)
	if err == nil && found {
		warnExposed(r.Back, r.Notice)
	}
	if err != nil || r.Back { // Calico looks for the table until kube-proxy has it again
		return err
	}
	dropped, err := legacy.DropKept(ctx)
	if dropped {
		r.Notice("removed: table ip " + legacy.ProxyTable + ", which --keep-kube-proxy-table kept")
	}
	return err
}

// warnExposed says what the removed rules protected. back: kube-proxy serves in their place.
func warnExposed(back bool, notice func(string)) {
	switch exposure := localhost.Exposure("/proc/sys"); {
	case exposure == "":
	case back:
		notice("the sysctl net.ipv4.conf.all.route_localnet is 1. kube-proxy's iptables mode needs it for node ports at " +
			"127.0.0.1, and drops connections from other hosts to 127.0.0.1. Its other modes do neither. If kube-proxy has " +
			"another mode, and no other program on this node needs the sysctl: sysctl -w net.ipv4.conf.all.route_localnet=0")
	default:
		notice(exposure)
	}
}

// waitForDaemon waits until no kube-nft programs this network namespace.
func waitForDaemon(ctx context.Context, journal io.Writer) error {
	if !peer.Running(ctx) {
		return nil
	}
	fmt.Fprintln(journal, "kube-nft: a daemon runs; nothing is removed before it has ended: stop it on this node")
	if err := peer.WaitForEnd(ctx); err != nil {
		return fmt.Errorf("the daemon is still running: %w; nothing was removed; stop it on this node and run this again",
			err)
	}
	return nil
}
