// Package daemon is the kube-nft that runs on a node: it follows a source of objects, keeps the
// kernel's tables equal to them, and shows its health, metrics and events.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// ErrConfigChanged ends the daemon; a service manager starts it again.
var ErrConfigChanged = errors.New("the configuration file changed")

// A daemon holds what the goroutines of Run share.
type daemon struct {
	config   *config.Config
	log      *zap.Logger
	kernel   *kernel.Client
	families []nft.Family
	owned    bool      // our socket owns the tables
	lacks    nft.Lacks // what the kernel cannot do for annotations
	tracker  *tracker.Tracker
	feed     *config.Feed
	monitor  *monitor
	queue    *proxysync.Queue
	group    *errgroup.Group

	lock    *kernel.Lock  // the right to program; nil if the kernel has none
	door    *peer.Door    // where commands ask; nil if it cannot be opened
	claimed chan struct{} // closed when lock and door are there, or ctx has ended
	follows bool          // another kube-nft programmed when this one started; set before that
	stopped chan struct{} // closed when this process does not write to the kernel any more
	release releaser
	waits   atomic.Pointer[string] // what the first commit waits for

	apply   *apply      // ends the daemon with its takeover; nil if it runs on
	taking  func() bool // a takeover from kube-proxy is at work
	working bool        // goroutines have the sockets
}

// Run runs the daemon until ctx ends, and leaves the rules in place. It returns ErrConfigChanged
// when reader gives other settings than c.
func Run(ctx context.Context, reader *config.Reader, c *config.Config, stderr io.Writer) error {
	return newDaemon(c, newLog(c, stderr)).run(ctx, reader)
}

func newDaemon(c *config.Config, log *zap.Logger) *daemon {
	return &daemon{
		config: c, log: log, queue: proxysync.NewQueue(), taking: func() bool { return false },
		claimed: make(chan struct{}), stopped: make(chan struct{}),
	}
}

func (d *daemon) run(ctx context.Context, reader *config.Reader) error {
	c := d.config
	defer d.log.Sync()
	signal.Ignore(unix.SIGPIPE) // the reader of the log may end, Services stay
	if err := c.CheckSource(); err != nil {
		return err
	}
	build := config.Build()
	d.log.Info("starting", zap.String("version", build.GitVersion), zap.String("commit", build.GitCommit), zap.String("go", build.GoVersion), zap.String("platform", build.Platform))
	c.LogNotices(d.log)
	var err error
	var features kernel.Features
	d.kernel, features, err = openKernel(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // asked to end while it looked at the kernel
	case err != nil:
		return err
	}
	defer d.close()
	d.families = nft.Families[:]
	if !features.IP6 {
		d.families = []nft.Family{nft.IP}
		d.log.Warn("IPv6 Services are not served: this kernel has no IPv6 nat")
	}
	d.lacks = features.Lacks
	d.owned = c.TableOwnership && features.OwnerPersist
	if c.TableOwnership && !d.owned {
		d.log.Warn("others can change our tables: this kernel cannot let a table outlive its owner (Linux 6.9 can)")
	}
	d.tracker = tracker.New(c.Tracker())
	group, working := errgroup.WithContext(ctx)
	d.group = group
	if d.monitor, err = newMonitor(working, c, reader.Flags(), d.tracker, d.families, d.queue, d.log); err != nil {
		return err
	}
	if d.feed, err = c.NewFeed(d.tracker, d.queue.Ring, d.monitor.refused, d.monitor.holds.doubtedLists(), d.log); err != nil {
		return err
	}
	tuneConntrack(c, d.log) // after all checks: a failed start leaves the host as it was
	if err := os.WriteFile(oomScore, []byte(strconv.Itoa(c.OOMScoreAdj)), 0); err != nil {
		noteScore(oomScore, c.OOMScoreAdj, err, d.log)
	}
	d.working = true
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	served := make(chan struct{})
	group.Go(func() error {
		defer close(served)
		if !d.claim(working) {
			return nil
		}
		return d.monitor.run(serving)
	})
	group.Go(func() error { return d.feed.Run(working) })
	group.Go(func() error {
		defer close(d.stopped)
		return d.sync(working)
	})
	if d.apply == nil {
		group.Go(func() error { return followConfig(working, reader, c, d.log) })
	}
	<-working.Done()
	d.letGo()
	stop()
	select {
	case <-served:
	case <-time.After(2 * web.Farewell):
	}
	if ctx.Err() == nil {
		return context.Cause(working)
	}
	d.log.Info("ending; the rules stay")
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
		log.Error("configuration", zap.String("file", c.File), zap.Error(err))
	}
	if !reader.Follow(ctx, c, problem) {
		return nil
	}
	log.Info("ending, to be started with the changed configuration", zap.String("file", c.File))
	return ErrConfigChanged
}

// claim waits until this process may program the network namespace, and then opens the door for
// commands. While it waits, the door for the startup probe is open. It returns false if ctx ended.
func (d *daemon) claim(ctx context.Context) bool {
	defer close(d.claimed)
	answers := &peer.Answers{
		Settings: func() (*config.Running, error) { return d.config.Running(started) },
		Status:   d.status,
		Release:  d.release.release,
	}
	var err error
	var next *peer.Door
	d.lock, err = peer.Claim(ctx, func() {
		d.follows = true
		d.log.Warn("another kube-nft programs this network namespace: waiting until it ends")
		if next, err = peer.Open(peer.Waits, answers, d.log); err != nil {
			d.log.Warn("kube-nft ready does not reach this kube-nft", zap.Error(err))
		}
	})
	if d.follows {
		next.Close() // what is left of the file does no harm
		d.log.Info("the other kube-nft has ended: taking over")
	}
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		d.log.Warn("this kernel has no lock that would keep two kube-nfts from programming the same network namespace", zap.Error(err))
	}
	if d.door, err = peer.Open(peer.Programs, answers, d.log); err != nil {
		d.log.Warn("commands such as kube-nft status do not reach this kube-nft", zap.Error(err))
	}
	d.monitor.events.node(normal, "Starting", "StartProxy", "")
	return true
}

// overlap is how long a daemon answers health checks after it has given up the lock, while the next one begins
// to listen at the same addresses.
const overlap = 500 * time.Millisecond

// letGo gives up the lock as soon as nothing is written any more. If another daemon waits for the lock,
// letGo leaves it the time to listen. While a commit is under way it does not wait for long: the lock ends
// with the process.
func (d *daemon) letGo() {
	<-d.claimed
	select {
	case <-d.stopped:
	case <-time.After(web.Farewell):
		return
	}
	followed := peer.Followed(context.Background())
	d.door.Close() // what is left of the file does no harm
	if d.lock != nil {
		d.lock.Release() // a socket that does not close ends with the process
	}
	if followed {
		time.Sleep(overlap)
	}
}

// status answers a command.
func (d *daemon) status() *peer.Status {
	s := d.monitor.status()
	s.NodeMissing = nodeMissing(d.tracker)()
	select {
	case <-d.feed.Synced:
		s.Synced = true
	default:
	}
	waits, source, takeover := d.waits.Load(), s.Held[peer.HeldSource], s.Held[peer.HeldTakeover]
	switch failure := d.feed.Failure(); {
	case s.Ready:
		s.WaitingFor = ""
	case !s.Synced && failure != nil:
		s.WaitingFor = "the API server: " + failure.Error()
	case waits != nil:
		s.WaitingFor = *waits
	case takeover != "":
		s.WaitingFor = "a source that has what kube-proxy serves: " + takeover
	case source != "":
		s.WaitingFor = "a source that has what our tables serve: " + source
	}
	return s
}

// A releaser gives up the ownership of our tables, once.
type releaser struct {
	mu     sync.Mutex
	owned  bool
	disown func(context.Context) error // nil before there are tables
}

// set says whether our tables are owned, and how to give that up.
func (r *releaser) set(owned bool, disown func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owned, r.disown = owned, disown
}

// release answers kube-nft release. already says that nobody owned the tables.
func (r *releaser) release(ctx context.Context) (already bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.disown == nil {
		return false, errors.New("it has not programmed anything yet")
	}
	if !r.owned {
		return true, nil
	}
	if err := r.disown(ctx); err != nil {
		return false, err
	}
	r.owned = false
	return false, nil
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
	d.kernel.Close()
}

// sync waits for everything that the first commit needs, and then keeps the kernel up to date until
// ctx ends.
func (d *daemon) sync(ctx context.Context) error {
	if !d.wait(ctx, "Services and EndpointSlices", d.feed.Synced) {
		return nil
	}
	for d.config.PodsFromNode && !d.config.UsePodCIDRs(d.tracker.Node()) {
		if !d.wait(ctx, fmt.Sprintf("spec.podCIDRs of Node %s", d.config.NodeName), d.queue.Bell()) {
			return nil
		}
	}
	if !d.wait(ctx, "the other kube-nft to end", d.claimed) {
		return nil
	}
	source := &interim{
		tracker: d.tracker, bell: d.queue.Bell(),
		follow: func(delta *tracker.Delta) { d.monitor.applyHealthChecks(delta, d.tracker) },
	}
	if d.follows {
		source.begin(ctx)
	}
	settings := proxysync.Options{
		MinInterval:   d.config.MinSyncPeriod,
		AuditInterval: d.config.SyncPeriod,
		Queue:         d.queue,
		NodePorts:     d.config.NodePorts,
		Charge:        d.tracker.Charge,
		Log:           d.log,
	}
	rules := d.config.Ruleset(d.families)
	rules.Lacks = d.lacks
	ruleset := services.NewRuleset(rules)
	ruleset.SetOwned(d.owned)
	d.monitor.watch(&settings, ruleset, d.kernel)
	d.watchNode(&settings)
	d.watchHolds(&settings)
	d.serveLocalhost(ctx, &settings)
	if d.config.Takeover {
		if ready, err := d.takeOver(ctx, source, ruleset, &settings); !ready {
			return err
		}
	}
	if d.config.ServiceProxyName == "" { // else another proxy is to be there
		d.group.Go(func() error { return d.watchProxy(ctx) })
	}
	source.finish()
	loop := proxysync.New(source, ruleset, d.kernel, settings)
	d.release.set(d.owned, loop.Disown)
	return d.loop(ctx, loop)
}

// loop connects the sync loop with the other parts and runs it until ctx ends.
func (d *daemon) loop(ctx context.Context, loop *proxysync.Loop) error {
	if table, err := conntrack.Open(); err != nil {
		d.log.Warn("stale connections will not be removed", zap.Error(err))
	} else {
		defer table.Close()
		loop.CleanFlows(conntrack.NewReconciler(table))
	}
	entries, err := kernel.Open()
	if err != nil {
		return err
	}
	defer entries.Close()
	loop.CleanAffinity(entries)
	foreign, err := kernel.NewMonitor(d.kernel)
	if err != nil {
		return err
	}
	defer foreign.Close()
	loop.Watch(foreign)
	if d.config.NodePorts.Follows() {
		addrs, err := proxysync.Addresses()
		if err != nil {
			return err
		}
		loop.SetAddresses(addrs)
		d.group.Go(func() error { return proxysync.FollowAddresses(ctx, loop.SetAddresses, d.log) })
	}
	d.monitor.proxy.Start(d.monitor.families)
	return loop.Run(ctx)
}

// patience is the time after which the log says what the daemon waits for, again and again.
const patience = 10 * time.Second

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
			d.log.Warn("waiting", zap.String("for", what))
		}
	}
}

// pause waits for d; false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
