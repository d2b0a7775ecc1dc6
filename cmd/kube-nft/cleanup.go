package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/sync/localhost"
)

// A remover is the commands cleanup and migrate rollback.
type remover struct {
	timeout time.Duration
	wait    bool
	journal io.Writer
}

// cleanupTimeout is how long cleanup waits for a daemon to end, by default.
const cleanupTimeout = time.Minute

func newCleanup() *cobra.Command {
	timeout := cleanupTimeout
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything that kube-nft has programmed on this node",
		Long: `cleanup deletes the tables ip kube-nft and ip6 kube-nft and says so. Connections that are
under way keep their translation; new ones to Services are not answered any more, unless
another proxy has rules in place. Stop the daemon first.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r := remover{timeout: timeout, journal: cmd.ErrOrStderr()}
			return r.run(cmd.Context())
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait for a daemon to end")
	return c
}

func newMigrateRollback() *cobra.Command {
	r := remover{}
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Give the node back to kube-proxy: remove kube-nft's tables without a gap",
		Long: `rollback removes every trace of kube-nft, so that kube-proxy finds a clean node. To lose
no connection, stop the daemon, start kube-proxy, and then run this: kube-proxy's rules
come to lie under ours, which go on serving until rollback removes them.

If a kube-proxy runs, rollback waits until its rules are in place; with --wait it waits
for one to be started too. Otherwise it removes our tables at once and says that nothing
serves until kube-proxy is back.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.journal = cmd.ErrOrStderr()
			return r.runRollback(cmd.Context())
		},
	}
	c.Flags().BoolVar(&r.wait, "wait", false, "wait for kube-proxy's rules even if no kube-proxy is to be seen")
	c.Flags().DurationVar(&r.timeout, "timeout", 5*time.Minute, "how long all of it may take")
	return c
}

// runRollback decides whether there is something to wait for.
func (r *remover) runRollback(ctx context.Context) error {
	if !r.wait {
		alive, err := steady(ctx, legacy.Processes)(procRoot)
		if err != nil {
			return err
		}
		r.wait = len(alive) > 0
	}
	return r.run(ctx)
}

// run removes our tables when no daemon is left that would write them again.
func (r *remover) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	kernel, err := nft.Open()
	if err != nil {
		return err
	}
	defer kernel.Close()
	if _, err := kernel.Generation(ctx); err != nil { // the privilege is missing: waiting is in vain
		return fmt.Errorf("%w; nothing was removed", err)
	}
	if err := r.waitForDaemon(ctx); err != nil {
		return err
	}
	ours, _, err := kernel.Read(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w; nothing was removed", err)
	case len(ours) == 0:
		return r.removeRest(ctx, kernel)
	}
	if err := r.warn(ctx); err != nil {
		return err
	}
	rollback := migrate.Rollback{Kernel: kernel, Wait: r.wait, Journal: journalTo(r.journal)}
	if err := rollback.Run(ctx); err != nil {
		return err
	}
	return r.warnExposed()
}

// warnExposed says what the rules that are gone kept closed.
func (r *remover) warnExposed() error {
	exposure := localhost.Exposure(sysctlRoot)
	if exposure == "" {
		return nil
	}
	_, err := fmt.Fprintln(r.journal, "kube-nft: "+exposure)
	return err
}

// removeRest is for a network namespace without our tables; a start that was interrupted may
// have left one of another name.
func (r *remover) removeRest(ctx context.Context, kernel *nft.Kernel) error {
	removed, err := kernel.Remove(ctx)
	if err != nil {
		return err
	}
	done := "nothing to remove: no table kube-nft in this network namespace"
	if len(removed) > 0 {
		done = "removed: " + strings.Join(removed, ", ")
	}
	_, err = fmt.Fprintln(r.journal, "kube-nft: "+done)
	return err
}

// waitForDaemon waits until no kube-nft programs this network namespace.
func (r *remover) waitForDaemon(ctx context.Context) error {
	for {
		daemon, err := runningDaemon()
		if err != nil || daemon == nil {
			return err
		}
		fmt.Fprintf(r.journal, "kube-nft: a daemon runs, %s; nothing is removed before it has ended: stop it on this node\n", daemon)
		select {
		case <-daemon.gone(ctx):
			daemon.conn.Close()
		case <-ctx.Done():
			daemon.conn.Close()
			return fmt.Errorf("the daemon, %s, is still running: %w; nothing was removed; stop it on this node and run this again", daemon, ctx.Err())
		}
	}
}

// unseen is the privilege that lacks to see all rules of kube-proxy's, or empty.
func unseen(inventory *legacy.Inventory) string {
	for i := range inventory.Parts {
		if missing := inventory.Parts[i].Needs; missing != "" {
			return missing
		}
	}
	return ""
}

// warn says if nothing is going to serve once our tables are gone.
func (r *remover) warn(ctx context.Context) error {
	inventory, err := legacy.Node{}.Take(ctx)
	if err != nil || r.wait || migrate.Served(&inventory) {
		return err
	}
	found := "no rules of kube-proxy's are in place"
	if missing := unseen(&inventory); missing != "" {
		found = "no rules of kube-proxy's are to be seen (all can be with " + missing + ")"
	}
	_, err = fmt.Fprintf(r.journal, "kube-nft: %s: new connections to Services are not answered until a proxy is started\n", found)
	return err
}
