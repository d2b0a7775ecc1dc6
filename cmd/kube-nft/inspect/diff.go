package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"go.uber.org/zap"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// DryRun prints what the daemon would program on a node without our tables. The same input gives
// the same bytes: nothing of this host affects them.
func DryRun(ctx context.Context, c *config.Config, stdout, stderr io.Writer) error {
	t, err := c.Load(ctx, c.Log(stderr))
	if err != nil {
		return err
	}
	local, err := interfaceAddresses(t)
	if err != nil {
		return err
	}
	ruleset := compile(c, t, nil, local)
	unmet, _ := ruleset.Unmet()
	for _, u := range unmet {
		c.Log(stderr).Warn("a node does not serve what a Service requests", zap.Error(u))
	}
	_, err = io.WriteString(stdout, ruleset.Want().Text())
	return err
}

// interfaceAddresses returns the addresses of this node's interfaces. If none of the Node's addresses is among
// them, this is another machine, such as one that prints rules for review: then it returns the Node's addresses.
func interfaceAddresses(t *tracker.Tracker) ([]netip.Addr, error) {
	local, err := legacy.InterfaceAddresses()
	node := t.NodeAddresses()
	if len(node) > 0 && !slices.ContainsFunc(node, func(addr netip.Addr) bool { return slices.Contains(local, addr) }) {
		return node, nil
	}
	return local, err
}

// compile builds the ruleset of the tracker's content on a node with local addresses, in the order that the
// kernel's tables already have.
func compile(c *config.Config, t *tracker.Tracker, kernel nft.Tables, local []netip.Addr) *services.Ruleset {
	rules := c.Ruleset(nft.Families[:])
	for _, table := range kernel {
		rules.Owned = table.Owned // the daemon decides about ownership
	}
	ruleset := services.NewRuleset(rules)
	ruleset.Adopt(kernel)
	ruleset.Apply(t.Take())
	addrs := t.NodeAddresses()
	if t.Node() == nil {
		addrs = c.NodePorts.Keep(addrs, kernel)
	}
	ruleset.SetNodePortAddresses(c.NodePorts.Select(addrs, local))
	return ruleset
}

// ErrDiffers is the result of a comparison that found differences.
var ErrDiffers = errors.New("the kernel's rules differ")

// A TroubleError means that a command could not compare or read: it has no result.
type TroubleError struct{ Err error }

func (e TroubleError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e TroubleError) Unwrap() error { return e.Err }

func newDiff(reader *config.Reader) *cobra.Command {
	return &cobra.Command{
		Use:   "diff",
		Short: "Print what a sync would change in the kernel; exit 0 if nothing, 1 if something",
		Long: `diff compares the rules in the kernel with the rules that the current Services ask for. It
prints the operations of the batch that a sync would send, as nft commands. Like diff(1) it
exits 0 if there are none, 1 if there are some and 2 if it cannot compare.

Without --config, diff uses the settings of the daemon that runs here. Flags take precedence.`,
		Example: `  kube-nft diff
  kube-nft diff --masquerade-all                  # what another setting would change
  kube-nft diff --manifests deploy/examples --hostname-override node-a`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := peer.ReadSettings(cmd.Context(), reader, cmd.ErrOrStderr())
			if err != nil {
				return TroubleError{err} // 1 would say that something differs
			}
			err = diff(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if err != nil && !errors.Is(err, ErrDiffers) {
				return TroubleError{err}
			}
			return err
		},
	}
}

// diff prints the batch that a sync would send; ErrDiffers if there is one.
func diff(ctx context.Context, c *config.Config, stdout, stderr io.Writer) error {
	kernel, err := kernel.Open()
	if err != nil {
		return err
	}
	defer kernel.Close()
	have, _, err := kernel.Read(ctx)
	if err != nil {
		return err
	}
	t, err := c.Load(ctx, c.Log(stderr))
	if err != nil {
		return err
	}
	local, err := legacy.InterfaceAddresses()
	if err != nil {
		return err
	}
	ruleset := compile(c, t, have, local)
	if c.Takeover {
		reserved, err := legacy.ServiceAddresses()
		if err != nil {
			return err
		}
		ruleset.Reserve(reserved)
	}
	for _, table := range have {
		table.Orphaned = false // the daemon becomes the owner when it starts
	}
	batch := change.Diff(have, ruleset.Want())
	for i := range batch.Ops {
		if _, err := fmt.Fprintln(stdout, batch.Ops[i].Text()); err != nil {
			return err
		}
	}
	if batch.Empty() {
		return nil
	}
	return ErrDiffers
}
