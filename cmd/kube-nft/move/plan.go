package move

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// planTimeout is how long a plan waits for the API server; most of the plan does not need it. The kernel may need
// longer to load its modules on a slow machine.
const planTimeout = 5 * time.Second

// ErrIncomplete is the result of a plan that could not look at everything.
var ErrIncomplete = errors.New("the plan is incomplete: see the lines that begin with unknown")

func newPlan(reader *config.Reader) *cobra.Command {
	var form output.Form
	var root string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print what a migration would find, remove and keep; change nothing",
		Long: `plan prints what kube-proxy and others have programmed on this node, what migrate apply
would remove and keep, and what an operator should know first. It changes nothing. It uses
the settings of the daemon that runs on this node, and flags take precedence; without a
daemon, give it the daemon's settings. Its last line is a summary. It exits 1 if something
prevents a takeover, and 2 if it could not read everything: it needs CAP_NET_ADMIN, as root,
and the source.`,
		Example: `  kube-nft migrate plan --config /etc/kube-nft/config.yaml
  kube-nft migrate plan --kubeconfig /etc/kubernetes/kube-proxy.conf --hostname-override worker-1 -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := peer.ReadSettings(cmd.Context(), reader, cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			c.ServiceProxyName = "" // of a trial, which leaves kube-proxy's Services alone: the plan is about these
			return plan(cmd.Context(), c, root, &form, cmd.OutOrStdout())
		},
	}
	form.AddFlag(cmd, output.Text, output.JSON, output.YAML)
	cmd.Flags().StringVar(&root, "host-root", "/",
		"where the node's file system is mounted, to look for its nft program and configuration")
	return cmd
}

// A planDocument is a plan for programs.
type planDocument struct {
	metav1.TypeMeta
	migrate.Plan
}

// plan prints the plan. root is the host's file system.
func plan(ctx context.Context, c *config.Config, root string, form *output.Form, w io.Writer) error {
	s, err := look(ctx, c, root, planTimeout, false, zap.NewNop())
	if err != nil {
		return err
	}
	if err := form.Print(w, &planDocument{output.Kind("MigrationPlan"), s.plan}); err != nil {
		return err
	}
	switch {
	case !s.plan.Ready:
		return errors.New("this node cannot be migrated: see the checks that block")
	case !s.plan.Complete:
		return ErrIncomplete
	}
	return nil
}
