package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// maxTraceFilters bounds the frontends of one Service: each is a rule that first packets meet.
const maxTraceFilters = 256

// A packetQuery is the command line of trace.
type packetQuery struct {
	to     string // NAMESPACE/SERVICE[:PORT], ADDR or ADDR:PORT/PROTO
	source string
	count  int
	rate   uint64
	// timeout ends a trace whose terminal has gone: kubectl exec without -t leaves the process in the pod.
	timeout time.Duration
}

// NewTrace returns the command trace. kubectl kube-nft shares its flags, and checks them with PreRunE.
func NewTrace() *cobra.Command {
	var q packetQuery
	var f output.Form
	cmd := &cobra.Command{
		Use:   "trace [NAMESPACE/SERVICE[:PORT] | ADDR[:PORT/PROTO]]",
		Short: "Show the rules that live packets meet on this node",
		Long: `trace shows the first packet of each connection that its filter selects: each rule of kube-nft that the packet met, in
nft's syntax, the chains of other tables by name, and the result.

The filter is a Service or an address, or the client by --source, or both. trace uses the kernel's tracing of nf_tables,
which does not include rules of legacy iptables. It makes a table kube-nft-trace-N that belongs to this process: the
kernel removes the table when the process ends in any way. While the table exists, each packet of the node costs one
comparison, and first packets those of the filter. trace needs CAP_NET_ADMIN and Linux 5.12.`,
		Example: `  kube-nft trace shop/web
  kube-nft trace shop/web:http --source 203.0.113.0/24 --count 1
  kube-nft trace 198.51.100.9:7777/udp -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: serviceAt(0),
		PreRunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				q.to = args[0]
			}
			return q.check()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return q.run(untilInputEnds(cmd), &f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.AddFlag(cmd, output.Text, output.JSON)
	set := cmd.Flags()
	set.StringVar(&q.source, "source", "", "client: an address or a CIDR")
	set.IntVar(&q.count, "count", 0, "number of packets to show; 0: until you interrupt it")
	set.DurationVar(&q.timeout, "timeout", 5*time.Minute, "how long to trace; 0: until you interrupt it")
	addUntilInputEnds(cmd)
	set.Uint64Var(&q.rate, "rate", 100, "maximum number of packets a second that each rule of the filter selects")
	return cmd
}

// run traces until the context ends or enough packets were shown.
func (q *packetQuery) run(ctx context.Context, f *output.Form, stdout, stderr io.Writer) error {
	look, err := lookAtTables(ctx)
	if err != nil {
		return err
	}
	defer look.close()
	filters, err := q.filters(look)
	if err != nil {
		return err
	}
	w, err := newJourneys(ctx, look)
	if err != nil {
		return err
	}
	tracer, err := kernel.NewPacketTracer(ctx, filters, q.rate)
	if err != nil {
		return err
	}
	defer tracer.Close()
	ends := "tracing; end with Ctrl-C"
	if q.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.timeout)
		defer cancel()
		ends += fmt.Sprintf(", or after %s", q.timeout)
	}
	fmt.Fprintln(stderr, ends)
	shown := 0
	for ctx.Err() == nil && (q.count == 0 || shown < q.count) {
		event, err := tracer.Next(sweepInterval)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, kernel.ErrPacketsLost):
			fmt.Fprintln(stderr, "kube-nft: warning: "+err.Error())
		case err != nil:
			return err
		default:
			w.add(event, time.Now())
		}
		w.refresh(ctx)
		for _, j := range w.ended(time.Now()) {
			if err := f.WriteNext(stdout, w.packet(j)); err != nil {
				return err
			}
			if shown++; shown == q.count {
				break
			}
		}
	}
	return nil
}

// check returns an error if the query asks for too much, without a look at the tables.
func (q *packetQuery) check() error {
	if q.rate == 0 || q.rate > 1<<20 {
		return config.Usagef("--rate %d: expected 1 to %d", q.rate, 1<<20)
	}
	if q.to == "" && q.source == "" {
		return config.Usagef("trace: expected a Service or an address, --source, or both; trace cannot show all packets of " +
			"a node")
	}
	_, err := parseClient(q.source)
	return err
}

// filters are what the kernel is to select.
func (q *packetQuery) filters(look *inspection) ([]kernel.PacketFilter, error) {
	source, err := parseClient(q.source)
	if err != nil {
		return nil, err
	}
	filters, err := q.destinations(look)
	if err != nil {
		return nil, err
	}
	if source.IsValid() {
		family := tracker.FamilyOf(source.Addr())
		filters = slices.DeleteFunc(filters, func(f kernel.PacketFilter) bool { return f.Family != family })
		for i := range filters {
			filters[i].Source = source
		}
	}
	if len(filters) == 0 {
		return nil, fmt.Errorf("trace: %s and the client %s are of different IP families", q.to, q.source)
	}
	return filters, nil
}

// destinations are the filters without the source.
func (q *packetQuery) destinations(look *inspection) (filters []kernel.PacketFilter, err error) {
	if q.to == "" {
		return []kernel.PacketFilter{{Family: nft.IP}, {Family: nft.IP6}}, nil
	}
	if addr, ok := parseAddress(q.to); ok {
		c := connection{destination: addr}
		return []kernel.PacketFilter{{Family: c.family(), Destination: addr}}, nil
	}
	target, _, _ := strings.Cut(q.to, "/")
	if _, err := netip.ParseAddrPort(target); err == nil {
		var c connection
		if err := c.parseDestination(q.to); err != nil {
			return nil, err
		}
		return []kernel.PacketFilter{{Family: c.family(), Destination: c.destination, Protocol: c.protocol, Port: c.port}},
			nil
	}
	service, ok := parseService(q.to)
	if !ok {
		return nil, config.Usagef("%q: expected NAMESPACE/SERVICE[:PORT], ADDR or ADDR:PORT/PROTO", q.to)
	}
	for f, table := range look.tables {
		nodePorts := nodePortAddressesOf(table)
		if len(nodePorts) == 0 {
			nodePorts = []netip.Addr{{}} // served at all addresses
		}
		for _, s := range table.Frontends() {
			if !service.matches(&s) {
				continue
			}
			addrs := []netip.Addr{s.Address}
			if s.NodePort() {
				addrs = nodePorts
			}
			for _, addr := range addrs {
				filters = append(filters,
					kernel.PacketFilter{Family: f, Destination: addr, Protocol: uint8(s.Protocol), Port: s.Port})
			}
		}
	}
	switch {
	case len(filters) == 0:
		return nil, fmt.Errorf("no Service %s is programmed on this node; kube-nft get services lists the Services that are",
			q.to)
	case len(filters) > maxTraceFilters:
		return nil,
			fmt.Errorf("%s has %d frontends, more than the %d that trace can select: name one of them, as ADDR:PORT/PROTO, or "+
				"a port", q.to, len(filters), maxTraceFilters)
	}
	return filters, nil
}

// nodePortAddressesOf are the addresses at which a table serves node ports; none means all of the node's.
func nodePortAddressesOf(t *readback.Table) []netip.Addr {
	return readback.NodePortAddresses(nft.Tables{t.Family: t.Table})
}
