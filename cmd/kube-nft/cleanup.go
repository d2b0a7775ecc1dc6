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
	back    bool // to kube-proxy: its rules have to be in place before ours go
	wait    bool // until they are
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
	r := remover{back: true}
	c := &cobra.Command{
		Use:   "rollback",
		Short: "Give the node back to kube-proxy: remove kube-nft's tables without a gap",
		Long: `rollback removes every trace of kube-nft, so that kube-proxy finds a clean node. To lose
no connection, stop the daemon, start kube-proxy, and then run this: kube-proxy's rules
come to lie under ours, which go on serving until rollback removes them.

Our tables go only if kube-proxy's rules are in place, in each IP family that ours serve. If
a kube-proxy runs, or with --wait, rollback waits for its rules; otherwise it removes
nothing when they are missing. kube-nft cleanup removes our tables without a successor.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			r.journal = cmd.ErrOrStderr()
			return r.run(cmd.Context())
		},
	}
	c.Flags().BoolVar(&r.wait, "wait", false, "wait for kube-proxy's rules though no kube-proxy runs yet, instead of refusing")
	c.Flags().DurationVar(&r.timeout, "timeout", 5*time.Minute, "how long all of it may take")
	return c
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
	if err := r.checkSuccessor(ctx, ours); err != nil {
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

// checkSuccessor refuses to give the node back to nobody. Cleanup may, and says so.
func (r *remover) checkSuccessor(ctx context.Context, ours nft.Tables) error {
	if r.back && !r.wait {
		alive, err := steady(ctx, legacy.Processes)(procRoot)
		if err != nil {
			return fmt.Errorf("%w; nothing was removed", err)
		}
		r.wait = len(alive) > 0
	}
	inventory, err := legacy.Node{}.Take(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("%w; nothing was removed", err)
	case r.wait:
		return nil
	case r.back:
		return refusal(migrate.Unserved(ours, &inventory), &inventory)
	}
	return r.warn(&inventory)
}

// refusal is the error for families that kube-proxy does not serve, if there are any.
func refusal(missing []string, inventory *legacy.Inventory) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("%s for %s; nothing was removed, our tables go on serving: "+
		"start kube-proxy on this node and run this again with --wait, or remove them without a successor with kube-nft cleanup",
		noRules(inventory), strings.Join(missing, " and "))
}

// noRules says that kube-proxy's rules are missing, as far as we can see.
func noRules(inventory *legacy.Inventory) string {
	if missing := unseen(inventory); missing != "" {
		return "no rules of kube-proxy's are to be seen (all can be with " + missing + ")"
	}
	return "no rules of kube-proxy's are in place"
}

// warn says if nothing is going to serve once our tables are gone.
func (r *remover) warn(inventory *legacy.Inventory) error {
	if migrate.Served(inventory) {
		return nil
	}
	_, err := fmt.Fprintf(r.journal, "kube-nft: %s: new connections to Services are not answered until a proxy is started\n", noRules(inventory))
	return err
}
