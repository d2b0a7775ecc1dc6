package daemon

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/neighbours"
	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft/migrate"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/sync/flows"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// watchNeighbours notices other programs that harm Services until ctx ends.
func (s *syncer) watchNeighbours(ctx context.Context) {
	c, m := s.daemon.config, s.daemon.monitor
	w := &neighbours.Watch{Log: s.daemon.log,
		Pauses: s.daemon.replaces,
		Warn:   func(reason, text string) { m.events.Node(reason, "Watch", text) }}
	setRefusals := m.metrics.ForwardRefusals()
	if c.ServiceProxyName == "" { // with a name, another proxy belongs on this node
		setProxy := m.metrics.ForeignProxy()
		s.group.Go(func() error {
			return w.Proxy(ctx, c.HostProc, func(found bool) {
				setProxy(found)
				m.services.StandIn(found) // it has the health-check node ports until it ends
			})
		})
	}
	s.group.Go(func() error { return w.Forward(ctx, &s.sample, 1<<c.MasqueradeBit, setRefusals) })
}

// replaces reports whether a takeover deals with kube-proxy's rules, or is refused before kube-nft serves.
func (d *daemon) replaces() bool {
	state := d.takeover.progress().state
	return state == migrate.Replacing || state == migrate.Refused && !d.monitor.proxy.Ready()
}

// newEjection returns the watcher of endpoints that do not answer. It watches once it runs and a Service asks for it.
func (d *daemon) newEjection() *ejection.Watcher {
	lines := &quota.Quota{Interval: time.Minute, PerNamespace: 10, Total: 100, Exceeded: func(namespace string) {
		d.log.Warn("too many endpoints do not answer: the rest is not logged this minute",
			zap.String("namespace", namespace))
	}}
	return ejection.New(ejection.Options{
		Log: d.log, Committed: d.view,
		Open: func() (ejection.Table, error) { return conntrack.Open() },
		LeaveOut: func(id tracker.PortID, endpoints []netip.AddrPort) {
			d.tracker.LeaveOut(id, endpoints)
			d.queue.Notify()
		},
		Silent: d.tracker.Silent, CPUTime: proxysync.ThreadTime,
		Found: func(e ejection.Endpoint) {
			if lines.Allow(e.Port.Namespace, "") {
				d.log.Warn("an endpoint does not answer: new connections go to others", zap.Stringer("port", e.Port),
					zap.Stringer("endpoint", e.Endpoint), zap.Int("connections", e.Connections), zap.Int("clients", e.Clients),
					zap.Duration("tried_again_in", e.Until.Sub(e.Since)))
			}
			d.monitor.ejected(e)
		},
	})
}

// ejected records that an endpoint does not answer.
func (m *monitor) ejected(e ejection.Endpoint) {
	m.events.Service(e.Port.Namespace, e.Port.Service, tracker.PortID{}, "EndpointEjected", "Program",
		"endpoint "+e.Endpoint.String()+" gets no new connections from this node for a while: it does not answer, and other "+
			"endpoints of the Service do (kube-nft.io/eject)")
}

// endingsBuffer is what may wait for flow metrics: 16,000 connections that ended, or more.
const endingsBuffer = 16 << 20

// newFlows returns the counter of what connections to Services move.
func (d *daemon) newFlows() *flows.Counter {
	return flows.New(flows.Options{
		Log: d.log, Committed: d.view, CPUTime: proxysync.ThreadTime,
		Exists: func(s flows.Service) bool {
			_, ok := d.tracker.ServiceUID(s.Namespace, s.Name)
			return ok
		},
		Open:    func() (flows.Table, error) { return conntrack.Open() },
		Listen:  func() (flows.Endings, error) { return conntrack.Listen(endingsBuffer) },
		Account: func() error { return errors.Join(logSysctls(conntrack.Account(sysctlRoot), d.log)...) },
	})
}
