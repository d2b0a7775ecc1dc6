package inspect

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/output"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/words"
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

// NewTop returns the command top. kubectl kube-nft shares its flags, and checks them with PreRunE.
func NewTop() *cobra.Command {
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
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return q.check() },
		RunE: func(cmd *cobra.Command, _ []string) error {
			q.fit = !cmd.Flags().Changed("rows")
			ctx := untilInputEnds(cmd)
			if err := q.run(ctx, &f, cmd.OutOrStdout()); err != nil && ctx.Err() == nil {
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
	set.StringVar(&q.order, "sort", topOrders[0], "column to sort by: "+tracker.Enumerate(topOrders))
	output.Offer(cmd, "sort", topOrders...)
	addUntilInputEnds(cmd)
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
		return config.Usagef("--sort %s: expected %s", q.order, tracker.Enumerate(topOrders))
	}
	return nil
}

// run prints lists until the context ends or enough were printed.
func (q *topQuery) run(ctx context.Context, f *output.Form, out io.Writer) error {
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
	before, err := i.sample(ctx, nil)
	if err != nil {
		return err
	}
	screen := output.NewScreen(out)
	ticker := time.NewTicker(q.interval)
	defer ticker.Stop()
	for shown := 0; q.count == 0 || shown < q.count; shown++ {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		now, err := i.sample(ctx, before)
		if err != nil {
			return err
		}
		list := now.since(before, q)
		if err := i.countActive(ctx, flows, q, list); err != nil {
			return err
		}
		for _, e := range daemonStatus(ctx).Ejected {
			if q.namespace == "" || q.namespace == e.Namespace {
				list.Ejected = append(list.Ejected, e)
			}
		}
		before = now
		rows := q.rows
		if height := screen.Rows(); height > 0 && q.fit {
			rows = max(1, height-TopHeadLines)
		}
		list.Finish(q.order, rows)
		if f.Document() {
			err = f.WriteNext(out, list)
		} else {
			err = screen.Show(list.Text())
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
	frontends *frontends
	counted   bool                        // connections are counted at frontends
	counts    map[tracker.Frontend]uint64 // of new connections, or of refusals if the frontend refuses all clients
	refused   map[string]uint64           // by cause
}

// sample reads the counters, and the tables again if they have changed since the last sample, which may be nil.
func (i *inspection) sample(ctx context.Context, last *topSample) (*topSample, error) {
	changed, err := i.readIfChanged(ctx)
	if err != nil {
		return nil, err
	}
	s := &topSample{at: time.Now(), counts: make(map[tracker.Frontend]uint64), refused: make(map[string]uint64)}
	if last != nil && !changed {
		s.frontends = last.frontends
	} else {
		s.frontends = i.frontends()
	}
	for f, table := range i.tables {
		refused, err := readback.ReadRefusals(ctx, i.kernel, f)
		if err != nil {
			return nil, err
		}
		for cause, n := range refused {
			s.refused[cause] += n
		}
		if services := table.Sets[layout.ServicesMap]; services == nil || !services.Set.Counters {
			continue
		}
		s.counted = true
		counts, err := readback.ReadConnections(ctx, i.kernel, f, false)
		if err != nil {
			return nil, err
		}
		for _, c := range counts {
			s.counts[c.Frontend] = c.Count
		}
	}
	return s, nil
}

// A topCount makes a list.
type topCount struct {
	Top
	byName    map[string]*TopService // by namespace/name
	frontends *frontends
}

// A Top is one list of top.
type Top struct {
	metav1.TypeMeta
	Time            time.Time `json:"time"`
	IntervalSeconds float64   `json:"intervalSeconds"`
	// Counted says whether the kernel counts the connections of each Service: --connection-counters.
	Counted bool `json:"connectionsCounted"`
	// Complete says whether all active connections were read: there are not more than Budget conntrack entries.
	Complete bool     `json:"activeComplete"`
	Budget   int      `json:"budget"`
	New      *float64 `json:"newPerSecond,omitempty"`
	Active   int      `json:"active"`
	// Refused is the rate of refused packets on the whole node, by cause. RefusedTotal counts them
	// since the tables were made.
	Refused      map[string]float64 `json:"refusedPerSecond"`
	RefusedTotal map[string]uint64  `json:"refusedPackets"`
	Services     []*TopService      `json:"services"`
	Omitted      int                `json:"omittedServices"`
	// Nodes is how many nodes there are lists of, from kubectl kube-nft; 0 on a node.
	Nodes int `json:"nodes,omitempty"`
	// Ejected are endpoints that get no new connections because they do not answer.
	Ejected []peer.EjectedEndpoint `json:"ejected,omitempty"`
}

// A TopService is one row.
type TopService struct {
	Node      string   `json:"node,omitempty"` // from kubectl kube-nft
	Namespace string   `json:"namespace"`
	Name      string   `json:"name"`
	New       *float64 `json:"newPerSecond,omitempty"`
	Active    int      `json:"active"`
	Refused   *float64 `json:"refusedPerSecond,omitempty"`
}

// since makes the list of what has happened since an earlier sample, without active connections.
func (s *topSample) since(before *topSample, q *topQuery) *topCount {
	seconds := s.at.Sub(before.at).Seconds()
	rate := func(now, then uint64) float64 {
		if now < then { // the counter began again, as in a new table
			then = 0
		}
		return float64(now-then) / seconds
	}
	l := &topCount{Top: Top{
		TypeMeta: output.Kind("Top"), Time: s.at, IntervalSeconds: seconds, Counted: s.counted, Services: []*TopService{},
		Refused: make(map[string]float64), RefusedTotal: s.refused, Budget: q.budget,
	}, byName: make(map[string]*TopService), frontends: s.frontends}
	if s.counted {
		l.New = new(float64)
	}
	for cause, n := range s.refused {
		l.Refused[cause] = rate(n, before.refused[cause])
	}
	for at, frontend := range s.frontends.list {
		if q.namespace != "" && frontend.Name.Namespace != q.namespace {
			continue
		}
		service := l.of(&frontend)
		if service == nil {
			service = &TopService{Namespace: frontend.Name.Namespace, Name: frontend.Name.Name}
			if s.counted {
				service.New, service.Refused = new(float64), new(float64)
			}
			l.byName[frontend.Name.Namespace+"/"+frontend.Name.Name] = service
			l.Services = append(l.Services, service)
		}
		if !s.counted {
			continue
		}
		then := before.counts[at]
		if before.frontends.list[at].Name != frontend.Name {
			then = 0 // it was another Service's
		}
		policy, _ := layout.PolicyOf(frontend.Verdict)
		if n := rate(s.counts[at], then); policy.Kind == layout.Refused || policy.Kind == layout.Dropped {
			*service.Refused += n
		} else {
			*service.New += n
			*l.New += n
		}
	}
	return l
}

// of returns the row of a frontend's Service; nil if there is none.
func (l *topCount) of(p *readback.Frontend) *TopService {
	return l.byName[p.Name.Namespace+"/"+p.Name.Name]
}

// countActive adds the active connections.
func (i *inspection) countActive(ctx context.Context, flows *conntrack.Table, q *topQuery, l *topCount) error {
	left := q.budget
	l.Complete = true
	for _, family := range tracker.Families {
		if i.tables[family] == nil {
			continue
		}
		complete, err := flows.Visit(ctx, conntrack.Filter{Family: family, Has: conntrack.DestinationNAT}, left,
			func(flow *conntrack.Flow) {
				left--
				if flow.Ended() {
					return
				}
				p, ok := l.frontends.at(flow.Original.Destination, flow.Original.Protocol)
				if service := l.of(&p); ok && service != nil {
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

// MergeTops makes one list of those of several nodes, with the node in each row.
func MergeTops(byNode map[string]*Top) *Top {
	all := &Top{TypeMeta: output.Kind("Top"), Counted: true, Complete: true, New: new(float64), Services: []*TopService{},
		Refused: make(map[string]float64), RefusedTotal: make(map[string]uint64), Nodes: len(byNode)}
	ejected := make(map[[4]string]bool)
	for _, node := range slices.Sorted(maps.Keys(byNode)) {
		l := byNode[node]
		if l.Time.After(all.Time) {
			all.Time, all.IntervalSeconds = l.Time, l.IntervalSeconds
		}
		all.Counted, all.Complete = all.Counted && l.Counted, all.Complete && l.Complete
		all.Budget, all.Active, all.Omitted = max(all.Budget, l.Budget), all.Active+l.Active, all.Omitted+l.Omitted
		if l.New != nil {
			*all.New += *l.New
		}
		for cause, n := range l.Refused {
			all.Refused[cause] += n
		}
		for cause, n := range l.RefusedTotal {
			all.RefusedTotal[cause] += n
		}
		for _, s := range l.Services {
			if s == nil { // not from kube-nft
				continue
			}
			row := *s
			row.Node = node
			all.Services = append(all.Services, &row)
		}
		for _, e := range l.Ejected { // most nodes find the same ones
			id := [...]string{e.Namespace, e.Name, e.Port, e.Endpoint.String()}
			if !ejected[id] {
				ejected[id] = true
				all.Ejected = append(all.Ejected, e)
			}
		}
	}
	if !all.Counted {
		all.New = nil
	}
	return all
}

// Finish sorts the rows by a column of --sort and keeps the first ones; 0 keeps all.
func (l *Top) Finish(order string, rows int) {
	number := func(f *float64) float64 {
		if f == nil {
			return 0
		}
		return *f
	}
	slices.SortFunc(l.Services, func(a, b *TopService) int {
		byNew, byActive := cmp.Compare(number(b.New), number(a.New)), cmp.Compare(b.Active, a.Active)
		byRefused := cmp.Compare(number(b.Refused), number(a.Refused))
		byName := cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name),
			strings.Compare(a.Node, b.Node))
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
		l.Omitted += len(l.Services) - rows
		l.Services = l.Services[:rows]
	}
}

// TopHeadLines is how many lines stand around the rows of a list at most.
const TopHeadLines = 10

// Text implements output.Document.
func (l *Top) Text() string {
	var b strings.Builder
	here, services := "this node", "Services"
	if l.Nodes > 0 {
		here, services = words.Plural(l.Nodes, "node"), "rows"
	}
	fmt.Fprintf(&b, "%s, %.1f s: %d %s", l.Time.Format(time.TimeOnly), l.IntervalSeconds, len(l.Services)+l.Omitted,
		services)
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
	b.WriteString("refused a second on " + here + ": " + strings.Join(refused, ", ") + "\n")
	if n := len(l.Ejected); n > 0 {
		fmt.Fprintf(&b, "endpoints that do not answer and get no new connections: %d; kube-nft get endpoints names them\n", n)
	}
	if !l.Counted {
		b.WriteString("NEW/S and REFUSED/S are not counted: the daemon runs without --connection-counters\n")
	}
	if !l.Complete {
		fmt.Fprintf(&b, "ACTIVE is incomplete: there are more than %d conntrack entries; raise --budget to read more\n",
			l.Budget)
	}
	b.WriteByte('\n')
	lines := [][]string{{"NODE", "SERVICE", "NEW/S", "ACTIVE", "REFUSED/S"}}
	for _, s := range l.Services {
		lines = append(lines, []string{s.Node, nft.Visible(s.Namespace + "/" + s.Name), rateText(s.New),
			strconv.Itoa(s.Active), rateText(s.Refused)})
	}
	if l.Nodes == 0 { // all rows are of this node
		for i := range lines {
			lines[i] = lines[i][1:]
		}
	}
	b.WriteString(output.Align(lines))
	if l.Omitted > 0 {
		fmt.Fprintf(&b, "and %d more %s; --rows 0 shows all\n", l.Omitted, services)
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
