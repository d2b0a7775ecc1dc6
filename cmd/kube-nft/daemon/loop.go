package daemon

import (
	"context"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/flows"
	"github.com/kube-nft/kube-nft/tracker"
)

// options returns the settings of the sync loop, and what follows its commits.
func (d *daemon) options(ctx context.Context) proxysync.Options {
	options := proxysync.Options{
		MinInterval:   d.config.MinSyncPeriod,
		AuditInterval: d.config.SyncPeriod,
		Queue:         d.queue,
		View:          d.view,
		NodePorts:     d.config.NodePorts,
		Trust:         d.apply != nil && d.config.ForceTakeover,
		Log:           d.log,
		CPUTime:       proxysync.ThreadTime,
		Charge:        d.tracker.Charge,
		Committed:     func(r proxysync.Report) { d.committed(ctx, &r) },
		Failed:        d.failed,
		SafetyCheck:   d.safetyStop,
		Skipped:       d.monitor.serviceSkipped,
		Cleaned:       d.monitor.metrics.Cleaned,
	}
	if d.shadow != nil { // the period is kube-proxy's
		options.MinInterval = 0
	}
	if d.flows != nil {
		options.Lost = func(at tracker.Frontend, port tracker.PortID) {
			d.flows.Lose(at, flows.Service{Namespace: port.Namespace, Name: port.Service})
		}
	}
	if d.takeover != nil && d.takeover.needed {
		options.Foreign, options.KnownClients = d.takeover.foreign, d.takeover.keptClients
	}
	return options
}

// committed follows a commit of the sync loop.
func (d *daemon) committed(ctx context.Context, r *proxysync.Report) {
	d.monitor.committed(r, d.ruleset.Lengths(), d.sent())
	d.logNode(r.Delta.Node)
	if d.shadow != nil {
		d.shadow.Committed()
		return
	}
	if r.ReviewReason != "" { // what has taken our tables away, such as nft flush ruleset, has taken that one, too
		d.keepProxyTable(ctx)
	}
	d.sample.Follow(&r.Delta)
	d.localhost.committed(r.Delta)
	d.ejection.Committed(&r.Delta)
	if d.flows != nil {
		d.runFlows.Do(func() { d.group.Go(func() error { d.flows.Run(ctx); return nil }) })
	}
	if d.takeover != nil {
		d.takeover.committed(ctx, r)
	}
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

// failed follows a sync that failed.
func (d *daemon) failed(err error) {
	d.monitor.failed(err)
	if d.apply != nil {
		d.apply.failed(d.takeover, err)
	}
}

// safetyStop follows a commit that the safety check stops; with nil, a sync that succeeds after one.
func (d *daemon) safetyStop(err error) {
	d.monitor.proxy.Hold(err != nil)
	d.monitor.safety.reportCommit(err)
	if err != nil {
		d.tracker.TakeAll()
	}
	if d.apply != nil && err != nil {
		d.apply.safetyStop(d.takeover, err)
	}
}

// logMissingNode logs at the start that there is no Node.
func (d *daemon) logMissingNode() {
	if d.tracker.Node() == nil {
		d.config.WarnNode(d.log)
	}
}

// logNode logs that the Node was deleted, and what makes load balancers look elsewhere. node is nil if the Node
// has not changed.
func (d *daemon) logNode(node *tracker.Node) {
	if node == nil {
		return
	}
	if node.Gone {
		d.config.WarnNodeGone(d.log)
	}
	if node.Ineligible == d.ineligible {
		return
	}
	if d.ineligible = node.Ineligible; d.ineligible != "" {
		d.log.Warn("/healthz returns 503: node not eligible", zap.String("node", node.Name),
			zap.String("reason", d.ineligible))
	} else {
		d.log.Info("the node is eligible again for load balancers", zap.String("node", node.Name))
	}
}

// runLoop connects the sync loop with the other parts and runs it until ctx ends.
func (d *daemon) runLoop(ctx context.Context, loop *proxysync.Loop) error {
	if table, err := conntrack.Open(); err != nil {
		d.log.Warn("stale conntrack entries will not be deleted", zap.Error(err))
	} else {
		defer table.Close()
		loop.CleanFlows(conntrack.NewReconciler(table))
	}
	d.group.Go(func() error {
		d.ejection.Run(ctx)
		return nil
	})
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
	if err := d.followAddresses(ctx, loop); err != nil {
		return err
	}
	d.monitor.proxy.Start(d.monitor.families)
	return loop.Run(ctx)
}

// followAddresses brings the addresses of the node's interfaces into a loop, if they matter, until ctx ends.
func (d *daemon) followAddresses(ctx context.Context, loop *proxysync.Loop) error {
	if !d.config.NodePorts.Follows() {
		return nil
	}
	addrs, err := legacy.InterfaceAddresses()
	if err != nil {
		return err
	}
	loop.SetAddresses(addrs)
	d.group.Go(func() error { return proxysync.FollowAddresses(ctx, loop.SetAddresses, d.log) })
	return nil
}

// sent returns how much was sent to the kernel.
func (d *daemon) sent() kernel.Traffic {
	if d.kernel == nil {
		return kernel.Traffic{}
	}
	return d.kernel.Sent()
}
