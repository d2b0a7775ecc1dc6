package daemon

import (
	"context"
	"net/http"
	"sync"
	"time"

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
	serving.Go(func() {
		select {
		case <-ctx.Done():
			return
		case <-feed.Synced:
		}
		for {
			delta := t.Take()
			if local, err := proxysync.Addresses(); err == nil {
				m.services.Apply(&delta, m.healthCheckAddresses(c.NodePorts.Reached(t.NodeAddresses(), local)))
			}
			select {
			case <-ctx.Done():
				return
			case <-queue.Bell():
			}
		}
	})
	return func() {
		cancel()
		serving.Wait()
	}
}

// An interim follows the tracker for the answers at health-check node ports, while the loop cannot
// begin: kube-proxy has not ended, or the kube-nft that handed its sockets over has not. What they
// programmed serves meanwhile. The loop's first Take gives what the interim took.
type interim struct {
	tracker *tracker.Tracker
	taken   tracker.Delta // of the goroutine that follows, then of the loop

	mu       sync.Mutex
	end      func() // nil if it never began
	finished bool
}

// begin follows the tracker until finish. It does nothing the second time, and after finish.
func (i *interim) begin(ctx context.Context, d *daemon) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.end != nil || i.finished {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	i.end = func() {
		cancel()
		following.Wait()
	}
	following.Go(func() {
		for {
			delta := i.tracker.Take()
			if local, err := proxysync.Addresses(); err == nil {
				d.monitor.services.Apply(&delta, d.monitor.healthCheckAddresses(d.config.NodePorts.Reached(i.tracker.NodeAddresses(), local)))
			}
			i.taken.Merge(delta)
			select {
			case <-ctx.Done():
				return
			case <-d.queue.Bell():
			case <-time.After(interimReview): // addresses of the node come and go, too
			}
		}
	})
}

// interimReview is the time after which an interim looks again though nothing has changed.
const interimReview = time.Second

// finish leaves the tracker to the loop.
func (i *interim) finish() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.finished = true
	if i.end != nil {
		i.end()
	}
}

// Take returns what the tracker has, and at first what the interim took of it.
func (i *interim) Take() tracker.Delta {
	newer := i.tracker.Take()
	if i.taken.Empty() {
		return newer
	}
	delta := i.taken
	i.taken = tracker.Delta{}
	delta.Merge(newer)
	delta.Due = newer.Due
	return delta
}
