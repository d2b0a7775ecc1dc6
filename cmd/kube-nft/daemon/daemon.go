// Package daemon is the kube-nft that runs on a node. Call Run, or Apply for a daemon that ends with its takeover,
// or Prepare to set the sysctls alone. Run follows a source of objects, keeps the
// kernel's tables equal to them, and shows its health, metrics and events.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/neighbours"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/shadow"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/sync/flows"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// ErrConfigChanged ends the daemon; a service manager starts it again.
var ErrConfigChanged = errors.New("the configuration file changed")

// A daemon holds what the goroutines of Run share. The source feeds the tracker and rings the queue, the sync
// loop takes what has changed from the tracker and commits it, and the monitor shows what became of it.
type daemon struct {
	config   *config.Config
	log      *zap.Logger
	kernel   *kernel.Client   // nil in the shadow mode
	shadow   *shadow.Comparer // nil except in the shadow mode
	families []nft.Family
	lacks    nft.Lacks // what the kernel cannot do for annotations
	owned    bool      // our socket owns the tables
	tracker  *tracker.Tracker
	queue    *proxysync.Queue
	view     *proxysync.View // of what was committed
	feed     *config.Feed
	monitor  *monitor
	ejection *ejection.Watcher
	flows    *flows.Counter // nil without --flow-metrics
	runFlows sync.Once
	group    *errgroup.Group
	working  bool // goroutines have the sockets

	turn    *peer.Turn
	written chan struct{}          // closed when this process does not write to the kernel any more
	waits   atomic.Pointer[string] // what the first commit waits for
	// awaitsProxy says that waits is about a running kube-proxy, whose end is all that the takeover lacks.
	awaitsProxy atomic.Bool
	// draining is what the last step of a takeover waits for.
	draining atomic.Pointer[string]

	// The goroutine of sync sets the fields below before the loop runs.
	ruleset   *services.Ruleset
	localhost *localhostPorts
	loop      *proxysync.Loop   // set before it runs
	takeover  *takeover         // from kube-proxy; nil without one
	sample    neighbours.Sample // of what is served
	apply     *apply            // ends the daemon with its takeover; nil if it runs on

	ineligible string // why load balancers should not send traffic here, as last logged
}

// Run runs the daemon until ctx ends, and leaves the rules in place. It returns ErrConfigChanged
// when reader gives other settings than c.
func Run(ctx context.Context, reader *config.Reader, c *config.Config, stderr io.Writer) error {
	return newDaemon(c, newLog(c, stderr)).run(ctx, reader)
}

func newDaemon(c *config.Config, log *zap.Logger) *daemon {
	services := c.Tracker()
	services.CPUTime = proxysync.ThreadTime
	d := &daemon{
		config: c, log: log, queue: proxysync.NewQueue(), tracker: tracker.New(services), view: proxysync.NewView(),
		turn: peer.NewTurn(), written: make(chan struct{}),
	}
	d.ejection = d.newEjection()
	switch {
	case c.Shadow:
		d.shadow = shadow.New(c.MinSyncPeriod)
	case c.FlowMetrics:
		d.flows = d.newFlows()
	}
	return d
}

func (d *daemon) run(ctx context.Context, reader *config.Reader) error {
	defer d.log.Sync()
	signal.Ignore(unix.SIGPIPE) // the reader of the log may end, Services stay
	if err := d.config.CheckSource(); err != nil {
		return err
	}
	logStart(d.config, d.log)
	defer d.close()
	if err := d.useKernel(ctx); err != nil {
		if ctx.Err() != nil {
			return nil // asked to end while it looked at the kernel
		}
		return err
	}
	group, working := errgroup.WithContext(ctx)
	d.group = group
	err := d.openMonitor(working, reader.Flags())
	if err != nil {
		return err
	}
	d.feed, err = d.config.NewFeed(d.tracker, d.queue.Notify, d.monitor.refused, d.monitor.safety.reportList, d.log)
	if err != nil {
		return err
	}
	if d.shadow == nil { // after all checks: a failed start leaves the host as it was
		tuneConntrack(d.config, d.log)
		setScore(d.config.OOMScoreAdj, d.log)
	} else {
		d.log.Info("shadow mode: kube-nft changes nothing; lines about commits say what it would write")
	}

	d.working = true
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	served := make(chan struct{})
	group.Go(func() error {
		defer close(served)
		return d.serve(working, serving)
	})
	group.Go(func() error { return d.feed.Run(working) })
	group.Go(func() error {
		defer close(d.written)
		return d.sync(working)
	})
	if d.apply == nil {
		group.Go(func() error { return followConfig(working, reader, d.config, d.log) })
	}
	<-working.Done()
	d.turn.End(d.written, d.log)
	stop()
	select {
	case <-served:
	case <-time.After(2 * web.Farewell):
	}
	if ctx.Err() == nil {
		return context.Cause(working)
	}
	if d.shadow == nil {
		d.log.Info("ending; the rules stay")
	} else {
		d.log.Info("ending")
	}
	return nil
}

// serve waits for this daemon's turn to program, unless ctx ends before. Then it answers until serving ends.
func (d *daemon) serve(ctx, serving context.Context) error {
	if d.shadow != nil {
		d.turn.Watch(d.answers(), d.log)
	} else if !d.turn.Await(ctx, d.answers(), d.log) {
		return nil
	}
	d.monitor.events.node(normal, "Starting", "StartProxy", "")
	return d.monitor.run(serving)
}

// useKernel opens the lasting socket, and looks at what this kernel can do.
func (d *daemon) useKernel(ctx context.Context) error {
	if d.shadow != nil {
		d.families = shadow.Families()
		return nil
	}
	client, features, err := openKernel(ctx)
	if err != nil {
		return err
	}
	d.kernel, d.families, d.lacks = client, nft.Families[:], features.Lacks
	if !features.IP6 {
		d.families = []nft.Family{nft.IP}
		d.log.Warn("IPv6 Services are not served: this kernel has no IPv6 nat")
	}
	d.owned = d.config.TableOwnership && features.OwnerPersist
	if d.config.TableOwnership && !d.owned {
		d.log.Warn("other programs can change our tables: this kernel cannot keep a table after its owner ended " +
			"(Linux 6.9 can)")
	}
	return nil
}

// openKernel opens the lasting socket, before anything else takes descriptors, and probes the
// kernel.
func openKernel(ctx context.Context) (*kernel.Client, kernel.Features, error) {
	client, err := kernel.Open()
	if err != nil {
		return nil, kernel.Features{}, err
	}
	features, err := client.Probe(ctx)
	if err != nil {
		client.Close()
		return nil, kernel.Features{}, err
	}
	return client, features, nil
}

// followConfig returns ErrConfigChanged when the file gives other settings, and nil when
// ctx ends.
func followConfig(ctx context.Context, reader *config.Reader, c *config.Config, log *zap.Logger) error {
	problem := func(err error) {
		log.Error("cannot use the changed configuration; the settings stay", zap.String("file", c.File), zap.Error(err))
	}
	if !reader.Follow(ctx, c, problem) {
		return nil
	}
	log.Info("exiting, so that a restart reads the changed configuration", zap.String("file", c.File))
	return ErrConfigChanged
}

// close closes the sockets after a start that failed. Later they stay open until the process ends:
// Run does not wait for a commit or a scrape that is under way.
func (d *daemon) close() {
	if d.working {
		return
	}
	if d.monitor != nil {
		d.monitor.close()
	}
	if d.kernel != nil {
		d.kernel.Close()
	}
}

// sync waits for everything that the first commit needs, and then keeps the kernel up to date until
// ctx ends.
func (d *daemon) sync(ctx context.Context) error {
	if !d.waitForAll(ctx) {
		return nil
	}
	d.logMissingNode()
	rules := d.config.Ruleset(d.families)
	rules.Lacks = d.lacks
	rules.Owned = d.owned
	d.ruleset = services.NewRuleset(rules)
	if d.shadow != nil {
		return d.runShadow(ctx)
	}
	d.localhost = newLocalhostPorts(ctx, d.config, d.log)
	source := &interim{
		tracker: d.tracker, wake: d.queue.Notified(),
		follow: func(delta *tracker.Delta) { d.monitor.applyHealthChecks(delta, d.tracker) },
	}
	if d.turn.Follows {
		source.begin(ctx)
	}
	if d.config.Takeover {
		if ready, err := d.takeOver(ctx, source); !ready {
			return err
		}
	}
	d.keepProxyTable(ctx) // before the takeover removes kube-proxy's table

	d.watchNeighbours(ctx)
	source.finish()
	d.loop = proxysync.New(source, d.ruleset, d.kernel, d.options(ctx))
	if d.takeover != nil {
		d.takeover.reserve()
	}
	return d.runLoop(ctx, d.loop)
}

// runShadow compares kube-proxy's rules with ours until ctx ends, and changes nothing.
func (d *daemon) runShadow(ctx context.Context) error {
	s := d.shadow
	s.Log, s.Ruleset, s.Notify, s.MissingNode = d.log, d.ruleset, d.queue.Notify, d.missingNode
	s.Warn = func(reason, text string) { d.monitor.events.node(warning, reason, "Compare", text) }
	d.loop = proxysync.New(d.tracker, d.ruleset, s, d.options(ctx))
	if err := d.followAddresses(ctx, d.loop); err != nil {
		return err
	}
	d.group.Go(func() error { return s.Run(ctx) })
	d.monitor.proxy.Start(d.monitor.families)
	return d.loop.Run(ctx)
}

// watchNeighbours notices other programs that harm Services until ctx ends.
func (d *daemon) watchNeighbours(ctx context.Context) {
	m := d.monitor
	w := &neighbours.Watch{Log: d.log, Pauses: d.takingOver,
		Warn: func(reason, text string) { m.events.node(warning, reason, "Watch", text) }}
	var proxy atomic.Bool
	var refusals atomic.Int64
	m.metrics.ForwardRefusals(refusals.Load)
	if d.config.ServiceProxyName == "" { // with a name, another proxy belongs on this node
		m.metrics.ForeignProxy(proxy.Load)
		d.group.Go(func() error {
			return w.Proxy(ctx, d.config.HostProc, func(found bool) {
				proxy.Store(found)
				m.services.StandIn(found) // it has the health-check node ports until it ends
			})
		})
	}
	d.group.Go(func() error {
		return w.Forward(ctx, &d.sample, 1<<d.config.MasqueradeBit, func(n int) { refusals.Store(int64(n)) })
	})
}

// patience is the time after which the log says what the daemon waits for, again and again.
const patience = 10 * time.Second

// waitForAll waits for what every first commit needs; false if ctx ended.
func (d *daemon) waitForAll(ctx context.Context) bool {
	if !d.wait(ctx, "Services and EndpointSlices", d.feed.Synced) {
		return false
	}
	for d.config.PodsFromNode && !d.config.UsePodCIDRs(d.tracker.Node()) {
		if !d.wait(ctx, fmt.Sprintf("spec.podCIDRs of Node %s", d.config.NodeName), d.queue.Notified()) {
			return false
		}
	}
	return d.wait(ctx, "the other kube-nft to end", d.turn.Begun)
}

// wait waits until ready is closed; false if ctx ended.
func (d *daemon) wait(ctx context.Context, what string, ready <-chan struct{}) bool {
	d.waits.Store(&what)
	defer d.waits.Store(nil)
	for {
		select {
		case <-ready:
			return ctx.Err() == nil
		case <-ctx.Done():
			return false
		case <-time.After(patience):
			d.log.Warn("kube-nft waits before its first commit", zap.String("for", what))
		}
	}
}
