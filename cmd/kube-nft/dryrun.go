package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// dryRunCommand prints what the daemon would program on a node without our tables. The
// same input gives the same bytes: nothing of this host goes into it.
func dryRunCommand(ctx context.Context, o *options, stdout, stderr io.Writer) error {
	ruleset, err := o.loadRuleset(ctx, stderr, nil)
	if err != nil {
		return err
	}
	_, err = io.WriteString(stdout, ruleset.Want().Text())
	return err
}

// loadRuleset builds the ruleset of what the source holds now, in the order in which the
// kernel holds it already.
func (o *options) loadRuleset(ctx context.Context, stderr io.Writer, kernel nft.Tables) (*nft.Ruleset, error) {
	t, err := o.loadTracker(ctx, stderr)
	if err != nil {
		return nil, err
	}
	return o.compile(t, kernel), nil
}

// loadTracker reads what the source holds now.
func (o *options) loadTracker(ctx context.Context, stderr io.Writer) (*tracker.Tracker, error) {
	t := tracker.New(o.trackerConfig())
	log := o.newLog(stderr)
	if err := o.load(ctx, t, log); err != nil {
		return nil, err
	}
	if t.Node() == nil {
		o.warnNode(log)
	}
	if o.PodsFromNode && !o.setPodCIDRs(t.Node()) {
		return nil, fmt.Errorf("Node %s has no spec.podCIDRs, which --detect-local-mode NodeCIDR needs", o.NodeName)
	}
	return t, nil
}

func (o *options) compile(t *tracker.Tracker, kernel nft.Tables) *nft.Ruleset {
	ruleset := nft.NewRuleset(o.rulesetConfig(nft.Families[:]))
	ruleset.Adopt(kernel)
	ruleset.Apply(t.Take())
	addrs := t.NodeAddresses()
	ruleset.SetNodePortAddresses(o.NodePorts.Select(addrs, addrs))
	return ruleset
}

// A differsError is the outcome of a diff that found differences.
type differsError struct{}

func (differsError) Error() string { return "the kernel holds something else" }

// A troubleError kept a diff from finding out.
type troubleError struct{ error }

func (e troubleError) Unwrap() error { return e.error }

func newDiff(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "diff",
		Short: "Print what a sync would change in the kernel; exit 0 if nothing, 1 if something",
		Long: `diff compares the ruleset of what the source holds now with what the kernel holds
and prints the operations of the batch that a sync would send, as nft commands. Like
diff(1) it exits 0 if there are none, 1 if there are some and 2 if it cannot tell.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.complete(); err != nil {
				return err
			}
			differs, err := o.diff(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
			switch {
			case err != nil:
				return troubleError{err}
			case differs:
				return differsError{}
			}
			return nil
		},
	}
}

// diff prints the batch that a sync would send and reports whether there is one.
func (o *options) diff(ctx context.Context, stdout, stderr io.Writer) (differs bool, err error) {
	kernel, err := nft.Open()
	if err != nil {
		return false, err
	}
	defer kernel.Close()
	have, _, err := kernel.Read(ctx)
	if err != nil {
		return false, err
	}
	ruleset, err := o.loadRuleset(ctx, stderr, have)
	if err != nil {
		return false, err
	}
	for _, table := range have {
		ruleset.SetOwned(table.Owned) // that is the daemon's to decide
	}
	batch := nft.Diff(have, ruleset.Want())
	for i := range batch.Ops {
		if _, err := fmt.Fprintln(stdout, batch.Ops[i].Text()); err != nil {
			return false, err
		}
	}
	return !batch.Empty(), nil
}
