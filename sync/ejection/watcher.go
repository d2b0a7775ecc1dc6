// Package ejection finds endpoints that do not answer TCP connections, and has them left out of their Services for a
// while. Make a Watcher with New, start Run, and call Committed after each commit of the sync loop:
//
//	watcher := ejection.New(ejection.Options{...})
//	go watcher.Run(ctx)
//	...
//	watcher.Committed(&delta)
//
// It only watches what connection tracking knows of translated connections: their first packet is a SYN; their entry
// says whether anything came back. While a Service port asks for it (tracker.Settings.Eject), a Watcher looks once a
// second at the entries without an answer, which the kernel selects. Only when one of them is older than a second does
// it read the entries with an answer, too: it needs to know who else was answered. docs/decisions has the reasons.
package ejection

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// Times of the watch.
const (
	lookInterval  = time.Second
	trialInterval = 200 * time.Millisecond // while an endpoint is tried again
	// A client that is there sends its SYN again after one second (RFC 6298). unanswered leaves the endpoint nearly a
	// second more for the answer.
	unanswered = 1900 * time.Millisecond
	// window is how old a connection may be that counts against an endpoint.
	window = 10 * time.Second
	// An endpoint is left out for firstOut, then for twice as long each time, up to longestOut.
	firstOut   = 10 * time.Second
	longestOut = time.Minute
)

// Bounds of what one look reads and keeps. A flow takes about a microsecond.
const (
	silentBudget     = 200_000 // entries without an answer, of a family
	answeredBudget   = 1 << 20 // entries with an answer, of a family
	mostOfPort       = 1_000   // entries without an answer that are kept
	mostOfNamespace  = 4_000
	mostDeleted      = 5_000
	leftOutNamespace = 1_000 // endpoints of a namespace that are left out
)

// Table is what a Watcher needs of a *conntrack.Table. No other goroutine may use it.
type Table interface {
	Visit(ctx context.Context, filter conntrack.Filter, budget int, visit func(*conntrack.Flow)) (complete bool, err error)
	Delete(ctx context.Context, flows []conntrack.Flow, still func(*conntrack.Flow) bool) (deleted int, err error)
}

// Committed is what a Watcher needs of a *sync.View.
type Committed interface {
	Owner(tracker.Frontend) (tracker.PortID, bool)
	NodePortAddress(netip.Addr) bool
}

// Options of a Watcher.
type Options struct {
	Log       *zap.Logger
	Committed Committed
	// Open opens the table; it is called when the first port asks for a watch. The table stays open.
	Open func() (Table, error)
	// LeaveOut replaces the endpoints of a port that are left out of its lists: tracker.Tracker.LeaveOut. Silent returns
	// those of them whose conditions Kubernetes has not changed since: tracker.Tracker.Silent. The others are in the lists
	// again.
	LeaveOut func(tracker.PortID, []netip.AddrPort)
	Silent   func(tracker.PortID) []netip.AddrPort
	// CPUTime tells how long the calling thread has worked.
	CPUTime func() time.Duration
	// Found, if set, is called for each endpoint that is left out, also when it is again.
	Found func(Endpoint)
}

// An Endpoint is one that is left out, or that is tried again.
type Endpoint struct {
	Port     tracker.PortID
	Endpoint netip.AddrPort
	// Since is when it was left out, Until when it will be tried again; zero Until while it is being tried.
	Since, Until time.Time
	// Times is how often it has been left out in a row.
	Times int
	// Clients and Connections are what it did not answer when it was left out the last time.
	Clients, Connections int
}

// A Watcher finds endpoints that do not answer.
type Watcher struct {
	options Options
	wake    retry.Wake
	failing quota.Once

	mu    sync.RWMutex
	ports map[tracker.PortID]*tracker.ServicePort // those that ask for it, as committed
	found []Endpoint                              // what Endpoints returns

	// Run's goroutine owns the fields below.
	table    Table // nil: not opened
	suspects map[tracker.PortID]*suspect
}

// New returns a Watcher that watches nothing yet.
func New(options Options) *Watcher {
	return &Watcher{
		options: options, wake: retry.NewWake(),
		ports: make(map[tracker.PortID]*tracker.ServicePort), suspects: make(map[tracker.PortID]*suspect),
	}
}

// Committed takes in what a commit has changed. It does not block.
func (w *Watcher) Committed(delta *tracker.Delta) {
	w.mu.Lock()
	defer w.mu.Unlock()
	look := false
	for id := range delta.Removed {
		delete(w.ports, id)
	}
	for _, port := range delta.Changed {
		id := port.ID
		if asks := port.Settings.Eject && id.Protocol == tracker.TCP; !asks {
			delete(w.ports, id)
			continue
		}
		before := w.ports[id]
		look = look || len(w.ports) == 0 || before != nil && !slices.Equal(before.LeftOut, port.LeftOut)
		w.ports[id] = port
	}
	if look {
		w.wake.Notify()
	}
}

// portOf returns the port that a connection was made to; nil if that does not ask for anything.
func (w *Watcher) portOf(flow *conntrack.Flow) *tracker.ServicePort {
	committed := w.options.Committed
	id, ok := tracker.LookUp(flow.Original.Destination, tracker.TCP, committed.NodePortAddress, committed.Owner)
	if !ok {
		return nil
	}
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.ports[id]
}

// Endpoints returns the endpoints that are left out or tried again, by port.
func (w *Watcher) Endpoints() []Endpoint {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.found
}

// Run watches until ctx ends. It takes a quarter of one CPU at most, and nothing while no port asks for it.
func (w *Watcher) Run(ctx context.Context) {
	retry.Repeat(ctx, w.wake, retry.Never, w.options.CPUTime, func() (again time.Duration, _ error) {
		w.mu.RLock()
		asked := len(w.ports) > 0
		w.mu.RUnlock()
		if !asked {
			w.putBack()
			w.show()
			return retry.Never, nil
		}
		began := time.Now()
		w.look(ctx, began)
		return max(0, w.interval(began)-time.Since(began)), nil
	})
}

// interval is the time from one look to the next.
func (w *Watcher) interval(now time.Time) time.Duration {
	for _, s := range w.suspects {
		for _, o := range s.out {
			if o.urgent(now) {
				return trialInterval
			}
		}
	}
	return lookInterval
}

// look decides which endpoints are left out from now on; while it cannot, none is.
func (w *Watcher) look(ctx context.Context, now time.Time) {
	w.refresh()
	err := w.read(ctx, now)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		w.putBack()
	}
	if w.failing.Fails(err) {
		w.options.Log.Warn("cannot see which endpoints do not answer; all stay in their Services", zap.Error(err))
	}
	w.show()
}

// read reads what connection tracking knows, judges by it, and deletes connections that should try another endpoint.
func (w *Watcher) read(ctx context.Context, now time.Time) error {
	if w.table == nil {
		table, err := w.options.Open()
		if err != nil {
			return err
		}
		w.table = table
	}
	stuck, err := w.readSilent(ctx, now)
	if err != nil {
		return err
	}
	if err := w.readAnswered(ctx, now); err != nil {
		return err
	}
	w.judge(now)
	if len(stuck) > 0 {
		_, err = w.table.Delete(ctx, stuck, nil)
	}
	return err
}

// putBack puts all endpoints back, because no port asks any more, or because nothing can be read that would say that
// they answer again.
func (w *Watcher) putBack() {
	for id, s := range w.suspects {
		w.forget(id, s)
	}
}

// forget forgets a suspect, and puts its endpoints back: the port may come again.
func (w *Watcher) forget(id tracker.PortID, s *suspect) {
	if len(s.leftOut()) > 0 {
		w.options.LeaveOut(id, nil)
	}
	delete(w.suspects, id)
}

// refresh brings suspects up to date with what was committed and with what Kubernetes says.
func (w *Watcher) refresh() {
	for id, s := range w.suspects {
		w.mu.RLock()
		port := w.ports[id]
		w.mu.RUnlock()
		if port == nil {
			w.forget(id, s)
			continue
		}
		s.port = port
		if len(s.out) > 0 {
			s.follow(w.options.Silent(id))
		}
		if len(s.syns) == 0 && len(s.out) == 0 {
			delete(w.suspects, id)
		}
	}
}

// readSilent reads the connections without an answer. It returns those to endpoints that are left out by now: without
// its entry, a connection goes to another endpoint when its client sends the SYN again.
func (w *Watcher) readSilent(ctx context.Context, now time.Time) (stuck []conntrack.Flow, err error) {
	kept := make(map[string]int) // by namespace
	w.mu.RLock()
	asked := families(w.ports)
	w.mu.RUnlock()
	for family := range asked {
		filter := conntrack.Filter{Family: family, Protocol: tracker.TCP, Has: conntrack.DestinationNAT,
			Lacks: conntrack.SeenReply}
		complete, err := w.table.Visit(ctx, filter, silentBudget, func(flow *conntrack.Flow) {
			port := w.portOf(flow)
			if port == nil || flow.TCPState != conntrack.SYNSent {
				return
			}
			s := w.suspects[port.ID]
			endpoint := flow.Endpoint()
			if s != nil && s.stuck(endpoint) && len(stuck) < mostDeleted {
				stuck = append(stuck, *flow)
				return
			}
			if !member(port, endpoint) || kept[port.ID.Namespace] == mostOfNamespace {
				return
			}
			if s == nil {
				s = newSuspect(port)
				w.suspects[port.ID] = s
			}
			if s.unanswered(flow, now) {
				kept[port.ID.Namespace]++
			}
		})
		if err != nil {
			return nil, err
		}
		for id, s := range w.suspects {
			if id.Family == family {
				s.forgetAnswered(now, complete)
			}
		}
	}
	return stuck, nil
}

// readAnswered reads which endpoints have answered, as far as there is a suspicion.
func (w *Watcher) readAnswered(ctx context.Context, now time.Time) error {
	open := make(map[tracker.PortID]*suspect)
	for id, s := range w.suspects {
		if s.open(now) {
			open[id] = s
			s.begin()
		} else {
			s.close()
		}
	}
	if len(open) == 0 {
		return nil
	}
	for family := range families(open) {
		filter := conntrack.Filter{Family: family, Protocol: tracker.TCP, Has: conntrack.DestinationNAT | conntrack.SeenReply}
		complete, err := w.table.Visit(ctx, filter, answeredBudget, func(flow *conntrack.Flow) {
			if port := w.portOf(flow); port != nil && open[port.ID] != nil {
				open[port.ID].answer(flow, now)
			}
		})
		if err != nil {
			return err
		}
		for id, s := range open {
			if id.Family == family {
				s.end(complete)
			}
		}
	}
	return nil
}

// families returns the families of some ports.
func families[V any](ports map[tracker.PortID]V) map[tracker.Family]bool {
	families := make(map[tracker.Family]bool)
	for id := range ports {
		if families[id.Family] = true; len(families) == len(tracker.Families) {
			break
		}
	}
	return families
}

// judge decides which endpoints are left out, and says so.
func (w *Watcher) judge(now time.Time) {
	left := make(map[string]int) // by namespace
	for id, s := range w.suspects {
		left[id.Namespace] += len(s.out)
	}
	for id, s := range w.suspects {
		before := s.leftOut()
		s.endTerms(now)
		for _, verdict := range s.verdicts(now) {
			if !s.mayLeave(verdict.endpoint) {
				continue
			}
			if s.out[verdict.endpoint] == nil {
				if left[id.Namespace] >= leftOutNamespace {
					continue
				}
				left[id.Namespace]++
			}
			o := s.leave(verdict, now)
			if w.options.Found != nil {
				w.options.Found(o.shown(id, verdict.endpoint))
			}
		}
		if after := s.leftOut(); !slices.Equal(before, after) {
			w.options.LeaveOut(id, after)
		}
	}
}

// show publishes what Endpoints returns.
func (w *Watcher) show() {
	var list []Endpoint
	for id, s := range w.suspects {
		for endpoint, o := range s.out {
			list = append(list, o.shown(id, endpoint))
		}
	}
	slices.SortFunc(list, func(a, b Endpoint) int {
		return cmp.Or(a.Port.Compare(b.Port), a.Endpoint.Compare(b.Endpoint))
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = list
}
