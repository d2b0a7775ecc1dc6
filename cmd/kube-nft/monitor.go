package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime/debug"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/kube-nft/kube-nft/nft"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// A monitor shows from outside what the daemon does: health, metrics and events.
type monitor struct {
	options  *options
	log      *zap.Logger
	families []tracker.Family
	scraped  *nft.Kernel // for scrapes, beside the sync loop's
	counted  *nft.Kernel // for scrapes of counters; nil without

	proxy    *health.Proxy
	services *health.Services
	metrics  *metrics.Metrics
	events   *events
	servers  []*web.Server
}

// newMonitor returns a monitor that has not started. Events are recorded until ctx ends.
func newMonitor(ctx context.Context, o *options, t *tracker.Tracker, families []nft.Family, queue *proxysync.Queue, log *zap.Logger) (m *monitor, err error) {
	m = &monitor{options: o, log: log}
	for _, family := range families {
		m.families = append(m.families, tracker.Family(family))
	}
	if m.scraped, err = nft.Open(); err != nil {
		return nil, err
	}
	m.proxy = health.NewProxy(2*o.SyncPeriod, o.nodeOf(t), queue)
	m.services = health.NewServices(m.proxy.Healthy, m.healthCheckFailed, log)
	build, _ := debug.ReadBuildInfo()
	m.metrics = metrics.New(metrics.Config{
		Families: m.families, Changes: t.Changes, Queue: queue, Unserved: m.services.Unserved, Kernel: m.scraped, Build: build,
	})
	if err := m.countConnections(); err != nil {
		return nil, errors.Join(err, m.scraped.Close())
	}
	if o.Manifests == "" {
		clientmetrics.Register(m.metrics.CountRequests()) // before there is a client that may ask
		if m.events, err = o.recordEvents(ctx, t, log); err != nil {
			m.close()
			return nil, err
		}
	}
	if m.servers, err = o.servers(m.proxy, m.metrics, m.events, log); err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// run starts the servers.
func (m *monitor) run(ctx context.Context, group *errgroup.Group) {
	m.events.node(normal, "Starting", "StartProxy", "")
	for _, server := range m.servers {
		group.Go(func() error { return server.Run(ctx) })
	}
	group.Go(func() error { return m.services.Run(ctx) })
}

// countConnections shows the kernel's counters of connections, if it counts. They are read over
// a socket of their own: scrapes gather all collectors at the same time.
func (m *monitor) countConnections() (err error) {
	if !m.options.ConnectionCounters {
		return nil
	}
	if m.counted, err = nft.Open(); err != nil {
		return err
	}
	m.metrics.CountConnections(m.counted, m.options.EndpointCounters)
	return nil
}

// close gives up the sockets of scrapes, which must have ended.
func (m *monitor) close() {
	m.scraped.Close()
	if m.counted != nil {
		m.counted.Close()
	}
}

// refused notes a field of an object that could not be used.
func (m *monitor) refused(err error) {
	m.events.refused(err)
	var refusal *tracker.Refusal
	if errors.As(err, &refusal) {
		m.metrics.Refused(refusal.Kind)
	}
}

func (m *monitor) healthCheckFailed(service health.Service, err error) {
	m.log.Error("health check node port", zap.Stringer("service", service), zap.Error(err))
	m.events.service(service.Namespace, service.Name, tracker.PortID{}, "FailedToStartServiceHealthcheck", "Listen", err.Error())
}

// watch makes the loop's options report to the monitor. The ruleset and the kernel are those
// of the loop, on whose goroutine they are looked at.
func (m *monitor) watch(options *proxysync.Options, ruleset *nft.Ruleset, kernel *nft.Kernel) {
	options.Failed = m.metrics.Failed
	options.Refused = func(id tracker.PortID, err error) {
		if err != nil {
			m.events.service(id.Namespace, id.Service, tracker.PortID{}, "PortRefused", "Program", fmt.Sprintf("port %s is left out on this node: %v", id, err))
		}
	}
	options.Committed = func(r proxysync.Report) {
		m.proxy.Updated(r.Taken)
		m.metrics.Committed(&r, ruleset.Lengths(), kernel.Sent())
		m.services.Apply(&r.Delta, m.healthCheckAddresses(r.NodePorts))
		m.recordReport(&r)
	}
}

// start says that the loop is about to start.
func (m *monitor) start() { m.proxy.Start(m.families) }

// recordReport records what of a sync concerns people.
func (m *monitor) recordReport(r *proxysync.Report) {
	for _, c := range r.Conflicts {
		m.events.service(c.Loser.Namespace, c.Loser.Service, c.Winner, "FrontendConflict", "Program", c.String())
	}
	if r.Distrust != "" && r.Operations > 0 {
		m.events.node(warning, "TablesRepaired", "Program", "the nftables tables of kube-nft differed from what they should be and were repaired: "+r.Distrust)
	}
}

// healthCheckAddresses returns where health-check node ports are served: at the addresses of
// node ports, or at all addresses of a family that serves node ports at all of them.
func (m *monitor) healthCheckAddresses(nodePorts []netip.Addr) (addrs []netip.Addr) {
	for _, family := range m.families {
		switch {
		case !m.options.NodePorts.All(family):
			for _, addr := range nodePorts {
				if tracker.FamilyOf(addr) == family {
					addrs = append(addrs, addr)
				}
			}
		case family == tracker.IPv4:
			addrs = append(addrs, netip.IPv4Unspecified())
		default:
			addrs = append(addrs, netip.IPv6Unspecified())
		}
	}
	return addrs
}
