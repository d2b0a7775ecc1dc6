package main

import (
	"context"

	"go.uber.org/zap"

	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/localhost"
)

// serveLocalhost serves node ports at loopback addresses, and says what it changes on the
// node for that.
func (d *daemon) serveLocalhost(ctx context.Context, settings *proxysync.Options) {
	changed, err := localhost.Route(sysctlRoot)
	switch {
	case err != nil:
		d.log.Warn("localhost node ports", zap.Error(err))
	case changed:
		d.log.Info("localhost node ports: the kernel now routes loopback addresses; our ruleset drops connections to them from other hosts",
			zap.String("sysctl", "net.ipv4.conf.all.route_localnet"), zap.Int("value", 1))
	}
	proxy, committed := localhost.NewProxy(ctx, d.log), settings.Committed
	settings.Committed = func(report proxysync.Report) {
		committed(report)
		proxy.Apply(report.Delta)
	}
}
