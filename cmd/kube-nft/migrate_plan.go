package main

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

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// errBlocked is the outcome of a plan that cannot be carried out.
var errBlocked = errors.New("this node cannot be migrated: see the checks that block")

// planTimeout is how long a plan waits for the API server: it has something to say without.
const planTimeout = 5 * time.Second

// A planner is the command migrate plan.
type planner struct {
	*options
	output string
	root   string // the node's file system
}

func newMigratePlan(o *options) *cobra.Command {
	p := planner{options: o}
	c := &cobra.Command{
		Use:   "plan",
		Short: "Print what a migration would find, remove and keep; change nothing",
		Long: `plan prints what kube-proxy and others have programmed on this node, what migrate apply
would remove and keep, and what an operator should know first. It changes nothing. Without
CAP_NET_ADMIN and CAP_NET_RAW it says what it could not look at. Exit code 1 means that
something stands in the way.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.output != "text" && p.output != "json" {
				return usagef("--output %q: expected text or json", p.output)
			}
			if err := o.complete(); err != nil {
				return err
			}
			return p.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	c.Flags().StringVarP(&p.output, "output", "o", "text", "form of the plan: text or json")
	c.Flags().StringVar(&p.root, "host-root", "/", "where the node's file system is mounted, to look for its nft program and configuration")
	return c
}

// run prints the plan.
func (p *planner) run(ctx context.Context, w io.Writer) error {
	inventory, err := legacy.Node{}.Take(ctx)
	if err != nil {
		return err
	}
	plan := migrate.NewPlan(inventory, p.checks(ctx))
	if p.output == "json" {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(plan)
	} else {
		_, err = io.WriteString(w, plan.Text())
	}
	if err == nil && !plan.Ready {
		return errBlocked
	}
	return err
}

// checks looks at everything that is not a rule of kube-proxy's.
func (p *planner) checks(ctx context.Context) []migrate.Check {
	checks, ip6 := kernelChecks(ctx)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		checks = append(checks, unknown("kernel release", err))
	}
	host := migrate.Host{Root: p.root, Release: unix.ByteSliceToString(name.Release[:]), IP6: ip6}
	checks = append(checks, host.Checks()...)
	return append(checks, p.sourceChecks(ctx)...)
}

// kernelChecks finds out whether the kernel can do what the ruleset needs, and whether
// tables of ours are there.
func kernelChecks(ctx context.Context) (checks []migrate.Check, ip6 bool) {
	kernel, err := nft.Open()
	if err != nil {
		return []migrate.Check{unknown("kernel features", err)}, true
	}
	defer kernel.Close()
	features, err := kernel.Probe(ctx)
	tables, _, readErr := kernel.Read(ctx)
	return []migrate.Check{featureCheck(features, err), tableCheck(tables, readErr)}, features.IP6
}

// unknown is the check for something that could not be looked at.
func unknown(about string, err error) migrate.Check {
	return migrate.Check{Level: migrate.Unknown, About: about, Found: err.Error()}
}

func featureCheck(features nft.Features, err error) migrate.Check {
	c := migrate.Check{
		Level: migrate.OK, About: "kernel features", Found: "all there, for IPv4 and IPv6",
		Means: "each was tried in a table of its own that no packet meets",
	}
	var missing *nft.FeatureError
	switch {
	case errors.As(err, &missing):
		c.Level, c.Found, c.Means = migrate.Blocks, missing.Error(), ""
	case err != nil:
		return unknown(c.About, err)
	case !features.IP6:
		c.Level, c.Found = migrate.Warning, "all there for IPv4, no nat chains for IPv6"
		c.Means = "IPv6 Services will not be served"
	}
	return c
}

func tableCheck(tables nft.Tables, err error) migrate.Check {
	c := migrate.Check{Level: migrate.OK, About: "tables of kube-nft", Found: "none yet"}
	switch {
	case err != nil:
		return unknown(c.About, err)
	case len(tables) > 0:
		c.Found = fmt.Sprintf("in %d families", len(tables))
		c.Means = "they win over kube-proxy's rules already; they will be brought up to date"
	}
	return c
}

// sourceChecks reads the source, if it can be reached, for what depends on it.
func (p *planner) sourceChecks(ctx context.Context) []migrate.Check {
	ctx, cancel := context.WithTimeout(ctx, planTimeout)
	defer cancel()
	t := tracker.New(p.trackerConfig())
	if err := p.load(ctx, t, zap.NewNop()); err != nil {
		c := unknown("Services", err)
		c.Means = "which addresses serve node ports depends on the Node object"
		c.Do = "give --kubeconfig or --manifests as the daemon gets them"
		return []migrate.Check{c}
	}
	delta := t.Take()
	checks := []migrate.Check{{
		Level: migrate.OK, About: "Services", Found: fmt.Sprintf("%d Service ports to serve", len(delta.Changed)),
	}}
	local, err := proxysync.Addresses()
	if err != nil {
		return append(checks, unknown("node ports", err))
	}
	ports := migrate.NodePorts{Local: local, Reached: p.NodePorts.Reached(t.NodeAddresses(), local), Setting: p.NodePorts.String()}
	if p.LocalhostNodePorts {
		ports.Reached = append(ports.Reached, netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback())
	}
	if ports.InUse, err = nodePortUses(ctx, nodePortsOf(delta), local); err != nil {
		checks = append(checks, unknown("node ports in use", err))
	}
	return append(checks, ports.Checks()...)
}

// A nodePort is the number of a node port with its protocol.
type nodePort struct {
	protocol tracker.Protocol
	port     uint16
}

// nodePortsOf lists the node ports of all Services.
func nodePortsOf(delta tracker.Delta) map[nodePort]bool {
	ports := make(map[nodePort]bool)
	for id, p := range delta.Changed {
		if p.NodePort != 0 {
			ports[nodePort{id.Protocol, p.NodePort}] = true
		}
	}
	return ports
}

// nodePortUses lists the connections to node ports that are under way.
func nodePortUses(ctx context.Context, ports map[nodePort]bool, local []netip.Addr) (uses []migrate.Use, err error) {
	table, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	defer table.Close()
	_, err = table.Flows(ctx, conntrack.Filter{}, func(f *conntrack.Flow) bool {
		to := f.Original
		if f.Translated() && ports[nodePort{to.Protocol, to.Destination.Port()}] && slices.Contains(local, to.Destination.Addr()) {
			uses = append(uses, migrate.Use{Protocol: to.Protocol, Address: to.Destination})
		}
		return false
	})
	return uses, err
}
