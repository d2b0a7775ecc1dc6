package main

import (
	"context"
	"fmt"
	"io"
	"os/signal"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// run is the daemon: it ends when ctx does, and leaves the rules in place.
func run(ctx context.Context, o *options, stderr io.Writer) error {
	d := daemon{options: o, log: o.newDaemonLog(stderr), queue: proxysync.NewQueue()}
	defer d.log.Sync()
	signal.Ignore(unix.SIGPIPE) // the reader of the log may go, Services stay
	if err := o.checkSource(); err != nil {
		return err
	}
	o.notices(d.log)
	var err error
	var features nft.Features
	d.kernel, features, err = openKernel(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil // asked to end while it looked at the kernel
	case err != nil:
		return err
	}
	defer d.kernel.Close()
	d.use(features)
	d.tracker = tracker.New(o.trackerConfig())
	group, working := errgroup.WithContext(ctx)
	d.group = group
	if d.monitor, err = newMonitor(working, o, d.tracker, d.families, d.queue, d.log); err != nil {
		return err
	}
	defer d.monitor.close()
	if d.feed, err = o.newFeed(d.tracker, d.queue.Ring, d.monitor.refused, d.log); err != nil {
		return err
	}
	o.tune(d.log) // now that nothing is missing: a start that fails leaves the host as it was
	d.monitor.run(working, group)
	group.Go(func() error { return d.feed.run(working) })
	group.Go(func() error { return d.sync(working) })
	group.Go(func() error { return o.followConfig(working, d.log) })
	return d.untilDone(ctx, group.Wait)
}

// untilDone returns what wait returns, or nil as soon as ctx ends: the rules stay as they
// are whatever is under way, and a request to an API server may take long to give up.
func (d *daemon) untilDone(ctx context.Context, wait func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- wait() }()
	select {
	case err := <-ended:
		if ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	}
	d.log.Info("ending; the rules stay")
	return nil
}

// A daemon holds what the goroutines of run share.
type daemon struct {
	options  *options
	log      *zap.Logger
	kernel   *nft.Kernel
	families []nft.Family
	owned    bool // the tables are to belong to our socket
	tracker  *tracker.Tracker
	feed     *feed
	monitor  *monitor
	queue    *proxysync.Queue
	group    *errgroup.Group
}

// openKernel opens the lasting socket, before anything else takes descriptors, and finds
// out what the kernel can do.
func openKernel(ctx context.Context) (*nft.Kernel, nft.Features, error) {
	kernel, err := nft.Open()
	if err != nil {
		return nil, nft.Features{}, err
	}
	features, err := kernel.Probe(ctx)
	if err != nil {
		kernel.Close()
		return nil, nft.Features{}, err
	}
	return kernel, features, nil
}

// use decides by the kernel's features what to do.
func (d *daemon) use(features nft.Features) {
	d.families = []nft.Family{nft.IP}
	if features.IP6 {
		d.families = append(d.families, nft.IP6)
	} else {
		d.log.Warn("IPv6 Services are not served: this kernel has no IPv6 nat")
	}
	d.owned = d.options.TableOwnership && features.OwnerPersist
	if d.options.TableOwnership && !d.owned {
		d.log.Warn("others can change our tables: this kernel cannot let a table outlive its owner (Linux 6.9 can)")
	}
}

// sync waits for everything that the first commit has to be based on, and then keeps the
// kernel up to date until ctx ends.
func (d *daemon) sync(ctx context.Context) error {
	kernel := proxysync.ReadEarly(ctx, d.kernel)
	if !d.wait(ctx, "Services and EndpointSlices", d.feed.Synced()) {
		return nil
	}
	if d.options.PodsFromNode && !d.waitPodCIDRs(ctx) {
		return nil
	}
	instance, ready := d.claim(ctx)
	if !ready {
		return nil
	}
	settings := proxysync.Options{
		MinInterval:   d.options.MinSyncPeriod,
		AuditInterval: d.options.SyncPeriod,
		Queue:         d.queue,
		NodePorts:     d.options.NodePorts,
		Log:           d.log,
	}
	ruleset := nft.NewRuleset(d.options.rulesetConfig(d.families))
	ruleset.SetOwned(d.owned)
	d.monitor.watch(&settings, ruleset, d.kernel)
	d.watchNode(&settings)
	d.serveLocalhost(ctx, &settings)
	if ready, err := d.takeOver(ctx, ruleset, &settings); !ready {
		return err
	}
	loop := proxysync.New(d.tracker, ruleset, kernel, settings)
	if instance != nil {
		r := releaser{disown: loop.Disown, owned: d.owned}
		d.group.Go(func() error { return d.answerPeers(ctx, instance, r.release) })
	}
	return d.loop(ctx, loop)
}

// loop gives the sync loop what else it looks at, and runs it until ctx ends.
func (d *daemon) loop(ctx context.Context, loop *proxysync.Loop) error {
	if table, err := conntrack.Open(); err != nil {
		d.log.Warn("stale connections will not be removed", zap.Error(err))
	} else {
		defer table.Close()
		loop.CleanFlows(conntrack.NewReconciler(table))
	}
	foreign, err := nft.NewMonitor(d.kernel)
	if err != nil {
		return err
	}
	defer foreign.Close()
	loop.Watch(foreign)
	if d.options.NodePorts.Follows() {
		addrs, err := proxysync.Addresses()
		if err != nil {
			return err
		}
		loop.SetAddresses(addrs)
		d.group.Go(func() error { return proxysync.FollowAddresses(ctx, loop.SetAddresses, d.log) })
	}
	d.monitor.start()
	return loop.Run(ctx)
}

// patience is how long something is waited for before the log says so, again and again.
const patience = 10 * time.Second

// wait waits until ready is closed; false if ctx ended.
func (d *daemon) wait(ctx context.Context, what string, ready <-chan struct{}) bool {
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

// waitPodCIDRs waits until the Node object says which addresses its pods have.
func (d *daemon) waitPodCIDRs(ctx context.Context) bool {
	for {
		if d.options.setPodCIDRs(d.tracker.Node()) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-d.queue.Bell():
		case <-time.After(patience):
			d.log.Warn("waiting", zap.String("for", fmt.Sprintf("spec.podCIDRs of Node %s", d.options.NodeName)))
		}
	}
}

// setPodCIDRs recognises pods by the addresses that the Node object gives them, if it does.
func (o *options) setPodCIDRs(node *tracker.Node) bool {
	if node == nil || len(node.PodCIDRs) == 0 {
		return false
	}
	for _, prefix := range node.PodCIDRs {
		family := nft.Family(tracker.FamilyOf(prefix.Addr()))
		if _, twice := o.Pods[family]; !twice {
			o.Pods[family] = nft.PodMatch{CIDR: prefix}
		}
	}
	return true
}
