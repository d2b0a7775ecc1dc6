package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// Bounds of a trace.
const (
	maxTraceFilters = 256  // frontends of one Service; each is a rule that first packets meet
	maxJourneys     = 1000 // packets whose steps are still coming
	maxTraceSteps   = 500  // of one packet; a longer way is cut
	// journeyEnd is how long after its last step a packet counts as gone: nothing says that a step was the last.
	journeyEnd = 200 * time.Millisecond
)

// A packetQuery is the command line of trace.
type packetQuery struct {
	to     string // NAMESPACE/SERVICE[:PORT], ADDR or ADDR:PORT/PROTO
	source string
	count  int
	rate   uint64
}

func newTrace() *cobra.Command {
	var q packetQuery
	var f format
	cmd := &cobra.Command{
		Use:   "trace [NAMESPACE/SERVICE[:PORT] | ADDR[:PORT/PROTO]]",
		Short: "Show the way of live packets through the rules of this node",
		Long: `trace shows the first packet of each connection that its filter selects: each rule of ours that it met, as nft
writes it, the chains of other tables by name, and where it ended.

The filter is a Service or an address, or the client by --source, or both. Packets are told by the kernel's own tracing
of nf_tables; rules of legacy iptables are not seen. What that needs is a table of its own, kube-nft-trace-N,
which belongs to this process: the kernel removes it however the process ends. While it is there, each packet of the
node pays for one comparison, and first packets for those of the filter. It needs CAP_NET_ADMIN and Linux 5.12.`,
		Example: `  kube-nft trace shop/web
  kube-nft trace shop/web:http --source 203.0.113.0/24 --count 1
  kube-nft trace 198.51.100.9:7777/udp -o json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				q.to = args[0]
			}
			if err := f.check(); err != nil {
				return err
			}
			return q.run(cmd.Context(), &f, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f.addFlag(cmd, formatText, formatJSON)
	set := cmd.Flags()
	set.StringVar(&q.source, "source", "", "client: an address or a CIDR")
	set.IntVar(&q.count, "count", 0, "end after so many packets; 0: when it is interrupted")
	set.Uint64Var(&q.rate, "rate", 100, "packets a second that each rule of the filter selects at most")
	return cmd
}

// run traces until the context ends or enough packets were shown.
func (q *packetQuery) run(ctx context.Context, f *format, stdout, stderr io.Writer) error {
	look, err := lookAtTables(ctx)
	if err != nil {
		return err
	}
	defer look.close()
	filters, err := q.filters(look)
	if err != nil {
		return err
	}
	w := &watch{look: look, rules: make(map[nft.Family]map[uint64]nft.Rule), names: namesOf(look)}
	if err := w.readRules(ctx); err != nil {
		return err
	}
	tracer, err := kernel.NewPacketTracer(ctx, filters, q.rate)
	if err != nil {
		return err
	}
	defer tracer.Close()
	fmt.Fprintln(stderr, "tracing; end with Ctrl-C")
	shown := 0
	for ctx.Err() == nil && (q.count == 0 || shown < q.count) {
		event, err := tracer.Next(journeyEnd / 4)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, kernel.ErrPacketsLost):
			fmt.Fprintln(stderr, "kube-nft: warning: "+err.Error())
		case err != nil:
			return err
		default:
			w.take(ctx, event, time.Now())
		}
		for _, j := range w.ended(time.Now()) {
			if err := w.print(j, f, stdout); err != nil {
				return err
			}
			if shown++; shown == q.count {
				break
			}
		}
	}
	return nil
}

// filters are what the kernel is to select.
func (q *packetQuery) filters(look *inspection) ([]kernel.PacketFilter, error) {
	if q.rate == 0 || q.rate > 1<<20 {
		return nil, config.Usagef("--rate %d: expected 1 to %d", q.rate, 1<<20)
	}
	if q.to == "" && q.source == "" {
		return nil, config.Usagef("trace: expected a Service or an address, --source, or both: all first packets of a node are too many")
	}
	var source netip.Prefix
	if q.source != "" {
		var err error
		if source, err = netip.ParsePrefix(q.source); err != nil {
			addr, ok := parseAddress(q.source)
			if !ok {
				return nil, config.Usagef("--source %q: expected an IP address or a CIDR", q.source)
			}
			source = netip.PrefixFrom(addr, addr.BitLen())
		}
	}
	filters, err := q.destinations(look)
	if err != nil {
		return nil, err
	}
	if source.IsValid() {
		family := nft.IP6
		if source.Addr().Is4() {
			family = nft.IP
		}
		filters = slices.DeleteFunc(filters, func(f kernel.PacketFilter) bool { return f.Family != family })
		for i := range filters {
			filters[i].Source = source
		}
	}
	if len(filters) == 0 {
		return nil, fmt.Errorf("trace: %s is not reached from %s, which is of another IP family", q.to, q.source)
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
		return []kernel.PacketFilter{{Family: c.family(), Destination: c.destination, Protocol: c.protocol, Port: c.port}}, nil
	}
	namespace, name, found := strings.Cut(q.to, "/")
	if !found || namespace == "" || name == "" {
		return nil, config.Usagef("%q: expected NAMESPACE/SERVICE[:PORT], ADDR or ADDR:PORT/PROTO", q.to)
	}
	name, port, _ := strings.Cut(name, ":")
	for f, table := range look.tables {
		nodePorts := nodePortAddressesOf(table)
		for _, s := range table.Frontends() {
			if s.Name.Namespace != namespace || s.Name.Name != name || port != "" && s.Name.Port != port {
				continue
			}
			filter := kernel.PacketFilter{Family: f, Destination: s.Address, Protocol: uint8(s.Protocol), Port: s.Port}
			if !s.NodePort() {
				filters = append(filters, filter)
				continue
			}
			filter.Destination = netip.Addr{}
			if len(nodePorts) == 0 { // served at all addresses
				filters = append(filters, filter)
			}
			for _, addr := range nodePorts {
				filter.Destination = addr
				filters = append(filters, filter)
			}
		}
	}
	switch {
	case len(filters) == 0:
		return nil, fmt.Errorf("no Service %s is programmed on this node; kube-nft get services lists those that are", q.to)
	case len(filters) > maxTraceFilters:
		return nil, fmt.Errorf("%s has %d frontends, and trace takes %d at most: name one of them, as ADDR:PORT/PROTO, or a port", q.to, len(filters), maxTraceFilters)
	}
	return filters, nil
}

// nodePortAddressesOf are the addresses at which a table serves node ports; none means all of the node's.
func nodePortAddressesOf(t *readback.Table) []netip.Addr {
	return readback.NodePortAddresses(nft.Tables{t.Family: t.Table})
}

// A watch makes ways of packets from their steps.
type watch struct {
	look     *inspection
	rules    map[nft.Family]map[uint64]nft.Rule
	names    map[tracker.Frontend]readback.Programmed
	journeys []*journey // in the order of their first steps
}

// A journey is the way of one packet.
type journey struct {
	id    uint32
	began time.Time
	last  time.Time
	first kernel.PacketEvent // with the packet as it came
	now   kernel.PacketEvent // with the packet as it was seen last
	steps []traceStep
	cut   bool
	end   string // what ended it, if a step did
}

// A traceStep is one rule, or the end of a chain.
type traceStep struct {
	Family  string `json:"family"`
	Table   string `json:"table"`
	Chain   string `json:"chain"`
	Rule    string `json:"rule,omitempty"`
	Handle  uint64 `json:"handle,omitempty"`
	Verdict string `json:"verdict"`
}

func namesOf(look *inspection) map[tracker.Frontend]readback.Programmed {
	names := make(map[tracker.Frontend]readback.Programmed)
	for _, table := range look.tables {
		for _, s := range table.Frontends() {
			names[s.Frontend] = s
		}
	}
	return names
}

func (w *watch) readRules(ctx context.Context) error {
	for f := range w.look.tables {
		rules, err := w.look.kernel.RulesByHandle(ctx, f)
		if err != nil {
			return err
		}
		w.rules[f] = rules
	}
	return nil
}

// take adds a step to its packet's way.
func (w *watch) take(ctx context.Context, e kernel.PacketEvent, now time.Time) {
	if strings.HasPrefix(e.Table, "kube-nft-trace-") {
		e.Chain = "" // only its packet is of interest
	}
	at := slices.IndexFunc(w.journeys, func(j *journey) bool { return j.id == e.ID && j.end == "" })
	if at < 0 {
		w.journeys = append(w.journeys, &journey{id: e.ID, began: now, first: e})
		at = len(w.journeys) - 1
	}
	j := w.journeys[at]
	j.last = now
	if e.Source.Addr().IsValid() {
		if !j.first.Source.Addr().IsValid() {
			j.first = e
		}
		j.now = e
	}
	if e.Chain == "" {
		return
	}
	if len(j.steps) == maxTraceSteps {
		j.cut = true
		return
	}
	step := traceStep{Family: hookFamily(e.Family), Table: e.Table, Chain: e.Chain, Handle: e.Handle, Verdict: verdictWord(e.Verdict)}
	var rule nft.Rule
	if e.Table == nft.TableName && e.Handle != 0 {
		if _, known := w.rules[e.Family][e.Handle]; !known {
			_ = w.readRules(ctx) // the daemon has made it since; without it the handle says which one it is
		}
		if rule = w.rules[e.Family][e.Handle]; rule != nil {
			step.Rule = rule.Text(e.Family)
		}
	}
	if e.Policy {
		step.Rule = "policy"
	}
	j.steps = append(j.steps, step)
	if e.Verdict.Kind == nft.VerdictDrop {
		j.end = endOf(rule, e)
	}
}

// verdictWord is a verdict as nft names it; a rule that decides nothing continues with the next one.
func verdictWord(v nft.Verdict) string {
	const goesOn, leavesRule = -1, -2 // NFT_CONTINUE and NFT_BREAK in linux/netfilter/nf_tables.h
	switch v.Kind {
	case goesOn:
		return "continue"
	case leavesRule:
		return "break"
	}
	return v.String()
}

// hookFamily is the family of a table as nft writes it; tables of others may have one that ours have not.
// Source: NFPROTO_* in linux/netfilter.h.
func hookFamily(f nft.Family) string {
	if name, known := map[nft.Family]string{1: "inet", 3: "arp", 5: "netdev", 7: "bridge"}[f]; known {
		return name
	}
	return f.NFT()
}

// endOf says what a verdict that ends a packet did.
func endOf(rule nft.Rule, e kernel.PacketEvent) string {
	where := fmt.Sprintf("table %s %s, chain %s", hookFamily(e.Family), e.Table, e.Chain)
	for _, stmt := range rule {
		switch stmt.(type) {
		case nft.Reject, nft.RejectTCP:
			return "rejected in " + where
		}
	}
	if e.Policy {
		return "dropped by the policy of " + where
	}
	return "dropped in " + where // a rule of others may have rejected it: the kernel does not tell
}

// ended takes out the ways that are over, and the oldest if there are too many.
func (w *watch) ended(now time.Time) (over []*journey) {
	excess := len(w.journeys) - maxJourneys
	w.journeys = slices.DeleteFunc(w.journeys, func(j *journey) bool {
		done := j.end != "" || now.Sub(j.last) > journeyEnd || excess > 0
		if done {
			excess--
			over = append(over, j)
		}
		return done
	})
	return over
}

// A tracedPacket is a journey for programs.
type tracedPacket struct {
	Time        time.Time   `json:"time"`
	Source      string      `json:"source"`
	Destination string      `json:"destination"`
	Protocol    string      `json:"protocol"`
	In          string      `json:"in,omitempty"`
	Service     string      `json:"service,omitempty"`
	Frontend    string      `json:"frontend,omitempty"`
	Policy      string      `json:"policy,omitempty"`
	Endpoint    string      `json:"endpoint,omitempty"`
	Masquerade  bool        `json:"masquerade"`
	Outcome     string      `json:"outcome"`
	Steps       []traceStep `json:"steps"`
	Cut         bool        `json:"cut,omitempty"`
}

// packet describes a journey that is over.
func (w *watch) packet(j *journey) *tracedPacket {
	p := &tracedPacket{
		Time: j.began, Source: endText(j.first.Source), Destination: endText(j.first.Destination), Protocol: protocolText(j.first.Protocol),
		Steps: j.steps, Cut: j.cut, In: interfaceName(j.first.In),
	}
	to := j.first.Destination
	frontend := tracker.Frontend{Address: to.Addr(), Protocol: tracker.Protocol(j.first.Protocol), Port: to.Port()}
	s, found := w.names[frontend]
	if !found && to.Addr().IsValid() {
		family := tracker.IPv4
		if to.Addr().Is6() {
			family = tracker.IPv6
		}
		s, found = w.names[tracker.NodePort(family, frontend.Protocol, to.Port())]
	}
	if found {
		p.Service, p.Frontend, p.Policy = s.Name.String(), s.Kind, s.Policy
	}
	for _, step := range j.steps {
		if step.Table == nft.TableName && strings.Contains(step.Rule, "masquerade") && step.Verdict == nft.Accept.String() {
			p.Masquerade = true
		}
	}
	if now := j.now.Destination; now.IsValid() && now != j.first.Destination {
		p.Endpoint = endText(now)
	}
	switch {
	case j.end != "":
		p.Outcome = j.end
	case p.Endpoint != "":
		p.Outcome = "to " + p.Endpoint
		if p.Masquerade {
			p.Outcome += ", masqueraded"
		} else {
			p.Outcome += ", source kept"
		}
	default:
		p.Outcome = "went on untranslated"
	}
	if out := interfaceName(j.now.Out); out != "" && j.end == "" {
		p.Outcome += ", out by " + out
	}
	return p
}

func (w *watch) print(j *journey, f *format, out io.Writer) error {
	p := w.packet(j)
	if f.value == formatJSON { // a line for each packet
		line, err := json.Marshal(p)
		if err == nil {
			_, err = fmt.Fprintf(out, "%s\n", line)
		}
		return err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s -> %s/%s", p.Time.Format("15:04:05.000000"), p.Source, p.Destination, p.Protocol)
	if p.In != "" {
		fmt.Fprintf(&b, ", in by %s", p.In)
	}
	if p.Service != "" {
		fmt.Fprintf(&b, "\n  %s of Service %s: %s", p.Frontend, p.Service, p.Policy)
	}
	b.WriteByte('\n')
	width := 0
	for _, s := range p.Steps {
		width = max(width, len(s.where()))
	}
	for _, s := range p.Steps {
		fmt.Fprintf(&b, "    %-*s  %s\n", width, s.where(), s.what())
	}
	if p.Cut {
		fmt.Fprintf(&b, "    ... more than %d steps\n", maxTraceSteps)
	}
	fmt.Fprintf(&b, "  %s\n\n", p.Outcome)
	_, err := out.Write(b.Bytes())
	return err
}

// where names the chain, with its table if that is not ours.
func (s *traceStep) where() string {
	if s.Table == nft.TableName {
		return nft.Visible(s.Chain)
	}
	return nft.Visible(s.Family + " " + s.Table + " " + s.Chain)
}

// what is the rule, and what it decided if its text does not say so.
func (s *traceStep) what() string {
	rule := s.Rule
	if rule == "" && s.Handle != 0 {
		rule = fmt.Sprintf("rule %d", s.Handle)
	}
	switch {
	case rule == "":
		return "end of the chain"
	case strings.HasSuffix(rule, s.Verdict), s.Verdict == "continue":
		return nft.Visible(rule)
	}
	return nft.Visible(rule) + ": " + nft.Visible(s.Verdict)
}

// endText is one end of a packet; without a port for protocols that have none.
func endText(a netip.AddrPort) string {
	if a.Port() == 0 {
		return a.Addr().String()
	}
	return a.String()
}

func protocolText(number uint8) string {
	for name, n := range explainedProtocols {
		if n == number {
			return name
		}
	}
	if number == icmpv6 {
		return "icmp"
	}
	return fmt.Sprintf("protocol %d", number)
}

func interfaceName(index uint32) string {
	if index == 0 {
		return ""
	}
	if i, err := net.InterfaceByIndex(int(index)); err == nil {
		return nft.Visible(i.Name)
	}
	return fmt.Sprintf("interface %d", index)
}
