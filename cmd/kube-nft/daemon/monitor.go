package daemon

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	clientmetrics "k8s.io/client-go/tools/metrics"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/events"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/legacy"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// A monitor shows to the outside what the daemon does: health, metrics and events.
type monitor struct {
	config   *config.Config
	log      *zap.Logger
	families []tracker.Family
	scraped  *kernel.Client // for scrapes; the sync loop has another one; nil in the shadow mode

	proxy    *health.Proxy
	services *health.Services
	metrics  *metrics.Metrics
	events   *events.Recorder
	safety   *safetyCheck
	servers  []*web.Server

	freed    sync.Once
	mu       sync.Mutex
	reported peer.Status // what the loop and the source have reported, for kube-nft status

	ineligible string // why load balancers should not send traffic here, as last logged; the loop's goroutine uses it

	// awaits says that a takeover may still wait for kube-proxy, which has the ports until it ends.
	awaits atomic.Bool
}

// openMonitor makes the monitor, which has not started. Events are recorded until ctx ends. flags are what /flagz
// shows.
func (d *daemon) openMonitor(ctx context.Context, flags map[string]string) (err error) {
	c, t := d.config, d.tracker
	m := &monitor{config: c, log: d.log, families: d.families}
	d.monitor = m // close closes it after an error
	if !c.Shadow {
		if m.scraped, err = kernel.Open(); err != nil {
			return err
		}
	}
	m.proxy = health.NewProxy(2*c.SyncPeriod, nodeOf(c, t), d.queue)
	m.services = health.NewServices(m.proxy.Healthy, m.healthCheckFailed, d.log)
	m.metrics = d.newMetrics(m)
	if c.Manifests == "" {
		clientmetrics.Register(m.metrics.CountRequests()) // before there is a client that may send one
		client, err := c.Client()
		if err != nil {
			return err
		}
		if m.events, err = events.Start(ctx, client, t, c.NodeName, d.log); err != nil {
			return err
		}
		m.events.NodeOnly = c.Shadow
	}
	m.safety = newSafetyCheck(d.log, m.events, m.metrics.SafetyCheck(safetyReasons))
	m.servers, err = m.newServers(flags)
	m.await(c.Takeover)
	return err
}

// await says whether a takeover may still wait for kube-proxy to end.
func (m *monitor) await(on bool) {
	m.awaits.Store(on)
	m.services.StandIn(on)
}

// run runs the servers until ctx ends, or one of them fails.
func (m *monitor) run(ctx context.Context) error {
	servers, ctx := errgroup.WithContext(ctx)
	for _, server := range m.servers {
		servers.Go(func() error { return server.Run(ctx) })
	}
	servers.Go(func() error { return m.services.Run(ctx) })
	return servers.Wait()
}

// listens reports whether all addresses and health-check node ports have been tried.
func (m *monitor) listens() bool {
	for _, server := range m.servers {
		if !server.Tried() {
			return false
		}
	}
	return m.config.Shadow || m.services.Tried() // kube-proxy has the ports of Services
}

// refused records a field of an object that could not be used.
func (m *monitor) refused(err error) {
	m.events.Refused(err)
	if field, ok := errors.AsType[*tracker.InvalidField](err); ok {
		m.metrics.Refused(field.Kind)
		m.count(func(s *peer.Status) { s.RefusedFields++ })
	}
}

// count changes what the daemon answers to kube-nft status.
func (m *monitor) count(change func(*peer.Status)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.reported)
}

// status returns what the monitor knows for kube-nft status.
func (m *monitor) status() *peer.Status {
	m.mu.Lock()
	s := m.reported
	m.mu.Unlock()
	s.Ready = m.proxy.Ready() && m.listens()
	s.Healthy, s.NodeEligible = m.proxy.Healthy(), m.proxy.Eligible()
	s.UnservedChecks = m.services.Unserved()
	s.SafetyCheck = m.safety.texts()
	return &s
}

func (m *monitor) healthCheckFailed(service health.Service, err error) {
	m.log.Error("cannot serve a health check node port", zap.Stringer("service", service), zap.Error(err))
	m.events.Service(service.Namespace, service.Name, tracker.PortID{}, "FailedToStartServiceHealthcheck", "Listen",
		err.Error())
}

// committed follows a commit of the sync loop. lengths and sent are as for metrics.Metrics.Committed.
func (m *monitor) committed(r *proxysync.Report, lengths map[nft.Family]map[string]int, sent kernel.Traffic) {
	m.freed.Do(func() { go debug.FreeOSMemory() }) // a start leaves garbage, which Go would return over minutes
	m.proxy.Updated(r.Taken)
	m.count(func(s *peer.Status) {
		s.LastSync = time.Now().UTC().Truncate(time.Millisecond)
		s.Syncs++
		if r.ReviewReason != "" {
			s.Reviews++
			if r.Operations > 0 {
				s.Repairs++
			}
		}
		s.Conflicts, s.SkippedPorts, s.UnmetAnnotations = r.Standing, r.SkippedPorts, r.StandUnmet
		s.UnservedServices, s.WaitingServices = r.Delta.Unserved, r.Delta.Waiting
	})
	m.metrics.Committed(r, lengths, sent)
	if !m.config.Shadow { // kube-proxy has the ports
		m.services.Apply(&r.Delta, m.healthCheckAddresses(r.NodePorts))
	}
	m.recordReport(r)
	m.logNode(r.Delta.Node)
}

// logNode logs that the Node was deleted, and what makes load balancers look elsewhere. node is nil if the Node
// has not changed.
func (m *monitor) logNode(node *tracker.Node) {
	if node == nil {
		return
	}
	if node.Gone {
		m.config.WarnNodeGone(m.log)
	}
	if node.Ineligible == m.ineligible {
		return
	}
	if m.ineligible = node.Ineligible; m.ineligible != "" {
		m.log.Warn("/healthz returns 503: node not eligible", zap.String("node", node.Name),
			zap.String("reason", m.ineligible))
	} else {
		m.log.Info("the node is eligible again for load balancers", zap.String("node", node.Name))
	}
}

// failed counts a sync that failed.
func (m *monitor) failed(err error) {
	m.metrics.Failed(err)
	m.count(func(s *peer.Status) {
		s.SyncFailures++
		s.WaitingFor = "a commit that the kernel accepts: " + err.Error()
	})
}

// serviceSkipped records that the kernel refuses a Service; a nil error, that it accepts it.
func (m *monitor) serviceSkipped(namespace, service string, err error) {
	if err != nil {
		m.events.Service(namespace, service, tracker.PortID{}, "ServiceSkipped", "Program",
			"the kernel refuses this Service, which stays as it was last committed on this node: "+err.Error())
	}
}

// recordReport records the parts of a sync that concern people.
func (m *monitor) recordReport(r *proxysync.Report) {
	for _, c := range r.Conflicts {
		m.events.Service(c.Loser.Namespace, c.Loser.Service, c.Winner, "FrontendConflict", "Program", c.String())
	}
	for _, o := range r.Delta.OverQuota {
		m.events.Service(o.Namespace, o.Name, tracker.PortID{}, "ServiceUnserved", "Program", o.Error())
	}
	for _, u := range r.Unmet {
		m.events.Service(u.ID.Namespace, u.ID.Service, tracker.PortID{}, "AnnotationUnmet", "Program", u.Error())
	}
	if r.ReviewReason != "" && r.Operations > 0 {
		m.events.Node("TablesRepaired", "Program",
			"kube-nft repaired its nftables tables: "+r.ReviewReason)
	}
}

// applyHealthChecks brings the answers at health-check node ports up to date with what a tracker has told.
func (m *monitor) applyHealthChecks(delta *tracker.Delta, t *tracker.Tracker) {
	if local, err := legacy.InterfaceAddresses(); err == nil {
		m.services.Apply(delta, m.healthCheckAddresses(m.config.NodePorts.Reached(t.NodeAddresses(), local)))
	}
}

// healthCheckAddresses returns where health-check node ports are served: at the addresses of node
// ports; or at all addresses of a family, if the family's node ports are served at all of them.
func (m *monitor) healthCheckAddresses(nodePorts []netip.Addr) (addrs []netip.Addr) {
	for _, family := range m.families {
		switch {
		case !m.config.NodePorts.All(family):
			addrs = append(addrs, tracker.OfFamily(nodePorts, family)...)
		case family == tracker.IPv4:
			addrs = append(addrs, netip.IPv4Unspecified())
		default:
			addrs = append(addrs, netip.IPv6Unspecified())
		}
	}
	return addrs
}

// nodeMissing reports whether there is no object of this node.
func nodeMissing(t *tracker.Tracker) bool {
	node := t.Node()
	return node == nil || node.Gone
}

// nodeOf returns the Node whose state /healthz reports. Manifests need not have Node objects:
// without one, /healthz says nothing of its deletion.
func nodeOf(c *config.Config, t *tracker.Tracker) func() *tracker.Node {
	if c.Manifests == "" {
		return t.Node
	}
	unnamed := &tracker.Node{Name: c.NodeName}
	return func() *tracker.Node { return cmp.Or(t.Node(), unnamed) }
}
