package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
)

const (
	// flowsBuffer is what may wait for flows: about 8,000 connections.
	flowsBuffer = 8 << 20
	// flowsInterval is how often flows looks for other names of Services, lost events and a closed output.
	flowsInterval = time.Second
)

// A flowsQuery is the command line of flows.
type flowsQuery struct {
	namespace, service, source, endpoint string
	minDuration, timeout                 time.Duration

	name   serviceName // of service; its namespace may be empty
	client netip.Prefix
	to     netip.AddrPort // port 0 is every port
}

// NewFlows returns the command flows. kubectl kube-nft shares its flags, and checks them with PreRunE.
func NewFlows() *cobra.Command {
	var q flowsQuery
	var f output.Form
	cmd := &cobra.Command{
		Use:   "flows [[NAMESPACE/]SERVICE[:PORT]]",
		Short: "Show each connection to a Service when it ends, with its bytes",
		Long: `flows prints a line for each connection to a Service on this node when the kernel removes its conntrack entry: for TCP
some time after its end, for UDP when nothing has come for a while. SENT is what the client sent, RETURNED what it got:
packets/bytes, as whole IP packets with their headers. DURATION is the time until the last packet.

flows sets net.netfilter.nf_conntrack_acct and nf_conntrack_timestamp to 1 if they are 0, says so, and sets them back
when it ends. The kernel counts only connections that begin afterwards; for others flows prints -, or no line at all.
The kernel drops events that flows is too slow to read; flows prints how many. flows needs CAP_NET_ADMIN.`,
		Example: `  kube-nft flows
  kube-nft flows shop/web:http --source 203.0.113.0/24
  kube-nft flows -n shop --min-duration 1m -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: serviceAt(0),
		PreRunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				q.service = args[0]
			}
			return q.check()
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			// A closed output must not kill the process before it has set the sysctls back.
			signal.Ignore(syscall.SIGPIPE)
			err := q.run(untilInputEnds(cmd), &f, cmd.OutOrStdout(), cmd.ErrOrStderr())
			if errors.Is(err, unix.EPIPE) {
				return nil
			}
			return err
		},
	}
	f.AddFlag(cmd, output.Text, output.JSON)
	set := cmd.Flags()
	set.StringVarP(&q.namespace, "namespace", "n", "", "only Services of this namespace")
	set.StringVar(&q.source, "source", "", "client: an address or a CIDR")
	set.StringVar(&q.endpoint, "endpoint", "", "endpoint: an address or ADDR:PORT")
	set.DurationVar(&q.minDuration, "min-duration", 0, "only connections that lasted at least this long")
	set.DurationVar(&q.timeout, "timeout", 0, "how long to show connections; 0: until you interrupt it")
	addUntilInputEnds(cmd)
	return cmd
}

func (q *flowsQuery) check() error {
	if q.service != "" {
		text := q.service
		if !strings.Contains(text, "/") {
			text = "any/" + text
		}
		var ok bool
		if q.name, ok = parseService(text); !ok {
			return config.Usagef("%q: expected SERVICE, NAMESPACE/SERVICE or either with :PORT", q.service)
		}
		if text != q.service {
			q.name.namespace = ""
		}
	}
	var err error
	if q.client, err = parseClient(q.source); err != nil {
		return err
	}
	if q.endpoint != "" {
		if addr, ok := parseAddress(q.endpoint); ok {
			q.to = netip.AddrPortFrom(addr, 0)
		} else if at, err := netip.ParseAddrPort(q.endpoint); err == nil {
			q.to = at
		} else {
			return config.Usagef("--endpoint %q: expected an IP address or ADDR:PORT", q.endpoint)
		}
	}
	if q.minDuration < 0 || q.timeout < 0 {
		return config.Usagef("--min-duration %s, --timeout %s: expected 0 or more", q.minDuration, q.timeout)
	}
	return nil
}

// matches reports whether a connection to p is asked for.
func (q *flowsQuery) matches(p *readback.Frontend, flow *conntrack.Flow) bool {
	name := q.name
	if name.namespace == "" {
		name.namespace = p.Name.Namespace
	}
	return (q.namespace == "" || q.namespace == p.Name.Namespace) &&
		(q.service == "" || name.matches(p)) &&
		(!q.client.IsValid() || q.client.Contains(flow.Original.Source.Addr())) &&
		(!q.to.IsValid() || q.to.Addr() == flow.Endpoint().Addr() &&
			(q.to.Port() == 0 || q.to.Port() == flow.Endpoint().Port())) &&
		flow.Duration() >= q.minDuration
}

// run prints connections until the context or the output ends.
func (q *flowsQuery) run(ctx context.Context, f *output.Form, stdout, stderr io.Writer) error {
	look, err := lookAtTables(ctx)
	if err != nil {
		return err
	}
	defer look.close()
	endings, err := conntrack.Listen(flowsBuffer)
	if err != nil {
		return err
	}
	defer endings.Close()
	defer account(stderr)()
	if q.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, q.timeout)
		defer cancel()
	}
	w := flowWriter{q: q, out: stdout, form: f, now: look.frontends()}
	w.before = w.now
	for next := time.Now(); ctx.Err() == nil && w.err == nil; {
		if now := time.Now(); !now.Before(next) {
			next = now.Add(flowsInterval)
			if hungUp(stdout) {
				return nil
			}
			changed, err := look.readIfChanged(ctx)
			switch {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				return err
			case changed:
				w.before, w.now = w.now, look.frontends()
			}
			lost, err := endings.Lost()
			if err != nil {
				return err
			}
			w.lost(lost)
		}
		// An interrupt waits for this at most.
		_ = endings.SetDeadline(time.Now().Add(200 * time.Millisecond))
		if err := endings.Next(w.write); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return w.err
}

// account switches the kernel's accounting on and returns what sets back what it changed.
func account(stderr io.Writer) (restore func()) {
	var changed []conntrack.Sysctl
	for _, s := range conntrack.Account("/proc/sys") {
		switch {
		case s.Err != nil:
			fmt.Fprintln(stderr, "kube-nft: warning: "+s.Err.Error())
		case s.Changed:
			fmt.Fprintf(stderr, "set %s from %d to %d until flows ends\n", s.Name, s.Have, s.Want)
			changed = append(changed, s)
		}
	}
	return func() {
		for _, s := range changed {
			if err := s.Restore("/proc/sys"); err != nil {
				fmt.Fprintln(stderr, "kube-nft: warning: "+err.Error())
			}
		}
	}
}

// hungUp reports whether the reader of an output has ended.
func hungUp(out io.Writer) bool {
	file, ok := out.(*os.File)
	if !ok {
		return false
	}
	fds := []unix.PollFd{{Fd: int32(file.Fd())}}
	_, err := unix.Poll(fds, 0)
	return err == nil && fds[0].Revents&unix.POLLERR != 0
}

// A flowWriter names connections and prints them.
type flowWriter struct {
	q    *flowsQuery
	out  io.Writer
	form *output.Form
	head bool // it was printed
	err  error

	// now are the frontends of the tables, before those of the tables that were read before: a connection may end with
	// its Service.
	now, before *frontends
}

// An EndedConnection is one connection that has ended.
type EndedConnection struct {
	metav1.TypeMeta
	Origin
	Namespace string             `json:"namespace"`
	Service   string             `json:"service"`
	Port      string             `json:"port,omitempty"`
	Protocol  string             `json:"protocol"`
	Frontend  string             `json:"frontend"`
	Client    string             `json:"client"`
	Endpoint  string             `json:"endpoint"`
	Sent      *conntrack.Counter `json:"sent,omitempty"`     // by the client; absent if the kernel did not count
	Returned  *conntrack.Counter `json:"returned,omitempty"` // to the client
	Seconds   *float64           `json:"durationSeconds,omitempty"`
}

// write prints a connection if it is asked for.
func (w *flowWriter) write(flow *conntrack.Flow) {
	p, ok := w.now.at(flow.Original.Destination, flow.Original.Protocol)
	if !ok {
		p, ok = w.before.at(flow.Original.Destination, flow.Original.Protocol)
	}
	if !ok || w.err != nil || !w.q.matches(&p, flow) {
		return
	}
	e := EndedConnection{
		TypeMeta: output.Kind("EndedConnection"), Origin: now(), Namespace: p.Name.Namespace, Service: p.Name.Name,
		Port: p.Name.Port, Protocol: strings.ToLower(flow.Original.Protocol.String()),
		Frontend: flow.Original.Destination.String(), Client: flow.Original.Source.String(),
		Endpoint: flow.Endpoint().String(),
	}
	if flow.Sent.Packets > 0 { // each connection has a first packet
		e.Sent, e.Returned = &flow.Sent, &flow.Returned
	}
	if flow.Stopped > 0 {
		seconds := flow.Duration().Seconds()
		e.Seconds = &seconds
	}
	if !w.head && !w.form.Document() {
		_, w.err = io.WriteString(w.out, EndedHead)
	}
	w.head = true
	if w.err == nil {
		w.err = w.form.WriteNext(w.out, &e)
	}
}

// flowColumns are wide enough for IPv4; longer words move what follows.
const flowColumns = "%-8s  %-24s  %-22s  %-21s  %-21s  %15s  %15s  %s\n"

// EndedHead is the line above the texts of EndedConnections.
var EndedHead = fmt.Sprintf(flowColumns, "TIME", "SERVICE", "FRONTEND", "CLIENT", "ENDPOINT", "SENT", "RETURNED",
	"DURATION")

// Text implements output.Document.
func (e *EndedConnection) Text() string {
	counter := func(c *conntrack.Counter) string {
		if c == nil {
			return "-"
		}
		return fmt.Sprintf("%d/%d", c.Packets, c.Bytes)
	}
	duration := "-"
	if e.Seconds != nil {
		duration = time.Duration(*e.Seconds * float64(time.Second)).Round(time.Millisecond).String()
	}
	name := layout.PortName{Namespace: e.Namespace, Name: e.Service, Port: e.Port}.String()
	return fmt.Sprintf(flowColumns, e.Time.Format(time.TimeOnly), name, e.Frontend+"/"+e.Protocol, e.Client, e.Endpoint,
		counter(e.Sent), counter(e.Returned), duration)
}

// LostConnections stands where connections are missing.
type LostConnections struct {
	metav1.TypeMeta
	Origin
	Lost uint64 `json:"lost"` // since the last such document
}

// lost prints how many connections are missing.
func (w *flowWriter) lost(n uint64) {
	if n > 0 && w.err == nil {
		w.err = w.form.WriteNext(w.out, &LostConnections{output.Kind("LostConnections"), now(), n})
	}
}

// Text implements output.Document.
func (l *LostConnections) Text() string {
	return fmt.Sprintf("%s  %d connections are missing here: flows was too slow to read of them\n",
		l.Time.Format(time.TimeOnly), l.Lost)
}
