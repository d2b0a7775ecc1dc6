// Package flows counts what connections to Services have moved: packets and bytes of both directions, and how long
// connections lasted. Make a Counter with New, and start Run after the first commit:
//
//	counter := flows.New(flows.Options{...})
//	...
//	go counter.Run(ctx)
//
// Connection tracking counts; nothing is added to the rules. A Counter listens to the ends of translated connections,
// which the kernel selects. Once a minute it reads the connections that last, remembers what each has moved, and counts
// the difference. What a connection had moved before the Counter ran does not count. docs/decisions has the reasons.
package flows

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// Bounds of what a Counter keeps. A namespace may have as many Services, connections and lost frontends as there are
// free places left: half of all if it is alone, and the more namespaces want many, the less each gets. So there is
// always room for others.
const (
	mostServices    = 2048
	mostConnections = 1 << 18 // that last; about 100 bytes each
	// mostLost is how many frontends that a Service has lost are remembered, for connections that end after their Service.
	mostLost = 1 << 16
	// mostEnded is how many ends are remembered during a look, which may read what is older than they are. With more, a
	// look takes in no new connections.
	mostEnded = 1 << 18
)

// Times.
const (
	lookInterval = time.Minute
	// drainInterval is the least time between two readings of ends: many at once cost less.
	drainInterval = 50 * time.Millisecond
	// lostFor is how long a frontend that was lost is remembered: longer than the entry of a connection that has ended.
	lostFor = 5 * time.Minute
	// idleFor is how long a Service that is gone keeps its place after its last connection, so that scrapes see all.
	idleFor = 15 * time.Minute
	// missingLooks is after how many looks that miss a connection its end is taken as lost. The kernel may take a minute
	// to remove an entry whose time is over, which a look does not show any more.
	missingLooks = 5
)

// A Service names one. Rest stands for all that have no place of their own.
type Service struct{ Namespace, Name string }

// Rest is no Service's name: names of Kubernetes have no such letter.
var Rest = Service{"_other", "_other"}

// Bounds of the histogram of durations, in seconds.
var Bounds = [...]float64{0.1, 1, 10, 60, 600, 3600, 86400}

// A Usage is what the connections to a Service have moved.
type Usage struct {
	Service        Service
	Since          time.Time // when the first connection was counted
	Sent, Returned conntrack.Counter
	// Ended counts connections that have ended, Timed those of them whose duration is known; Seconds is the sum of these,
	// and Durations are their numbers by Bounds, each with all that are shorter.
	Ended, Timed uint64
	Seconds      float64
	Durations    [len(Bounds)]uint64
}

func (u *Usage) add(sent, returned conntrack.Counter) {
	u.Sent.Packets += sent.Packets
	u.Sent.Bytes += sent.Bytes
	u.Returned.Packets += returned.Packets
	u.Returned.Bytes += returned.Bytes
}

func (u *Usage) end(f *conntrack.Flow) {
	u.Ended++
	if f.Started == 0 || f.Stopped == 0 {
		return
	}
	seconds := f.Duration().Seconds()
	u.Timed++
	u.Seconds += seconds
	for i := range Bounds {
		if seconds <= Bounds[i] {
			u.Durations[i]++
		}
	}
}

// A State says how a Counter is doing.
type State struct {
	// Problem is why nothing is counted, or not all; empty if there is none.
	Problem string `json:"problem,omitempty"`
	// Lost counts the connections that ended and were not counted, because more came than could be read. Those that no
	// Service translated may be among them.
	Lost        uint64 `json:"lostConnections"`
	Services    int    `json:"services"`    // that have metrics of their own
	Connections int    `json:"connections"` // that last and are counted so far
}

// A Table is what a Counter needs of a *conntrack.Table.
type Table interface {
	Visit(ctx context.Context, filter conntrack.Filter, budget int, visit func(*conntrack.Flow)) (complete bool, err error)
	Close() error
}

// Endings are what a Counter needs of a *conntrack.Endings.
type Endings interface {
	Next(visit func(*conntrack.Flow)) error
	SetDeadline(time.Time) error
	Lost() (uint64, error)
	Close() error
}

// Committed is what a Counter needs of a *sync.View.
type Committed interface {
	Owner(tracker.Frontend) (tracker.PortID, bool)
	NodePortAddress(netip.Addr) bool
}

// Options of a Counter.
type Options struct {
	Log       *zap.Logger
	Committed Committed
	// Exists reports whether there is a Service.
	Exists func(Service) bool
	// Open and Listen open what is read.
	Open   func() (Table, error)
	Listen func() (Endings, error)
	// Account makes the kernel count, if it does not; it is called once a minute.
	Account func() error
	// CPUTime tells how long the calling thread has worked.
	CPUTime func() time.Duration
}

// A Counter counts what connections to Services have moved. Its methods may be called from any goroutine.
type Counter struct {
	options Options
	failing quota.Once
	owners  owners

	mu     sync.Mutex // what follows; a look may hold it for as long as a walk through all connections takes
	began  time.Time  // when counting began
	origin uint64     // the same in nanoseconds since 1970, as the node's clock has it or has had it, the earliest
	usages map[Service]*usage
	shares map[string]*share // of namespaces
	live   map[connection]*lasting
	looks  int                     // complete ones
	ended  map[connection]struct{} // since the look under way began; nil without one
	state  State
}

type usage struct {
	Usage
	live int       // connections that last
	last time.Time // when something was counted
}

// A share is what a namespace uses of the bounds.
type share struct{ services, connections int }

// A connection names one: the kernel's name, with what tells those apart that have the same.
type connection struct {
	id      uint32
	port    uint16
	started uint64
}

func connectionOf(f *conntrack.Flow) connection {
	return connection{f.ID, f.Original.Source.Port(), f.Started}
}

// A lasting connection is one that a look has seen, with what it had moved then.
type lasting struct {
	usage          *usage
	share          *share
	sent, returned conntrack.Counter
	seen           int // the number of the look
}

// New returns a Counter that has counted nothing.
func New(options Options) *Counter {
	return &Counter{
		options: options,
		owners: owners{committed: options.Committed, lost: make(map[tracker.Frontend]*lostFrontend),
			by: make(map[string]int)},
		usages: make(map[Service]*usage), shares: make(map[string]*share), live: make(map[connection]*lasting),
	}
}

// Lose says that a Service loses a frontend. Call it before Options.Committed does not name the Service any more. It
// waits for no look.
func (c *Counter) Lose(at tracker.Frontend, service Service) { c.owners.lose(at, service) }

// usageOf returns where the connections to a Service count.
func (c *Counter) usageOf(service Service, now time.Time) *usage {
	if u := c.usages[service]; u != nil {
		return u
	}
	if share := c.shareOf(service.Namespace); share.services < mostServices-len(c.usages) {
		share.services++
	} else {
		service = Rest
	}
	u := c.usages[service]
	if u == nil {
		u = &usage{Usage: Usage{Service: service, Since: now}, last: now}
		c.usages[service] = u
	}
	return u
}

func (c *Counter) shareOf(namespace string) *share {
	s := c.shares[namespace]
	if s == nil {
		s = new(share)
		c.shares[namespace] = s
	}
	return s
}

// Usages returns what was counted, by Service.
func (c *Counter) Usages() []Usage {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]Usage, 0, len(c.usages))
	for _, u := range c.usages {
		list = append(list, u.Usage)
	}
	return list
}

// State returns how the Counter is doing.
func (c *Counter) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.state
	s.Services, s.Connections = len(c.usages), len(c.live)
	if c.usages[Rest] != nil {
		s.Services--
	}
	return s
}

// setBegan notes that counting begins.
func (c *Counter) setBegan(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began, c.origin = now, uint64(now.UnixNano())
}

// old reports whether a connection may have begun before the Counter. The clock of the node may have been set since:
// the kernel's times are by the clock.
func (c *Counter) old(f *conntrack.Flow, now time.Time) bool {
	c.origin = min(c.origin, uint64(now.UnixNano()-int64(now.Sub(c.began))))
	return f.Started < c.origin
}

// end counts a connection that has ended.
func (c *Counter) end(f *conntrack.Flow, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := connectionOf(f)
	if c.ended != nil && len(c.ended) < mostEnded {
		c.ended[id] = struct{}{}
	}
	if known := c.live[id]; known != nil {
		known.count(f, now)
		known.usage.end(f)
		c.forget(id, known)
		return
	}
	service, ok := c.owners.of(f)
	if !ok || c.old(f, now) {
		return
	}
	u := c.usageOf(service, now)
	u.last = now
	u.add(f.Sent, f.Returned)
	u.end(f)
}

// see takes in a connection that a look has read.
func (c *Counter) see(f *conntrack.Flow, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := connectionOf(f)
	if _, ended := c.ended[id]; ended || f.Status&conntrack.Dying != 0 {
		return
	}
	if known := c.live[id]; known != nil {
		known.count(f, now)
		known.seen = c.looks + 1
		return
	}
	service, ok := c.owners.of(f)
	if !ok || f.Ended() || len(c.ended) == mostEnded { // its end counts all
		return
	}
	share := c.shareOf(service.Namespace)
	if share.connections >= mostConnections-len(c.live) { // its end counts all, if it is not old
		return
	}
	share.connections++
	known := &lasting{usage: c.usageOf(service, now), share: share, seen: c.looks + 1}
	known.usage.live++
	if c.old(f, now) {
		known.sent, known.returned = f.Sent, f.Returned
	} else {
		known.count(f, now)
	}
	c.live[id] = known
}

// count adds what a connection has moved since it was seen. Another program may have set its counters to zero.
func (l *lasting) count(f *conntrack.Flow, now time.Time) {
	since := func(have, before conntrack.Counter) conntrack.Counter {
		if have.Bytes < before.Bytes || have.Packets < before.Packets {
			return have
		}
		return conntrack.Counter{Packets: have.Packets - before.Packets, Bytes: have.Bytes - before.Bytes}
	}
	l.usage.last = now
	l.usage.add(since(f.Sent, l.sent), since(f.Returned, l.returned))
	l.sent, l.returned = f.Sent, f.Returned
}

func (c *Counter) forget(id connection, known *lasting) {
	known.usage.live--
	known.share.connections--
	delete(c.live, id)
}

// tidy ends a look: it forgets what is not needed any more.
func (c *Counter) tidy(complete bool, now time.Time) {
	c.owners.forget(now)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = nil
	if complete {
		c.looks++
	}
	for id, known := range c.live {
		if known.seen+missingLooks <= c.looks {
			known.usage.Ended++ // its end was lost; what it had moved until a look saw it last has been counted
			c.forget(id, known)
		}
	}
	for service, u := range c.usages {
		if service != Rest && u.live == 0 && now.Sub(u.last) > idleFor && !c.options.Exists(service) {
			delete(c.usages, service)
			c.shares[service.Namespace].services--
		}
	}
	for namespace, s := range c.shares {
		if *s == (share{}) {
			delete(c.shares, namespace)
		}
	}
}
