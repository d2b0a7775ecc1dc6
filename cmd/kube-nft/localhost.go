package main

import (
	"context"
	"sync"

	"go.uber.org/zap"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/localhost"
)

// serveLocalhost serves node ports at loopback addresses if the options ask for that, and
// otherwise says what an earlier kube-nft that did so may have left open.
func (d *daemon) serveLocalhost(ctx context.Context, settings *proxysync.Options) {
	if !d.options.LocalhostNodePorts {
		if exposure := localhost.Exposure(sysctlRoot); exposure != "" {
			d.log.Warn("loopback addresses", zap.String("notice", exposure))
		}
		return
	}
	proxy, committed := localhost.NewProxy(ctx, d.log), settings.Committed
	var route sync.Once
	settings.Committed = func(report proxysync.Report) {
		committed(report)
		route.Do(d.routeLocalhost) // the rule that keeps other hosts out is in force by now
		proxy.Apply(report.Delta)
	}
}

// routeLocalhost makes the kernel route loopback addresses, and says so.
func (d *daemon) routeLocalhost() {
	changed, err := localhost.Route(sysctlRoot)
	switch {
	case err != nil:
		d.log.Warn("localhost node ports", zap.Error(err))
	case changed:
		d.log.Info("localhost node ports: the kernel now routes loopback addresses; our ruleset drops connections to them from other hosts",
			zap.String("sysctl", "net.ipv4.conf.all.route_localnet"), zap.Int("value", 1))
	}
}
