// Package move holds the commands migrate, rollback and cleanup. Add Commands to the root command. They change
// which proxy serves a node: kube-proxy, kube-nft or none.
package move

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
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
		Example: `  kube-nft migrate plan --config /etc/kube-nft/config.yaml
  kube-nft migrate apply --config /etc/kube-nft/config.yaml
  kube-nft migrate rollback --wait`,
		RunE: func(*cobra.Command, []string) error {
			return config.Usagef("migrate: expected plan, apply or rollback")
		},
	}
	group.AddCommand(newPlan(reader), newApply(reader), newRollback())
	return []*cobra.Command{group, newCleanup()}
}

// withTimeout bounds a command by its flag --timeout. The cause says how long it has waited; what it has waited for
// stands before that.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, fmt.Errorf("waited for %s, which --timeout allows", timeout))
}
