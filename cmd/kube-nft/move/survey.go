package move

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/nft/words"
	"github.com/kube-nft/kube-nft/sync/localhost"
	"github.com/kube-nft/kube-nft/tracker"
)

// A survey is what plan and apply find on a node and in the source.
type survey struct {
	plan    migrate.Plan
	node    string // the name of this node if there is no such Node object
	problem error  // why the source could not be read
	targets []firewall.Target
}

// look looks at kube-proxy's rules, the kernel, the host whose file system is at root, and the
// source, which has patience to answer. With force, what would be lost is a warning.
func look(ctx context.Context, c *config.Config, root string, patience time.Duration, force bool,
	log *zap.Logger) (*survey, error) {
	inventory, err := legacy.Node{Proc: c.HostProc, Endpoints: true}.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	checks, ip6 := migrate.KernelChecks(ctx)
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		checks = append(checks, migrate.NotSeen("kernel release", err))
	}
	host := migrate.Host{Proc: c.HostProc, Root: root, Release: unix.ByteSliceToString(name.Release[:]), IP6: ip6}
	s := &survey{}
	source := s.lookAtSource(ctx, c, patience, &inventory, ip6, force, log)
	forward := migrate.FirewallChecks(ctx, &inventory, s.targets, 1<<c.MasqueradeBit)
	checks = slices.Concat(checks, host.Checks(), forward, source)
	s.plan = migrate.NewPlan(inventory, checks)
	return s, nil
}

// lookAtSource reads the source, if reachable, for checks that depend on it.
func (s *survey) lookAtSource(ctx context.Context, c *config.Config, patience time.Duration,
	inventory *legacy.Inventory, ip6, force bool, log *zap.Logger) []migrate.Check {
	t := tracker.New(c.Tracker())
	filling, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer within %s", patience))
	defer cancel()
	if s.problem = c.Fill(filling, t, log); s.problem != nil {
		check := migrate.NotSeen("Services", s.problem)
		check.Means = "without them kube-nft does not know which frontends it would not serve; the addresses of node ports " +
			"depend on the Node object"
		check.Do = "give the settings of the daemon: --config, --kubeconfig or --manifests, --hostname-override"
		return []migrate.Check{check}
	}
	if t.Node() == nil {
		s.node = c.NodeName
	}
	delta := t.Take()
	for _, p := range delta.Changed {
		s.targets = append(s.targets, firewall.TargetsOf(p)...)
	}
	checks := []migrate.Check{{
		Level: migrate.OK, About: "Services", Found: fmt.Sprintf("%d Service ports to serve", len(delta.Changed)),
	}}
	if s.problem = c.RequirePodCIDRs(t.Node()); s.problem != nil {
		checks = append(checks, migrate.Check{Level: migrate.Blocks, About: "pods", Found: s.problem.Error(),
			Do: "choose another --detect-local-mode, or the right --hostname-override"})
	}
	local, err := legacy.InterfaceAddresses()
	if err != nil {
		return append(checks, migrate.NotSeen("node ports", err))
	}
	families := nft.Families[:]
	if !ip6 {
		families = []nft.Family{nft.IP}
	}
	ruleset := services.NewRuleset(c.Ruleset(families))
	ruleset.Apply(delta)
	ruleset.SetNodePortAddresses(c.NodePorts.Select(t.NodeAddresses(), local))
	if !inventory.Clean() {
		checks = append(checks, migrate.AffinityCheck(ctx, inventory, ruleset))
	}
	comparison, err := migrate.Compare(inventory, ruleset.Want(), s.node)
	if err != nil {
		return append(checks, migrate.NotSeen("frontends", err))
	}
	checks = append(checks, comparison.Checks(force)...)
	checks = append(checks, s.nodeChecks(c, t.NodeAddresses(), local, comparison.Refusal() == nil)...)
	if check, some := fallback(inventory, &delta); some {
		checks = append(checks, check)
	}
	if s.node != "" { // the addresses of node ports are not known
		return checks
	}
	return append(checks, nodePorts(ctx, c, inventory, t.NodeAddresses(), local, &delta)...)
}

// nodeChecks look whether the Node object is there and is this node's. serves says that a takeover would lose no
// Service.
func (s *survey) nodeChecks(c *config.Config, addrs, local []netip.Addr, serves bool) (checks []migrate.Check) {
	if s.node != "" && serves {
		checks = append(checks, migrate.Check{
			Level: migrate.Warning, About: "Node", Found: "no Node object is called " + s.node,
			Means: "neither the node's addresses, for node ports, nor its own endpoints are known",
			Do:    "give the Node's name with --hostname-override",
		})
	}
	isLocal := func(addr netip.Addr) bool { return slices.Contains(local, addr) }
	if len(addrs) > 0 && !slices.ContainsFunc(addrs, isLocal) {
		checks = append(checks, migrate.Check{
			Level: migrate.Warning, About: "Node " + c.NodeName,
			Found: fmt.Sprintf("none of its addresses, %s, is on an interface of this node", words.Some(addrs, 10, ", ")),
			Means: "it may be another node: then its node ports do not answer here, and endpoints on this node do not count " +
				"as such", Do: "look whether --hostname-override is this node's name",
		})
	}
	return checks
}

// nodePorts looks at the addresses of node ports, and at who uses them.
func nodePorts(ctx context.Context, c *config.Config, inventory *legacy.Inventory, node, local []netip.Addr,
	delta *tracker.Delta) (checks []migrate.Check) {
	ports := migrate.NodePorts{Local: local, Reached: c.NodePorts.Reached(node, local), Setting: c.NodePorts.String()}
	ports.Localhost = localhost.Exposure("/proc/sys") != ""
	ports.ServedBy(inventory)
	if c.LocalhostNodePorts {
		ports.Reached = append(ports.Reached, layout.LocalhostAddress(tracker.IPv4))
	}
	for _, family := range c.LocalhostProxies {
		ports.Reached = append(ports.Reached, layout.LocalhostAddress(family))
	}
	type nodePort struct {
		protocol tracker.Protocol
		port     uint16
	}
	listening, err := legacy.Listening("/proc")
	if err != nil {
		checks = append(checks, migrate.NotSeen("programs at node ports", err))
	}
	all, taken := make(map[nodePort]bool), make(map[uint16]string)
	for _, p := range delta.Changed {
		if p.NodePort == 0 {
			continue
		}
		all[nodePort{p.ID.Protocol, p.NodePort}] = true
		if p.ID.Protocol == tracker.TCP && listening[p.NodePort] {
			taken[p.NodePort] = p.ID.Namespace + "/" + p.ID.Service
		}
	}
	ports.Taken = taken
	table, err := conntrack.Open()
	if err == nil {
		defer table.Close()
		_, err = table.Flows(ctx, conntrack.Filter{}, func(f *conntrack.Flow) bool {
			to := f.Original
			if f.Translated() && all[nodePort{to.Protocol, to.Destination.Port()}] &&
				slices.Contains(local, to.Destination.Addr()) {
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

// shownServices is how many Services a check names.
const shownServices = 10

// fallback names the Services whose traffic policy Local has no endpoint on this node, if kube-proxy
// ran in its IPVS mode. Only this mode sends their connections to endpoints on other nodes.
func fallback(inventory *legacy.Inventory, delta *tracker.Delta) (check migrate.Check, some bool) {
	if !slices.ContainsFunc(inventory.Parts, func(p legacy.Part) bool { return p.Backend == legacy.IPVS && !p.Clean() }) {
		return check, false
	}
	seen := make(map[string]bool)
	for _, p := range delta.Changed {
		name := p.ID.Namespace + "/" + p.ID.Service
		if p.Settings.LocalFallback {
			continue
		}
		if p.HasEndpoints && len(p.Local) == 0 && p.InternalLocal {
			seen[name+" (internal)"] = true
		}
		if p.HasEndpoints && len(p.Local) == 0 && p.ExternalLocal {
			seen[name+" (external)"] = true
		}
	}
	if len(seen) == 0 {
		return check, false
	}
	return migrate.Check{
		Level: migrate.Warning, About: "traffic policy Local without an endpoint on this node",
		Found: words.Some(slices.Sorted(maps.Keys(seen)), shownServices, ", "),
		Means: "the IPVS mode serves their connections from endpoints on other nodes, against the policy; kube-nft drops " +
			"them, as kube-proxy's other modes do",
		Do: "annotate these Services with kube-nft.io/local-fallback: cluster, which goes on serving them so, have " +
			"endpoints on this node, or set the policy to Cluster",
	}, true
}
