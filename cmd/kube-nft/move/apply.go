package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

func newApply(reader *config.Reader) *cobra.Command {
	var timeout time.Duration
	var force bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Put kube-nft's rules in force, then remove kube-proxy's",
		Long: `apply makes the plan and prints its warnings. Then it runs the daemon with
--takeover=auto until the takeover is done: it waits for a running kube-proxy to end, commits
our tables, verifies them and removes what kube-proxy has programmed, in the order that
migrate plan shows. It prints each step on stderr, with the daemon's warnings. You can
interrupt it and run it again at any time; a second run after a complete one changes nothing.

While it runs, it answers health checks of load balancers as the daemon does, at
--healthz-bind-address and at the health-check node ports.

It refuses, and changes nothing, if frontends that kube-proxy serves would not be served
any more: without a Node object of this node's name, with a source that has no Service with
an endpoint, or if more are missing than may have been deleted meanwhile. --force takes the
node over all the same.

Our tables serve from then on, but only the daemon follows changes: start it before or
right after, with the same settings. If it is running already, apply uses its settings,
leaves the tables to it, and removes what kube-proxy has programmed. Connections of
kube-proxy's IPVS mode go on. apply makes its virtual servers refuse new connections. The
daemon removes them and the device kube-ipvs0 when the connections have ended.`,
		Example: `  kube-nft migrate apply --config /etc/kube-nft/config.yaml
  kube-nft migrate apply --config /etc/kube-nft/config.yaml --timeout 1h`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := peer.ReadSettings(cmd.Context(), reader, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			if c.ServiceProxyName != "" {
				return config.Usagef("migrate apply removes all rules of kube-proxy, and --service-proxy-name leaves Services to " +
					"kube-proxy: give one of them")
			}
			c.Takeover, c.ForceTakeover = true, force
			ctx, cancel := withTimeout(cmd.Context(), timeout)
			defer cancel()
			return apply(ctx, reader, c, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "time limit for the whole command")
	cmd.Flags().BoolVar(&force, "force", false,
		"take the node over even if kube-nft would not serve some of kube-proxy's frontends")
	return cmd
}

// apply takes the node over and writes a journal.
func apply(ctx context.Context, reader *config.Reader, c *config.Config, journal io.Writer) error {
	deadline, _ := ctx.Deadline()
	s, err := look(ctx, c, "/", time.Until(deadline), c.ForceTakeover, c.Log(journal))
	if err == nil {
		err = refuse(s, journal)
	}
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	if !peer.Running(ctx) {
		return daemon.Apply(ctx, reader, c, journal)
	}
	t := migrate.Takeover{
		Node:    legacy.Node{Proc: c.HostProc},
		Journal: migrate.WriteJournal(journal),
		Force:   c.ForceTakeover,
		Drain:   c.TakeoverDrain,
		Beside:  true,
	}
	if err := t.Wait(ctx); err != nil {
		return fmt.Errorf("kube-proxy, %w; nothing was changed; stop it on this node and run this again", err)
	}
	t.Journal(migrate.Entry{Step: "commit", Event: migrate.Done, Text: "left to the running daemon"})
	if err = t.Remove(ctx, s.node); migrate.IsDraining(err) {
		return nil
	}
	return err
}

// refuse prints the warnings and blocks of a plan. It returns an error if the takeover must not begin.
func refuse(s *survey, journal io.Writer) error {
	blocks := 0
	for _, check := range s.plan.Checks {
		if check.Level == migrate.Warning || check.Level == migrate.Blocks {
			fmt.Fprintf(journal, "kube-nft: %s: %s\n", check.Level, check)
		}
		if check.Level == migrate.Blocks {
			blocks++
		}
	}
	switch {
	case s.problem != nil:
		return s.problem
	case blocks > 0:
		return errors.New("cannot take over this node, see the lines that begin with blocks")
	}
	return migrate.Unread(&s.plan.Inventory)
}
