package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/neighbours"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/flows"
	"github.com/kube-nft/kube-nft/tracker"
)

// A syncer runs the sync loop and follows its commits. Only the goroutine of sync uses it.
type syncer struct {
	daemon    *daemon
	group     *errgroup.Group
	ruleset   *services.Ruleset
	loop      *proxysync.Loop
	localhost *localhostPorts
	sample    neighbours.Sample // of what is served
	runFlows  sync.Once
}

// sync waits for everything that the first commit needs, and then keeps the kernel up to date until
// ctx ends. The goroutines that this needs run in group.
func (d *daemon) sync(ctx context.Context, group *errgroup.Group) error {
	if !d.waitForAll(ctx) {
		return nil
	}
	if d.tracker.Node() == nil {
		d.config.WarnNode(d.log)
	}
	rules := d.config.Ruleset(d.families)
	rules.Lacks, rules.Owned = d.lacks, d.owned
	ruleset := services.NewRuleset(rules)
	if d.shadow != nil {
		return d.runShadow(ctx, group, ruleset)
	}
	s := &syncer{daemon: d, group: group, ruleset: ruleset, localhost: newLocalhostPorts(ctx, d.config, d.log)}
	source := &interim{tracker: d.tracker, monitor: d.monitor, wake: d.queue.Notified()}
	if d.turn.Follows {
		source.begin(ctx)
	}
	if d.takeover != nil {
		if ready, err := d.takeover.begin(ctx, source); !ready {
			return err
		}
	}
	d.keepProxyTable(ctx) // before the takeover removes kube-proxy's table
	s.watchNeighbours(ctx)
	source.finish()
	s.loop = proxysync.New(source, ruleset, d.kernel, s.options(ctx))
	if d.takeover != nil {
		d.takeover.reserve(s.loop)
	}
	return s.run(ctx)
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

// runShadow compares kube-proxy's rules with ours until ctx ends, and changes nothing.
func (d *daemon) runShadow(ctx context.Context, group *errgroup.Group, ruleset *services.Ruleset) error {
	s, options := d.shadow, d.options()
	s.Log, s.Ruleset, s.Notify, s.MissingNode = d.log, ruleset, d.queue.Notify, d.missingNode
	s.Warn = func(reason, text string) { d.monitor.events.Node(reason, "Compare", text) }
	options.MinInterval = 0 // the period is kube-proxy's
	options.Committed = func(r proxysync.Report) {
		d.monitor.committed(&r, ruleset.Lengths(), kernel.Traffic{})
		s.Committed()
	}
	loop := proxysync.New(d.tracker, ruleset, s, options)
	if err := d.followAddresses(ctx, group, loop); err != nil {
		return err
	}
	group.Go(func() error { return s.Run(ctx) })
	d.monitor.proxy.Start(d.monitor.families)
	return loop.Run(ctx)
}

// options returns the settings of a sync loop.
func (d *daemon) options() proxysync.Options {
	return proxysync.Options{
		MinInterval:   d.config.MinSyncPeriod,
		AuditInterval: d.config.SyncPeriod,
		Queue:         d.queue,
		View:          d.view,
		NodePorts:     d.config.NodePorts,
		Log:           d.log,
		CPUTime:       proxysync.ThreadTime,
		Charge:        d.tracker.Charge,
		Hold:          d.tracker.Hold,
		Failed:        d.failed,
		SafetyCheck:   d.safetyStop,
		Skipped:       d.monitor.serviceSkipped,
		Cleaned:       d.monitor.metrics.Cleaned,
	}
}

// failed follows a sync that failed.
func (d *daemon) failed(err error) {
	d.monitor.failed(err)
	if d.takeover != nil {
		d.takeover.failed(err)
	}
}

// safetyStop follows a commit that the safety check stops; with nil, a sync that succeeds after one.
func (d *daemon) safetyStop(err error) {
	d.monitor.proxy.Hold(err != nil)
	d.monitor.safety.reportCommit(err)
	if err == nil {
		return
	}
	d.tracker.TakeAll()
	if d.takeover != nil {
		d.takeover.safetyStop(err)
	}
}

// followAddresses brings the addresses of the node's interfaces into a loop, if they matter, until ctx ends.
func (d *daemon) followAddresses(ctx context.Context, group *errgroup.Group, loop *proxysync.Loop) error {
	if !d.config.NodePorts.Follows() {
		return nil
	}
	addrs, err := legacy.InterfaceAddresses()
	if err != nil {
		return err
	}
	loop.SetAddresses(addrs)
	group.Go(func() error { return proxysync.FollowAddresses(ctx, loop.SetAddresses, d.log) })
	return nil
}

// keepProxyTable makes the table that --keep-kube-proxy-table asks for, if it is not there.
func (d *daemon) keepProxyTable(ctx context.Context) {
	if !d.config.KeepProxyTable {
		return
	}
	if err := legacy.Keep(ctx); err != nil {
		d.log.Error("cannot keep the table ip kube-proxy: Calico with nftablesMode Auto may change its dataplane",
			zap.Error(err))
	}
}

// missingNode returns the name of this node if there is no such Node object.
func (d *daemon) missingNode() string {
	if d.tracker.Node() == nil {
		return d.config.NodeName
	}
	return ""
}

// options returns the settings of the sync loop, with those for flow metrics and the takeover.
func (s *syncer) options(ctx context.Context) proxysync.Options {
	options := s.daemon.options()
	options.Committed = func(r proxysync.Report) { s.committed(ctx, &r) }
	if counter := s.daemon.flows; counter != nil {
		options.Lost = func(at tracker.Frontend, port tracker.PortID) {
			counter.Lose(at, flows.Service{Namespace: port.Namespace, Name: port.Service})
		}
	}
	if t := s.daemon.takeover; t != nil {
		options.Trust = t.apply != nil && t.steps.Force
		if t.needed {
			options.Foreign, options.KnownClients = t.foreign, t.keptClients
		}
	}
	return options
}

// run connects the sync loop with the other parts and runs it until ctx ends.
func (s *syncer) run(ctx context.Context) error {
	d := s.daemon
	if table, err := conntrack.Open(); err != nil {
		d.log.Warn("kube-nft will not delete stale conntrack entries", zap.Error(err))
	} else {
		defer table.Close()
		s.loop.CleanFlows(conntrack.NewReconciler(table))
	}
	s.group.Go(func() error { d.ejection.Run(ctx); return nil })
	entries, err := kernel.Open()
	if err != nil {
		return err
	}
	defer entries.Close()
	s.loop.CleanAffinity(entries)
	foreign, err := kernel.NewMonitor(d.kernel)
	if err != nil {
		return err
	}
	defer foreign.Close()
	s.loop.Watch(foreign)
	if err := d.followAddresses(ctx, s.group, s.loop); err != nil {
		return err
	}
	d.monitor.proxy.Start(d.monitor.families)
	return s.loop.Run(ctx)
}

// committed follows a commit of the sync loop.
func (s *syncer) committed(ctx context.Context, r *proxysync.Report) {
	d := s.daemon
	d.monitor.committed(r, s.ruleset.Lengths(), d.kernel.Sent())
	if r.ReviewReason != "" { // nft flush ruleset, for example, has removed that table, too
		d.keepProxyTable(ctx)
	}
	s.sample.Follow(&r.Delta)
	s.localhost.committed(r.Delta)
	d.ejection.Committed(&r.Delta)
	if d.flows != nil {
		s.runFlows.Do(func() { s.group.Go(func() error { d.flows.Run(ctx); return nil }) })
	}
	if d.takeover != nil && d.takeover.committed(ctx, r, s.ruleset) {
		s.group.Go(func() error { return d.takeover.remove(ctx, s.loop) })
	}
}
