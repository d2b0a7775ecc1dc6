package inspect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// Bounds and defaults of top.
const (
	minTopInterval = 100 * time.Millisecond
	maxTopInterval = time.Hour
	// topBudget bounds what one refresh reads of the connection tracking table: about half a second.
	topBudget = 200_000
	topRows   = 20
)

// A topQuery is the command line of top.
type topQuery struct {
	namespace string
	interval  time.Duration
	count     int
	rows      int
	budget    int
	order     string
	fit       bool // --rows was not given: show as many as the terminal has room for
}

func newTop() *cobra.Command {
	var q topQuery
	var f output.Form
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the busiest Services: new and active connections, and refusals",
		Long: `top lists Services by new connections a second, active connections and refused connections, again and again. On a
terminal each list replaces the last one; with -o json each is a document on a line of its own.

The kernel counts refused connections for the node, by cause. The counts of each Service need the daemon's
--connection-counters; without it top prints -. REFUSED/S counts only frontends that reject all clients. Clients that
source ranges or a Local policy refuse count under NEW/S.

Active connections are translated conntrack entries, without TCP connections that both sides have closed. top reads at
most --budget of them, and reports if there are more.`,
		Example: `  kube-nft top
  kube-nft top -n shop --sort active
  kube-nft top -o json --count 1 --interval 10s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.fit = !cmd.Flags().Changed("rows")
			if err := cmp.Or(f.Check(), q.check()); err != nil {
				return err
			}
			if err := q.run(cmd.Context(), f.Value, cmd.OutOrStdout()); err != nil && cmd.Context().Err() == nil {
				return TroubleError{err}
			}
			return nil
		},
	}
	f.AddFlag(cmd, output.Table, output.JSON)
	set := cmd.Flags()
	set.StringVarP(&q.namespace, "namespace", "n", "", "only Services of this namespace")
	set.DurationVar(&q.interval, "interval", 2*time.Second, "time between two lists")
	set.IntVar(&q.count, "count", 0, "number of lists to print; 0: until you interrupt it")
	set.IntVar(&q.rows, "rows", topRows, "maximum number of Services in a list; 0: all")
	set.IntVar(&q.budget, "budget", topBudget, "maximum number of conntrack entries to read for a list")
	set.StringVar(&q.order, "sort", topOrders[0], "column to sort by: "+output.Alternatives(topOrders))
	output.Offer(cmd, "sort", topOrders...)
	return cmd
}

var topOrders = []string{"new", "active", "refused", "name"}

func (q *topQuery) check() error {
	switch {
	case q.interval < minTopInterval || q.interval > maxTopInterval:
		return config.Usagef("--interval %s: expected %s to %s", q.interval, minTopInterval, maxTopInterval)
	case q.count < 0:
		return config.Usagef("--count %d: expected 0 or more", q.count)
	case q.rows < 0:
		return config.Usagef("--rows %d: expected 0 or more", q.rows)
	case q.budget < 1:
		return config.Usagef("--budget %d: expected 1 or more", q.budget)
	case !slices.Contains(topOrders, q.order):
		return config.Usagef("--sort %s: expected %s", q.order, output.Alternatives(topOrders))
	}
	return nil
}

// run prints lists until the context ends or enough were printed.
func (q *topQuery) run(ctx context.Context, format string, out io.Writer) error {
	i, err := lookAtTables(ctx)
	if err != nil {
		return err
	}
	defer i.close()
	flows, err := conntrack.Open()
	if err != nil {
		return err
	}
	defer flows.Close()
	before, err := i.sample(ctx)
	if err != nil {
		return err
	}
	screen := &screen{out: out}
	ticker := time.NewTicker(q.interval)
	defer ticker.Stop()
	for shown := 0; q.count == 0 || shown < q.count; shown++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := i.sample(ctx)
		if err != nil {
			return err
		}
		list := now.since(before, q.namespace)
		if err := i.countActive(ctx, flows, q, list); err != nil {
			return err
		}
		before = now
		rows := q.rows
		if height := screen.rows(); height > 0 && q.fit {
			rows = max(1, height-topHeadLines)
		}
		list.finish(q.order, rows)
		if format == output.JSON {
			err = list.writeJSON(out)
		} else {
			err = screen.show(list.text(q.budget))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A topSample is what the kernel has counted up to a moment.
type topSample struct {
	at        time.Time
	frontends map[tracker.Frontend]topFrontend
	refused   map[string]uint64 // by cause
	counted   bool              // connections are counted at frontends
}

// A topFrontend is the count of one frontend.
type topFrontend struct {
	name    layout.PortName
	refuses bool   // it refuses everybody: count is of refusals
	count   uint64 // of new connections
}

// sample reads the counters, and the tables again if they have changed.
func (i *inspection) sample(ctx context.Context) (*topSample, error) {
	if _, err := i.readIfChanged(ctx); err != nil {
		return nil, err
	}
	s := &topSample{at: time.Now(), frontends: make(map[tracker.Frontend]topFrontend), refused: make(map[string]uint64)}
	for f, table := range i.tables {
		for _, set := range []string{layout.ServicesMap, layout.NodePortsMap} {
			held := table.Sets[set]
			if held == nil {
				continue
			}
			s.counted = s.counted || held.Set.Counters
			for key, element := range held.Map {
				frontend := topFrontend{name: layout.ParsePortName(element.Comment)}
				if element.Verdict != nil {
					p, _ := layout.PolicyOf(*element.Verdict)
					frontend.refuses = p.Kind == layout.Refused || p.Kind == layout.Dropped
				}
				s.frontends[layout.FrontendIn(f, set, key)] = frontend
			}
		}
		refused, err := readback.ReadRefusals(ctx, i.kernel, f)
		if err != nil {
			return nil, err
		}
		for cause, n := range refused {
			s.refused[cause] += n
		}
		if !s.counted {
			continue
		}
		counts, err := readback.ReadConnections(ctx, i.kernel, f, false)
		if err != nil {
			return nil, err
		}
		for _, c := range counts {
			if frontend, ok := s.frontends[c.Frontend]; ok {
				frontend.count = c.Count
				s.frontends[c.Frontend] = frontend
			}
		}
	}
	return s, nil
}

// A topList is one list of top, and its document for programs.
type topList struct {
	metav1.TypeMeta
	Time            time.Time `json:"time"`
	IntervalSeconds float64   `json:"intervalSeconds"`
	// Counted says whether the kernel counts the connections of each Service: --connection-counters.
	Counted bool `json:"connectionsCounted"`
	// Complete says whether all active connections were read.
	Complete bool     `json:"activeComplete"`
	New      *float64 `json:"newPerSecond,omitempty"`
	Active   int      `json:"active"`
	// Refused is the rate of refused packets on the whole node, by cause. RefusedTotal counts them
	// since the tables were made.
	Refused      map[string]float64 `json:"refusedPerSecond"`
	RefusedTotal map[string]uint64  `json:"refusedPackets"`
	Services     []*topService      `json:"services"`
	Omitted      int                `json:"omittedServices"`

	byName     map[string]*topService
	byFrontend map[tracker.Frontend]*topService
}

// A topService is one row.
type topService struct {
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	New       *float64 `json:"newPerSecond,omitempty"`
	Active    int      `json:"active"`
	Refused   *float64 `json:"refusedPerSecond,omitempty"`
}

// since makes the list of what has happened since an earlier sample, without active connections.
func (s *topSample) since(before *topSample, namespace string) *topList {
	seconds := s.at.Sub(before.at).Seconds()
	rate := func(now, then uint64) float64 {
		if now < then { // the counter began again, as in a new table
			then = 0
		}
		return float64(now-then) / seconds
	}
	l := &topList{
		TypeMeta: output.Kind("Top"), Time: s.at, IntervalSeconds: seconds, Counted: s.counted, Services: []*topService{},
		Refused: make(map[string]float64), RefusedTotal: s.refused,
		byName: make(map[string]*topService), byFrontend: make(map[tracker.Frontend]*topService),
	}
	if s.counted {
		l.New = new(float64)
	}
	for cause, n := range s.refused {
		l.Refused[cause] = rate(n, before.refused[cause])
	}
	for at, frontend := range s.frontends {
		if namespace != "" && frontend.name.Namespace != namespace {
			continue
		}
		name := frontend.name.Namespace + "/" + frontend.name.Name
		service := l.byName[name]
		if service == nil {
			service = &topService{Namespace: frontend.name.Namespace, Name: frontend.name.Name}
			if s.counted {
				service.New, service.Refused = new(float64), new(float64)
			}
			l.byName[name] = service
			l.Services = append(l.Services, service)
		}
		l.byFrontend[at] = service
		if !s.counted {
			continue
		}
		then := before.frontends[at]
		if then.name != frontend.name {
			then.count = 0 // it was another Service's
		}
		if n := rate(frontend.count, then.count); frontend.refuses {
			*service.Refused += n
		} else {
			*service.New += n
			*l.New += n
		}
	}
	return l
}

// countActive adds the active connections.
func (i *inspection) countActive(ctx context.Context, flows *conntrack.Table, q *topQuery, l *topList) error {
	nodePort := i.nodePortAddress()
	left := q.budget
	l.Complete = true
	for _, family := range tracker.Families {
		if i.tables[nft.Family(family)] == nil {
			continue
		}
		complete, err := flows.Visit(ctx, conntrack.Filter{Family: family, Translated: true}, left,
			func(flow *conntrack.Flow) {
				left--
				if flow.Ended() {
					return
				}
				to := flow.Original.Destination
				service := l.byFrontend[tracker.Frontend{Address: to.Addr(), Protocol: flow.Original.Protocol, Port: to.Port()}]
				if service == nil && nodePort(to.Addr()) {
					service = l.byFrontend[tracker.NodePort(family, flow.Original.Protocol, to.Port())]
				}
				if service != nil {
					service.Active++
					l.Active++
				}
			})
		if err != nil {
			return err
		}
		l.Complete = l.Complete && complete
	}
	return nil
}

// nodePortAddress returns a function that reports whether node ports are served at an address. If the
// tables name no addresses, all addresses of the node serve them.
func (i *inspection) nodePortAddress() func(netip.Addr) bool {
	served := make(map[netip.Addr]bool)
	for _, table := range i.tables {
		for _, addr := range nodePortAddressesOf(table) {
			served[addr] = true
		}
	}
	if len(served) == 0 {
		addrs, _ := legacy.InterfaceAddresses() // after an error, no connection counts for a node port
		for _, addr := range addrs {
			served[addr] = true
		}
	}
	return func(addr netip.Addr) bool { return served[addr] }
}

// finish sorts the rows and keeps the first ones; 0 keeps all.
func (l *topList) finish(order string, rows int) {
	number := func(f *float64) float64 {
		if f == nil {
			return 0
		}
		return *f
	}
	slices.SortFunc(l.Services, func(a, b *topService) int {
		byNew, byActive := cmp.Compare(number(b.New), number(a.New)), cmp.Compare(b.Active, a.Active)
		byRefused := cmp.Compare(number(b.Refused), number(a.Refused))
		byName := cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		switch order {
		case "active":
			return cmp.Or(byActive, byNew, byRefused, byName)
		case "refused":
			return cmp.Or(byRefused, byNew, byActive, byName)
		case "name":
			return byName
		}
		return cmp.Or(byNew, byActive, byRefused, byName)
	})
	if rows > 0 && len(l.Services) > rows {
		l.Omitted = len(l.Services) - rows
		l.Services = l.Services[:rows]
	}
}

func (l *topList) writeJSON(w io.Writer) error {
	line, err := json.Marshal(l)
	if err == nil {
		_, err = fmt.Fprintf(w, "%s\n", line)
	}
	return err
}

// topHeadLines is how many lines stand around the rows at most.
const topHeadLines = 9

// text renders the list for people. budget is the bound that it names if the list is incomplete.
func (l *topList) text(budget int) string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s, %.1f s: %d Services", l.Time.Format(time.TimeOnly), l.IntervalSeconds, len(l.byName))
	if l.Counted {
		fmt.Fprintf(&b, ", %s new connections a second", rateText(l.New))
	}
	atLeast := ""
	if !l.Complete {
		atLeast = "at least "
	}
	fmt.Fprintf(&b, ", %s%d active\n", atLeast, l.Active)
	var refused []string
	for _, cause := range slices.Sorted(maps.Keys(l.Refused)) {
		if n := l.Refused[cause]; n > 0 {
			refused = append(refused, cause+" "+rateText(&n))
		}
	}
	if len(refused) == 0 {
		refused = []string{"none"}
	}
	b.WriteString("refused a second on this node: " + strings.Join(refused, ", ") + "\n")
	if !l.Counted {
		b.WriteString("NEW/S and REFUSED/S are not counted: the daemon runs without --connection-counters\n")
	}
	if !l.Complete {
		fmt.Fprintf(&b, "ACTIVE is incomplete: there are more than %d conntrack entries; raise --budget to read more\n",
			budget)
	}
	b.WriteByte('\n')
	tw := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SERVICE\tNEW/S\tACTIVE\tREFUSED/S")
	for _, s := range l.Services {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%s\n", nft.Visible(s.Namespace+"/"+s.Name), rateText(s.New), s.Active,
			rateText(s.Refused))
	}
	_ = tw.Flush() // into memory
	if l.Omitted > 0 {
		fmt.Fprintf(&b, "and %d more Services; --rows 0 shows all\n", l.Omitted)
	}
	return b.String()
}

// rateText is a rate, or - if it is not known.
func rateText(rate *float64) string {
	if rate == nil {
		return "-"
	}
	return strconv.FormatFloat(*rate, 'f', 1, 64)
}

// A painter is a writer that, on a terminal, can replace the lines that it showed before.
type painter interface {
	Rows() int // of the terminal; 0 if there is none
	Repaint(lines string) error
}

// A screen shows one text after the other. On a terminal, each takes the place of the one before.
type screen struct {
	out   io.Writer
	begun bool
}

// rows returns how many lines the terminal has; 0 if there is no terminal.
func (s *screen) rows() int {
	if terminal, ok := s.out.(painter); ok {
		return terminal.Rows()
	}
	return 0
}

// show prints a text of whole lines.
func (s *screen) show(text string) error {
	if s.rows() > 0 {
		return s.out.(painter).Repaint(text)
	}
	if s.begun {
		text = "\n" + text
	}
	s.begun = true
	_, err := io.WriteString(s.out, text)
	return err
}
