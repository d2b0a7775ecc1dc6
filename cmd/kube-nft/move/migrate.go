// Package move holds the commands that change who serves a node, kube-proxy, kube-nft or nobody,
// and who owns our tables.
package move

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
)

// Commands returns the commands; reader has the flags of the daemon.
func Commands(reader *config.Reader) []*cobra.Command {
	group := &cobra.Command{
		Use:   "migrate",
		Short: "Move this node from kube-proxy to kube-nft, or back",
		Long: `migrate looks at what kube-proxy has programmed on this node, in the legacy ip_tables,
in nf_tables by way of iptables-nft, in tables of its own or in IPVS, and moves the
node to kube-nft without a gap in service. It runs no iptables, nft or ipset program.

The daemon does what migrate apply does by itself when it starts, unless
--takeover=never is set.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	group.AddCommand(newPlan(reader), newApply(reader), newRollback())
	release := &cobra.Command{
		Use:   "release",
		Short: "Make the running kube-nft give up the ownership of its tables",
		Long: `With --table-ownership=auto nobody but the running kube-nft can change its tables;
nft gets "Operation not permitted". release asks the kube-nft that runs in this network
namespace to replace them by tables of the same content that belong to nobody, in one
transaction. It goes on repairing what others change, and owns its tables again when it is
started again. Tables that belong to nobody already stay as they are. When no kube-nft runs
there is nothing to release: then nft can change and delete the tables.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			already, err := daemon.Release(cmd.Context())
			if err != nil {
				return err
			}
			since := "now"
			if already {
				since = "already"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "the tables belong to nobody "+since)
			return err
		},
	}
	return []*cobra.Command{group, newCleanup(), release}
}

func newApply(reader *config.Reader) *cobra.Command {
	var timeout time.Duration
	var pod string
	var force bool
	cmd := &cobra.Command{
		Use:   "apply",
		Short: "Put kube-nft's rules in force, then remove kube-proxy's",
		Long: `apply reads the source as the daemon does, commits our tables once, verifies them and
removes what kube-proxy has programmed, in the order that migrate plan shows. It waits for
a live kube-proxy to end, and says so, again every half hour. A journal goes to standard
error, with the warnings of the plan.
It may be interrupted and run again at any time; a second run after a complete one changes
nothing.

From the end of kube-proxy until its own, it answers health checks of load balancers in
their place, at --healthz-bind-address and at the health-check node ports.

It refuses, and changes nothing, if frontends that kube-proxy serves would not be served
any more: without a Node object of this node's name, with a source that has no Services,
or if more are missing than may have been deleted meanwhile. --force takes the node over
all the same.

Our tables serve from then on, but only the daemon follows changes: start it before or
right after, with the same settings. If it is running already, apply leaves the tables to
it.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := reader.Read()
			if err != nil {
				return err
			}
			if c.ServiceProxyName != "" {
				return config.Usagef("migrate apply removes all of kube-proxy's rules; with --service-proxy-name it is to keep some")
			}
			regarding, err := parsePod(pod, c.NodeName)
			if err != nil {
				return err
			}
			ctx, cancel := withTimeout(cmd.Context(), timeout)
			defer cancel()
			return apply(ctx, c, force, regarding, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long all of it may take")
	cmd.Flags().BoolVar(&force, "force", false, "take the node over whatever frontends that costs")
	cmd.Flags().StringVar(&pod, "pod", "", "the pod that this runs in, as NAMESPACE/NAME/UID: while it waits for kube-proxy to end, the pod has an event that says so; without it, the Node has it")
	return cmd
}

// apply takes the node over and writes a journal. Events are about the object regarding.
func apply(ctx context.Context, c *config.Config, force bool, regarding *corev1.ObjectReference, journal io.Writer) error {
	kernel, err := kernel.Open()
	if err != nil {
		return err
	}
	defer kernel.Close()
	log := c.Log(journal)
	var found *survey
	t := migrate.Takeover{
		Node:    legacy.Node{Proc: c.HostProc},
		Kernel:  kernel,
		Journal: journalTo(journal),
		Alive: func(processes string) {
			text := fmt.Sprintf("kube-proxy runs, %s; nothing is done before it has ended: stop it on this node, its rules stay", processes)
			fmt.Fprintln(journal, "kube-nft: "+text)
			if c.Manifests == "" {
				go func() {
					if err := recordWaiting(ctx, c, regarding, text); err != nil && ctx.Err() == nil {
						fmt.Fprintf(journal, "kube-nft: no event says that this waits: %s\n", nft.Visible(err.Error()))
					}
				}()
			}
		},
		Force:   force,
		Missing: func() string { return found.node },
		Prepare: func(ctx context.Context) (nft.Tables, error) {
			if found, err = look(ctx, c, "/", force, log); err != nil {
				return nil, err
			}
			blocks := 0
			for _, check := range found.plan.Checks {
				if check.Level == migrate.Warning || check.Level == migrate.Blocks {
					fmt.Fprintf(journal, "kube-nft: %s: %s\n", check.Level, check)
				}
				if check.Level == migrate.Blocks {
					blocks++
				}
			}
			switch {
			case found.problem != nil:
				return nil, found.problem
			case blocks > 0:
				return nil, errors.New("refused, see the lines that begin with blocks")
			}
			return found.tables, nil
		},
		Daemon: func() (string, error) {
			running := daemon.Running()
			if running == nil {
				return "", nil
			}
			defer running.Close()
			return running.String(), nil
		},
	}
	if running := daemon.Running(); running != nil { // it answers health checks itself
		running.Close()
	} else {
		defer daemon.ServeHealth(ctx, c)()
	}
	t.Commit = func(ctx context.Context) (nft.Tables, string, error) { return commit(ctx, c, kernel, &t, found, log) }
	return t.Run(ctx)
}

// commit syncs once. The same transaction removes what kube-proxy has in nf_tables. done says in
// words what was written.
func commit(ctx context.Context, c *config.Config, kernel *kernel.Client, t *migrate.Takeover, found *survey, log *zap.Logger) (want nft.Tables, done string, err error) {
	features, err := kernel.Probe(ctx)
	if err != nil {
		return nil, "", err
	}
	families := nft.Families[:]
	if !features.IP6 {
		families = []nft.Family{nft.IP}
	}
	var report proxysync.Report
	stale := 0
	rules := c.Ruleset(families)
	rules.Lacks = features.Lacks
	ruleset := services.NewRuleset(rules)
	loop := proxysync.New(found, ruleset, kernel, proxysync.Options{
		NodePorts: c.NodePorts,
		Log:       log.WithOptions(zap.IncreaseLevel(zap.WarnLevel)), // the journal tells the rest
		Trust:     t.Force,
		Foreign: func(ctx context.Context, want nft.Tables) ([]nft.ForeignMessage, uint32, error) {
			messages, generation, _, err := t.Foreign(ctx, want)
			if migrate.IsLoss(err) {
				err = &proxysync.HeldError{Err: err}
			}
			return messages, generation, err
		},
		Seeds: func(ctx context.Context) []services.Seed {
			seeds, err := t.Seeds(ctx)
			if err != nil {
				log.Warn("some clients choose an endpoint anew, once", zap.Error(err))
			}
			return seeds
		},
		Committed: func(r proxysync.Report) { report = r },
		Cleaned: func(r proxysync.FlowReport) {
			for _, n := range r.Deleted {
				stale += n
			}
		},
	})
	addrs, err := proxysync.Addresses()
	if err != nil {
		return nil, "", err
	}
	loop.SetAddresses(addrs)
	if table, err := conntrack.Open(); err == nil { // without it, stale connections stay
		defer table.Close()
		loop.CleanFlows(conntrack.NewReconciler(table))
	}
	var held *proxysync.HeldError
	err = loop.Once(ctx)
	if errors.As(err, &held) && found.plan.Inventory.Clean() {
		// There is nothing to take over, so nothing has to be decided here: the daemon will.
		want, _, err = kernel.Read(ctx)
		return want, "our tables stay as they are: " + held.Error() + "; the daemon waits for a while, --force does it all the same", err
	}
	if held != nil {
		err = fmt.Errorf("%w; --force does it all the same", err)
	}
	if err != nil {
		return nil, "", err
	}
	if report.Operations+report.Foreign == 0 {
		return ruleset.Want(), "nothing to change", nil
	}
	done = fmt.Sprintf("one transaction with %d operations on our tables, %d elements, and %d on kube-proxy's; %d stale connections removed",
		report.Operations, report.Elements, report.Foreign, stale)
	if report.Seeds > 0 {
		done += fmt.Sprintf("; session affinity: %d clients keep their endpoint", report.Seeds)
	}
	return ruleset.Want(), done, nil
}
