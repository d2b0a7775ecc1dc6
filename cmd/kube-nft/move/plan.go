package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// planTimeout is how long a plan waits for the API server; most of the plan does not need it.
const planTimeout = 5 * time.Second

func newPlan(reader *config.Reader) *cobra.Command {
	var output, root, proc string
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "Print what a migration would find, remove and keep; change nothing",
		Long: `plan prints what kube-proxy and others have programmed on this node, what migrate apply
would remove and keep, and what an operator should know first. It changes nothing. Without
CAP_NET_ADMIN and CAP_NET_RAW it says what it could not look at. Exit code 1 means that
something stands in the way.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return config.Usagef("--output %q: expected text or json", output)
			}
			c, err := reader.Read()
			if err != nil {
				return err
			}
			return plan(cmd.Context(), c, root, proc, output == "json", cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "form of the plan: text or json")
	cmd.Flags().StringVar(&root, "host-root", "/", "where the node's file system is mounted, to look for its nft program and configuration")
	addProcFlag(cmd, &proc)
	return cmd
}

// plan prints the plan. It looks at kube-proxy's rules, the kernel, the host whose file systems are
// at root and proc, and the source.
func plan(ctx context.Context, c *config.Config, root, proc string, asJSON bool, w io.Writer) error {
	inventory, err := legacy.Node{Proc: proc}.Take(ctx)
	if err != nil {
		return err
	}
	checks, ip6 := migrate.KernelChecks(ctx)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		checks = append(checks, migrate.NotSeen("kernel release", err))
	}
	host := migrate.Host{Proc: proc, Root: root, Release: unix.ByteSliceToString(name.Release[:]), IP6: ip6}
	plan := migrate.NewPlan(inventory, slices.Concat(checks, host.Checks(), sourceChecks(ctx, c)))
	if asJSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(plan)
	} else {
		_, err = io.WriteString(w, plan.Text())
	}
	if err == nil && !plan.Ready {
		return errors.New("this node cannot be migrated: see the checks that block")
	}
	return err
}

// sourceChecks reads the source, if reachable, for checks that depend on it.
func sourceChecks(ctx context.Context, c *config.Config) []migrate.Check {
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	t := tracker.New(c.Tracker())
	if err := c.Fill(ctx, t, zap.NewNop()); err != nil {
		check := migrate.NotSeen("Services", err)
		check.Means = "which addresses serve node ports depends on the Node object"
		check.Do = "give --kubeconfig or --manifests as the daemon gets them"
		return []migrate.Check{check}
	}
	delta := t.Take()
	type nodePort struct {
		protocol tracker.Protocol
		port     uint16
	}
	nodePorts := make(map[nodePort]bool)
	for id, p := range delta.Changed {
		nodePorts[nodePort{id.Protocol, p.NodePort}] = p.NodePort != 0
	}
	checks := []migrate.Check{{
		Level: migrate.OK, About: "Services", Found: fmt.Sprintf("%d Service ports to serve", len(delta.Changed)),
	}}
	local, err := proxysync.Addresses()
	if err != nil {
		return append(checks, migrate.NotSeen("node ports", err))
	}
	ports := migrate.NodePorts{Local: local, Reached: c.NodePorts.Reached(t.NodeAddresses(), local), Setting: c.NodePorts.String()}
	if c.LocalhostNodePorts {
		ports.Reached = append(ports.Reached, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	table, err := conntrack.Open()
	if err == nil {
		defer table.Close()
		_, err = table.Flows(ctx, conntrack.Filter{}, func(f *conntrack.Flow) bool {
			to := f.Original
			if f.Translated() && nodePorts[nodePort{to.Protocol, to.Destination.Port()}] && slices.Contains(local, to.Destination.Addr()) {
				ports.InUse = append(ports.InUse, migrate.Use{Protocol: to.Protocol, Address: to.Destination})
			}
			return false
		})
	}
	if err != nil {
		checks = append(checks, migrate.NotSeen("node ports in use", err))
	}
	return append(checks, ports.Checks()...)
}
