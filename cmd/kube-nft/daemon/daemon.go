// Package daemon is the kube-nft that runs on a node. Call Run, or Apply for a daemon that ends with its takeover,
// or Prepare to set the sysctls alone. Run follows a source of objects, keeps the
// kernel's tables equal to them, and shows its health, metrics and events.
package daemon

import (
	"context"
	"errors"
	"io"
	"os/signal"
	"sync/atomic"
	"time"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/shadow"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/sync/flows"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// ErrConfigChanged ends the daemon; a service manager starts it again.
var ErrConfigChanged = errors.New("the configuration file changed")

// A daemon holds what the goroutines of Run share. The feed fills the tracker and notifies the queue, the syncer
// commits what has changed, and the monitor reports the result.
type daemon struct {
	config   *config.Config
	log      *zap.Logger
	tracker  *tracker.Tracker
	queue    *proxysync.Queue
	view     *proxysync.View // of what was committed
	ejection *ejection.Watcher
	flows    *flows.Counter   // nil without --flow-metrics
	shadow   *shadow.Comparer // nil except in the shadow mode
	turn     *peer.Turn
	waits    atomic.Pointer[string] // what the first commit waits for, other than the takeover

	// What open opens.
	kernel   *kernel.Client // nil in the shadow mode
	families []nft.Family
	lacks    nft.Lacks // what the kernel cannot do for annotations
	owned    bool      // our socket owns the tables
	monitor  *monitor
	takeover *takeover // from kube-proxy; nil without one
	feed     *config.Feed
}

// Run runs the daemon until ctx ends, and leaves the rules in place. It returns ErrConfigChanged
// when reader gives other settings than c.
func Run(ctx context.Context, reader *config.Reader, c *config.Config, stderr io.Writer) error {
	return newDaemon(c, newLog(c, stderr)).run(ctx, reader, nil)
}

func newDaemon(c *config.Config, log *zap.Logger) *daemon {
	services := c.Tracker()
	services.CPUTime = proxysync.ThreadTime
	d := &daemon{
		config: c, log: log, queue: proxysync.NewQueue(), tracker: tracker.New(services), view: proxysync.NewView(),
		turn: peer.NewTurn(),
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

// run is Run; apply, if not nil, ends the daemon with its takeover.
func (d *daemon) run(ctx context.Context, reader *config.Reader, apply *apply) error {
	defer d.log.Sync()
	signal.Ignore(unix.SIGPIPE) // the reader of the log may end, Services stay
	if err := d.config.CheckSource(); err != nil {
		return err
	}
	build := config.Build()
	d.log.Info("kube-nft starts", zap.String("version", build.GitVersion), zap.String("commit", build.GitCommit),
		zap.String("go", build.GoVersion), zap.String("platform", build.Platform))
	d.config.LogNotices(d.log)
	limitMemory(memlimit.FromCgroup, d.log)
	group, working := errgroup.WithContext(ctx)
	if err := d.open(working, reader.Flags(), apply); err != nil {
		d.close()
		if ctx.Err() != nil {
			return nil // asked to end while it looked at the kernel
		}
		return err
	}
	if d.shadow == nil { // after all checks: a failed start leaves the host as it was
		tuneConntrack(d.config, d.log)
		setScore(d.config.OOMScoreAdj, d.log)
	} else {
		d.log.Info("shadow mode: kube-nft changes nothing; lines about commits say what it would write")
	}

	// From here on sockets stay open until the process ends: Run does not wait for a commit or a scrape under way.
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	served, written := make(chan struct{}), make(chan struct{})
	group.Go(func() error {
		defer close(served)
		return d.serve(working, serving)
	})
	group.Go(func() error { return d.feed.Run(working) })
	group.Go(func() error {
		defer close(written) // this process does not write to the kernel any more
		return d.sync(working, group)
	})
	if apply == nil {
		group.Go(func() error { return followConfig(working, reader, d.config, d.log) })
	}
	<-working.Done()
	d.turn.End(written, d.log)
	stop()
	select {
	case <-served:
	case <-time.After(2 * web.Farewell):
	}
	if ctx.Err() == nil {
		return context.Cause(working)
	}
	if d.shadow == nil {
		d.log.Info("kube-nft ends; its rules stay in force")
	} else {
		d.log.Info("kube-nft ends")
	}
	return nil
}

// open makes what can fail; close closes it after an error. flags are what /flagz shows.
func (d *daemon) open(ctx context.Context, flags map[string]string, apply *apply) (err error) {
	if err = d.useKernel(ctx); err != nil {
		return err
	}
	if err = d.openMonitor(ctx, flags); err != nil {
		return err
	}
	if d.config.Takeover {
		d.takeover = d.newTakeover(apply)
	}
	d.feed, err = d.config.NewFeed(d.tracker, d.queue.Notify, d.monitor.refused, d.monitor.safety.reportList, d.log)
	return err
}

// close closes the sockets after a start that failed.
func (d *daemon) close() {
	if d.kernel != nil {
		d.kernel.Close()
	}
	if d.monitor != nil && d.monitor.scraped != nil {
		d.monitor.scraped.Close()
	}
}

// serve waits for this daemon's turn to program, unless ctx ends before. Then it answers until serving ends.
func (d *daemon) serve(ctx, serving context.Context) error {
	if d.shadow != nil {
		d.turn.Watch(d.answers(), d.log)
	} else if !d.turn.Await(ctx, d.answers(), d.log) {
		return nil
	}
	d.monitor.events.Starting()
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
		d.log.Warn("kube-nft does not serve IPv6 Services: this kernel has no IPv6 nat")
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
	log.Info("kube-nft exits, so that a restart reads the changed configuration", zap.String("file", c.File))
	return ErrConfigChanged
}
