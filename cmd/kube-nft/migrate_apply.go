package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// procRoot shows the node's processes.
const procRoot = "/proc"

// An applier is the command migrate apply.
type applier struct {
	*options
	timeout time.Duration
	journal io.Writer
	log     *zap.Logger
	kernel  *nft.Kernel
	ruleset *nft.Ruleset
	report  proxysync.Report
}

func newMigrateApply(o *options) *cobra.Command {
	a := applier{options: o}
	c := &cobra.Command{
		Use:   "apply",
		Short: "Put kube-nft's rules in force, then remove kube-proxy's",
		Long: `apply reads the source as the daemon does, commits our tables once, verifies them and
removes what kube-proxy has programmed, in the order that migrate plan shows. It waits for
a live kube-proxy to end. A journal goes to standard error. It may be interrupted and run
again at any time; a second run after a complete one changes nothing.

Our tables serve from then on, but only the daemon follows changes: start it before or
right after. If it is running already, apply leaves the tables to it.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			if o.ServiceProxyName != "" {
				return usagef("migrate apply removes all of kube-proxy's rules; with --service-proxy-name it is to keep some")
			}
			a.journal = cmd.ErrOrStderr()
			return a.run(cmd.Context())
		},
	}
	c.Flags().DurationVar(&a.timeout, "timeout", 5*time.Minute, "how long all of it may take")
	return c
}

// run applies the plan.
func (a *applier) run(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	a.log = a.newLog(a.journal)
	if a.kernel, err = nft.Open(); err != nil {
		return err
	}
	defer a.kernel.Close()
	if err := a.waitForProxy(ctx); err != nil {
		return err
	}
	if _, err := migrate.Look(ctx, legacy.Node{}); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	daemon, err := runningDaemon()
	if err != nil {
		return err
	}
	t := migrate.Takeover{Commit: a.commit, Verify: a.verify, Journal: journalTo(a.journal)}
	if daemon != nil {
		defer daemon.conn.Close()
		t.Commit, t.Verify = leaveTo(daemon), a.present
	}
	return t.Run(ctx)
}

// journalTo writes entries of the journal as lines.
func journalTo(w io.Writer) func(migrate.Entry) {
	return func(e migrate.Entry) { fmt.Fprintln(w, "kube-nft: "+e.String()) }
}

// waitForProxy waits until no kube-proxy is alive to write its rules again.
func (a *applier) waitForProxy(ctx context.Context) error {
	err := migrate.WaitForEnd(ctx, procRoot, steady(ctx, legacy.Processes), func(alive []legacy.Process) {
		fmt.Fprintf(a.journal, "kube-nft: kube-proxy runs, %s; nothing is done before it has ended: stop it on this node, its rules stay\n", migrate.Describe(alive))
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("kube-proxy, %w; nothing was changed; stop it on this node and run this again", err)
	}
	return err
}

// commit syncs once, with the removal of what kube-proxy has in nf_tables in the same
// transaction.
func (a *applier) commit(ctx context.Context) (string, error) {
	loop, err := a.newLoop(ctx)
	if err != nil {
		return "", err
	}
	if table, err := conntrack.Open(); err == nil { // without it, stale connections stay
		defer table.Close()
		loop.CleanFlows(conntrack.NewReconciler(table))
	}
	if err := loop.Once(ctx); err != nil {
		return "", err
	}
	return committedText(a.report), nil
}

// committedText says what a sync wrote.
func committedText(r proxysync.Report) string {
	if r.Operations+r.Foreign == 0 {
		return "nothing to change"
	}
	stale := 0
	for _, n := range r.Flows.Deleted {
		stale += n
	}
	return fmt.Sprintf("one transaction with %d operations on our tables, %d elements, and %d on kube-proxy's; %d stale connections removed",
		r.Operations, r.Elements, r.Foreign, stale)
}

// newLoop reads the source into a loop that has not synced.
func (a *applier) newLoop(ctx context.Context) (*proxysync.Loop, error) {
	features, err := a.kernel.Probe(ctx)
	if err != nil {
		return nil, err
	}
	families := []nft.Family{nft.IP}
	if features.IP6 {
		families = append(families, nft.IP6)
	}
	t := tracker.New(a.trackerConfig())
	if err := a.load(ctx, t, a.log); err != nil {
		return nil, err
	}
	if a.PodsFromNode && !a.setPodCIDRs(t.Node()) {
		return nil, fmt.Errorf("the Node %s has no spec.podCIDRs, which --detect-local-mode NodeCIDR needs", a.NodeName)
	}
	a.ruleset = nft.NewRuleset(a.rulesetConfig(families))
	loop := proxysync.New(t, a.ruleset, a.kernel, proxysync.Options{
		NodePorts: a.NodePorts,
		Log:       a.log.WithOptions(zap.IncreaseLevel(zap.WarnLevel)), // the journal tells the rest
		Foreign:   besideTakeover,
		Committed: func(r proxysync.Report) { a.report = r },
	})
	addrs, err := proxysync.Addresses()
	if err != nil {
		return nil, err
	}
	loop.SetAddresses(addrs)
	return loop, nil
}

// besideTakeover is what goes into the transaction of our first commit: what kube-proxy has
// in nf_tables that can refuse a packet. Its nat chains go later, see package migrate.
func besideTakeover(ctx context.Context) ([]nft.ForeignMessage, uint32, error) {
	return legacy.Messages(ctx, legacy.Selector{
		Backends: []legacy.Backend{legacy.Compat, legacy.ProxyTables}, Tables: []string{"filter", "mangle"},
	})
}

// verify compares the kernel with what was committed.
func (a *applier) verify(ctx context.Context) (string, error) {
	looked, err := migrate.Verify(ctx, a.kernel, a.ruleset.Want())
	return fmt.Sprintf("our tables read back as they should be, %d elements looked up", looked), err
}

// runningDaemon returns the daemon that programs this network namespace, or nil.
func runningDaemon() (*holder, error) {
	h, err := findHolder()
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for a running kube-nft: %w", err)
	case !trusted(&h.Ucred):
		return nil, h.conn.Close()
	}
	return h, nil
}

// leaveTo stands for a commit where a daemon makes them.
func leaveTo(daemon *holder) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return "left to the running daemon, " + daemon.String(), nil }
}

// errNoTables says that the daemon has not got as far as its first commit.
var errNoTables = errors.New("the daemon has not committed our tables yet; see its log, and run this again")

// present makes sure that the daemon has committed our tables.
func (a *applier) present(ctx context.Context) (string, error) {
	tables, _, err := a.kernel.Read(ctx)
	if err == nil && len(tables) == 0 {
		err = errNoTables
	}
	return fmt.Sprintf("our tables are there, in %d families", len(tables)), err
}
