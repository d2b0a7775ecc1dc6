package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"
)

// An explanation is a run of the command explain.
type explanation struct {
	options    *options
	question   question
	format     format
	fromKernel bool
}

func newExplain(o *options) *cobra.Command {
	e := explanation{options: o}
	cmd := &cobra.Command{
		Use:   "explain SRC ADDR:PORT/PROTO",
		Short: "Say where a connection from SRC goes on this node, and why",
		Long: `explain follows the first packet of a connection through the rules and says what becomes
of it: which frontend, Service, policy and endpoints, whether its source is masqueraded,
and which rule or element decides each of these.

SRC is an IP address, or node for this node itself. A quoted arrow may stand between the
two: SRC '->' ADDR:PORT/PROTO. IPv6 addresses with a port stand in brackets. PROTO is
tcp, udp, sctp or icmp, the latter without a port.

The rules are those that the kernel holds, read back. With --manifests, --kubeconfig or
--master they are those that the daemon would write for what is there; nothing of this host
goes into them. With --from-kernel as well, the kernel's are explained and held against
those: the exit code is 1 if the connection would fare in another way. Rules of other
tables are not followed.`,
		Example: `  kube-nft explain 10.244.0.9 10.96.0.10:80/tcp
  kube-nft explain node [fd96::10]:53/udp
  kube-nft explain 203.0.113.5 192.168.0.2:30080/tcp --from outside -o json`,
		RunE: func(cmd *cobra.Command, args []string) error { return e.run(cmd, args) },
		Args: cobra.ArbitraryArgs, // parseQuestion says what is wrong with them
	}
	e.format.addFlag(cmd, formatText, formatJSON, formatYAML)
	f := cmd.Flags()
	f.StringVar(&e.question.iface, "interface", "", "interface that the packet arrives on")
	f.StringVar(&e.question.from, "from", "", "who sends it: pod, node or outside; without it, what SRC tells")
	f.BoolVar(&e.fromKernel, "from-kernel", false, "explain what the kernel holds, also if a source of objects is given")
	complete(cmd, "from", fromPod, fromNode, fromOutside)
	return cmd
}

func (e *explanation) run(cmd *cobra.Command, args []string) error {
	q, err := parseQuestion(args)
	if err != nil {
		return err
	}
	q.iface, q.from = e.question.iface, e.question.from
	if err := q.check(); err != nil {
		return err
	}
	if err := e.format.check(); err != nil {
		return err
	}
	e.question = q
	if err := e.options.complete(); err != nil {
		return err
	}
	sourced := slices.ContainsFunc([]string{"manifests", "kubeconfig", "master"}, cmd.Flags().Changed)
	var wanted *answer
	if sourced {
		if wanted, err = e.askSource(cmd.Context(), cmd.ErrOrStderr()); err != nil {
			return err
		}
	}
	if sourced && !e.fromKernel {
		return e.print(cmd.OutOrStdout(), wanted)
	}
	return e.runKernel(cmd, wanted)
}

// runKernel explains what the kernel holds, and holds it against what is wanted.
func (e *explanation) runKernel(cmd *cobra.Command, wanted *answer) error {
	held, err := e.askKernel(cmd.Context())
	if err != nil {
		return err
	}
	if wanted == nil || held.Verdict == wanted.Verdict {
		return e.print(cmd.OutOrStdout(), held)
	}
	held.Wanted = wanted.Verdict
	if err := e.print(cmd.OutOrStdout(), held); err != nil {
		return err
	}
	return differsError{}
}

// askSource explains the rules that the daemon would write.
func (e *explanation) askSource(ctx context.Context, stderr io.Writer) (*answer, error) {
	t, err := e.options.loadTracker(ctx, stderr)
	if err != nil {
		return nil, err
	}
	h := host{addresses: t.NodeAddresses()}
	table := e.options.compile(t, nil).Want()[e.question.family()]
	p, err := e.question.packet(table, &h)
	if err != nil {
		return nil, err
	}
	return newAnswer(p, table.Explain(p)), nil
}

// askKernel explains the rules that the kernel holds.
func (e *explanation) askKernel(ctx context.Context) (*answer, error) {
	i, err := inspectTables(ctx)
	if err != nil {
		return nil, err
	}
	defer i.close()
	table := i.tables[e.question.family()]
	if table == nil {
		return nil, fmt.Errorf("this network namespace has no table %s kube-nft: %s is not served here", e.question.family().NFT(), familyName(e.question.family()))
	}
	h, err := thisHost()
	if err != nil {
		return nil, err
	}
	p, err := e.question.packet(table, h)
	if err != nil {
		return nil, err
	}
	for _, set := range table.Recollections(table.Trace(p)) {
		if table.Sets[set.Name].Map, err = i.kernel.Elements(ctx, table.Family, set); err != nil {
			return nil, err
		}
	}
	return newAnswer(p, table.Explain(p)), nil
}

// thisHost is the host that the command runs on.
func thisHost() (*host, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("addresses of this node: %w", err)
	}
	h := &host{route: senderTo}
	for _, item := range list {
		if prefix, err := netip.ParsePrefix(item.String()); err == nil && !prefix.Addr().IsLoopback() {
			h.addresses = append(h.addresses, prefix.Addr().Unmap())
		}
	}
	return h, nil
}

// senderTo asks the routing table for the address that this host would send from. Nothing is
// sent.
func senderTo(to netip.Addr) (netip.Addr, bool) {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, 9)))
	if err != nil {
		return netip.Addr{}, false
	}
	defer conn.Close()
	local, ok := conn.LocalAddr().(*net.UDPAddr)
	if !ok {
		return netip.Addr{}, false
	}
	return local.AddrPort().Addr().Unmap(), true
}

// print writes the answer.
func (e *explanation) print(w io.Writer, a *answer) error {
	if e.format.value != formatText {
		return e.format.document(w, a)
	}
	_, err := io.WriteString(w, a.text())
	return err
}

// protocolName is a protocol as the question had it.
func protocolName(number uint8) string {
	for name, n := range explainedProtocols {
		if n == number {
			return name
		}
	}
	return "icmp"
}
