package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/firewall"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/words"
)

func newExplain(reader *config.Reader) *cobra.Command {
	var flags connection
	var f output.Form
	var fromKernel, fromSource bool
	cmd := &cobra.Command{
		Use:   "explain SRC DEST",
		Short: "Say where a connection from SRC goes on this node, and why",
		Long: `explain follows the first packet of a connection through the rules and prints the result:
the frontend, Service, policy and endpoints, whether the source is masqueraded, and the
rule or element that decides each of these.

SRC is an IP address, the name of a Node, or node for this node itself. A port after the
address, as in 10.244.0.9:40000, matters if a hash of the client chooses the endpoint. DEST is
one of

    ADDR:PORT/PROTO                   an address; write IPv6 addresses with a port in brackets
    NODE:PORT/PROTO                   the address of a Node
    NAMESPACE/SERVICE[:PORT][/PROTO]  the cluster IP of a Service, or its first other address;
                                      PORT is a name or a number

PROTO is tcp, udp, sctp or icmp; icmp has no port. You can put a quoted arrow between the
two: SRC '->' DEST.

explain reads the rules from the kernel. With --from-source it computes the rules that the
daemon on this node would write for its current objects; with --manifests, --kubeconfig or
--master, the rules for the objects there, without reading anything from this host. With
--from-kernel as well, it explains the kernel's rules and compares the result: the exit code
is 1 if the other rules treat the connection differently.

Rules of other programs in the kernel come last: chains that translate the packet before
kube-nft's do or keep it from being tracked, and what refuses it on its way to the endpoints.`,
		Example: `  kube-nft explain 10.244.0.9 10.96.0.10:80/tcp
  kube-nft explain 10.244.0.9:40000 10.96.0.10:80/tcp
  kube-nft explain node kube-system/kube-dns:dns
  kube-nft explain node [fd96::10]:53/udp
  kube-nft explain worker-2 worker-1:30080/tcp
  kube-nft explain 203.0.113.5 192.168.0.2:30080/tcp --from outside -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			q, err := parseConnection(args)
			if err != nil {
				return err
			}
			q.iface, q.from = flags.iface, flags.from
			if err := q.check(); err != nil {
				return err
			}
			sourced := fromSource || slices.ContainsFunc([]string{"manifests", "kubeconfig", "master"}, cmd.Flags().Changed)
			c, _, err := peer.ReadSettings(cmd.Context(), reader, cmd.ErrOrStderr())
			if err != nil {
				return TroubleError{err}
			}
			return q.explain(cmd, c, &f, sourced, fromKernel)
		},
		Args:              cobra.ArbitraryArgs, // parseConnection checks them
		ValidArgsFunction: serviceAt(1),
	}
	f.AddFlag(cmd, output.Text, output.JSON, output.YAML)
	set := cmd.Flags()
	set.StringVar(&flags.iface, "interface", "", "interface that the packet arrives on")
	set.StringVar(&flags.from, "from", "", "kind of client: pod, node or outside; by default it follows from SRC")
	set.BoolVar(&fromKernel, "from-kernel", false, "explain the rules in the kernel, also with a source of objects")
	set.BoolVar(&fromSource, "from-source", false,
		"explain the rules that the daemon on this node would write for its current objects")
	output.Offer(cmd, "from", fromPod, fromNode, fromOutside)
	return cmd
}

// explain prints what becomes of the connection by the kernel's rules, by the rules that the daemon would
// write, or by both.
func (q *connection) explain(cmd *cobra.Command, c *config.Config, f *output.Form,
	sourced, fromKernel bool) (err error) {
	var wanted *answer
	if sourced {
		if wanted, err = q.explainSource(cmd.Context(), c, cmd.ErrOrStderr()); err != nil {
			return TroubleError{err}
		}
	}
	if sourced && !fromKernel {
		return f.Print(cmd.OutOrStdout(), wanted)
	}
	held, err := q.explainKernel(cmd.Context(), c, cmd.ErrOrStderr())
	if err != nil {
		return TroubleError{err}
	}
	if wanted == nil || held.Verdict == wanted.Verdict {
		return f.Print(cmd.OutOrStdout(), held)
	}
	held.Wanted = wanted.Verdict
	return cmp.Or(f.Print(cmd.OutOrStdout(), held), ErrDiffers)
}

// explainSource explains the rules that the daemon would write.
func (q connection) explainSource(ctx context.Context, c *config.Config, stderr io.Writer) (*answer, error) {
	log := c.Log(stderr)
	t, err := c.Load(ctx, log)
	if err != nil {
		return nil, err
	}
	h := host{addresses: t.NodeAddresses()}
	tables := make(map[nft.Family]*readback.Table)
	local, err := interfaceAddresses(t)
	if err != nil {
		return nil, err
	}
	for family, table := range compile(c, t, nil, local).Want() {
		tables[family] = readback.New(table)
	}
	table, p, err := q.meets(ctx, c, tables, &h, log)
	if err != nil {
		return nil, err
	}
	explanation := table.Explain(p)
	explainPort(ctx, c, &explanation)
	return newAnswer(p, explanation), nil
}

// explainKernel explains the rules in the kernel.
func (q connection) explainKernel(ctx context.Context, c *config.Config, stderr io.Writer) (*answer, error) {
	i, err := lookAtTables(ctx)
	if err != nil {
		return nil, err
	}
	defer i.close()
	addrs, err := legacy.InterfaceAddresses()
	if err != nil {
		return nil, err
	}
	// This node's name stands for the address at which it serves node ports, and not for that of a bridge of pods.
	var nodePorts []netip.Addr
	for _, table := range i.tables {
		nodePorts = append(nodePorts, nodePortAddressesOf(table)...)
	}
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int {
		return nft.TrueFirst(slices.Contains(nodePorts, a), slices.Contains(nodePorts, b))
	})
	h := &host{route: firewall.SourceTo, addresses: slices.DeleteFunc(addrs, netip.Addr.IsLoopback)}
	table, p, err := q.meets(ctx, c, i.tables, h, c.Log(stderr))
	if err != nil {
		return nil, err
	}
	for _, set := range table.AffinityMaps(p) {
		if table.Sets[set.Name].Map, err = i.kernel.Elements(ctx, table.Family, set); err != nil {
			return nil, err
		}
	}
	explanation := table.Explain(p)
	explainPort(ctx, c, &explanation)
	a := newAnswer(p, explanation)
	a.Others = i.besides(ctx, table, p, &explanation)
	a.Facts = append(a.Facts, unservedFacts(ctx, p, explanation.Service)...)
	a.Elsewhere = elsewhere(ctx, c, p)
	return a, nil
}

// meets returns the packet of the connection, and the table that it meets on a node.
func (q *connection) meets(ctx context.Context, c *config.Config, tables map[nft.Family]*readback.Table, here *host,
	log *zap.Logger) (*readback.Table, nft.Packet, error) {
	err := q.resolve(tables, here, func(name string) ([]netip.Addr, error) {
		if name == c.NodeName {
			return here.addresses, nil
		}
		return c.AddressesOf(ctx, name, log)
	})
	if err != nil {
		return nil, nft.Packet{}, err
	}
	table := tables[q.family()]
	if table == nil {
		return nil, nft.Packet{}, fmt.Errorf("this network namespace has no table %s kube-nft: %s is not served here",
			q.family().NFT(), q.family())
	}
	table.LocalhostProxy = slices.Contains(c.LocalhostProxies, table.Family)
	p, err := q.packet(table, here)
	return table, p, err
}

// sourcePatience bounds how long the API server may take to say more than the rules do. The answer is there without it.
const sourcePatience = time.Second

// explainPort says of a Service port without endpoints that the Service has ready endpoints, but none with this port.
// The usual cause is a targetPort that no pod has.
func explainPort(ctx context.Context, c *config.Config, e *readback.Explanation) {
	if e.Service == nil || e.TraceResult.Outcome != "reject" || e.Service.Endpoints().Len() > 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sourcePatience)
	defer cancel()
	name, ready := e.Service.Name, 0
	list, err := c.Slices(ctx, name.Namespace, name.Name, zap.NewNop())
	if err != nil {
		return
	}
	for i := range list {
		has := func(p discoveryv1.EndpointPort) bool {
			return p.Name == nil && name.Port == "" || p.Name != nil && *p.Name == name.Port
		}
		if slices.ContainsFunc(list[i].Ports, has) {
			return
		}
		for _, ep := range list[i].Endpoints {
			if ep.Conditions.Ready == nil || *ep.Conditions.Ready {
				ready++
			}
		}
	}
	if ready == 0 {
		return
	}
	text := words.Plural(ready, "ready endpoint") + ", none with this port"
	services, err := c.Services(ctx, name.Namespace, labels.Everything(), zap.NewNop())
	for i := range services {
		for _, p := range services[i].Spec.Ports {
			if err == nil && services[i].Name == name.Name && p.Name == name.Port && p.TargetPort.Type == intstr.String {
				text += fmt.Sprintf(": no ready pod has a container port named %q, the targetPort", p.TargetPort.StrVal)
			}
		}
	}
	e.Reason += "; it has " + text
	e.Facts = append(e.Facts, readback.Fact{Topic: "Port", Text: text})
}

// elsewhere says that the source is a pod of another node, whose rules its packets meet; empty if it is not, or if the
// API server does not say so. Only packets to an address of this node come here all the same. A network plug-in such as
// Calico can give a pod of this node an address that is in spec.podCIDRs of another; the pod is then behind an
// interface.
func elsewhere(ctx context.Context, c *config.Config, p nft.Packet) string {
	if p.SourceLocal || p.DestinationLocal || firewall.Linked(p.Source) {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, sourcePatience)
	defer cancel()
	node, err := c.NodeOfPod(ctx, p.Source)
	if err != nil || node == "" || node == c.NodeName {
		return ""
	}
	return fmt.Sprintf("%s is a pod of Node %s, by its spec.podCIDRs: its packets meet the rules of that node, and this "+
		"is the answer of %s. Run explain in the pod of kube-nft on %s.", p.Source, node, c.NodeName, node)
}
