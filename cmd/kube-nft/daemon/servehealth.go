package daemon

import (
	"context"
	"net/http"
	"sync"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// ServeHealth answers health checks in place of kube-proxy as soon as that one lets their ports go,
// until the caller stops it, so that the end of kube-proxy is no gap for load balancers while its
// rules serve on and are replaced. It follows the source for that. What it cannot do is not worth a
// word: the takeover does not depend on it.
func ServeHealth(ctx context.Context, c *config.Config) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	log, queue := zap.NewNop(), proxysync.NewQueue()
	t := tracker.New(c.Tracker())
	feed, err := c.NewFeed(t, queue.Ring, func(error) {}, nil, log)
	if err != nil {
		return cancel
	}
	m := &monitor{config: c, log: log, families: tracker.Families[:], proxy: health.NewProxy(2*c.SyncPeriod, nodeOf(c, t), queue)}
	m.services = health.NewServices(m.proxy.Healthy, func(health.Service, error) {}, log)
	m.services.StandIn(true)
	var serving sync.WaitGroup
	if c.Healthz.IsValid() {
		mux := http.NewServeMux()
		mux.HandleFunc("/healthz", m.proxy.Healthz)
		mux.HandleFunc("/livez", m.proxy.Livez)
		server := &web.Server{Address: c.Healthz.String(), Handler: mux, After: feed.Synced, Log: log}
		serving.Go(func() { server.Run(ctx) })
	}
	serving.Go(func() { m.services.Run(ctx) })
	go feed.Run(ctx) // may take long to give up
	source := &interim{tracker: t, bell: queue.Bell(), follow: func(delta *tracker.Delta) { m.applyHealthChecks(delta, t) }}
	serving.Go(func() {
		select {
		case <-ctx.Done():
		case <-feed.Synced:
			source.begin(ctx)
		}
	})
	return func() {
		cancel()
		serving.Wait()
		source.finish()
	}
}
