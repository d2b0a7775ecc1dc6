package daemon

import (
	"time"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// answers returns the answers to commands.
func (d *daemon) answers() *peer.Answers {
	return &peer.Answers{
		Settings: func() (*config.Running, error) { return d.config.Running(started) },
		Status:   d.status,
		Metrics:  d.monitor.metrics.Handler(d.log),
	}
}

// Limits of what an answer lists of Services that a quota leaves out: with them it stays below 500 KB.
const (
	maxUnserved          = 200
	maxUnservedAddresses = 50
	// maxEjected is how many endpoints that do not answer it lists.
	maxEjected = 1000
)

// status answers kube-nft status and kube-nft ready.
func (d *daemon) status() *peer.Status {
	s := d.monitor.status()
	s.NodeMissing, s.Shadow = nodeMissing(d.tracker), d.shadow.Status()
	for _, u := range d.tracker.Unserved(maxUnserved) {
		s.Unserved = append(s.Unserved, peer.UnservedService{Namespace: u.Namespace, Name: u.Name,
			Reason: u.Reason, Addresses: u.Addresses[:min(len(u.Addresses), maxUnservedAddresses)],
			NodePorts: u.NodePorts[:min(len(u.NodePorts), maxUnservedAddresses)]})
	}
	ejected := d.ejection.Endpoints()
	s.EjectedEndpoints = len(ejected)
	for _, e := range ejected[:min(len(ejected), maxEjected)] {
		s.Ejected = append(s.Ejected, peer.EjectedEndpoint{Namespace: e.Port.Namespace, Name: e.Port.Service,
			Port: e.Port.Port, Endpoint: e.Endpoint, Since: e.Since.UTC().Truncate(time.Millisecond),
			Until: e.Until.UTC().Truncate(time.Millisecond), Times: e.Times})
	}
	if d.flows != nil {
		s.FlowMetrics = new(d.flows.State())
	}
	select {
	case <-d.feed.Synced:
		s.Synced = true
	default:
	}
	waits, source, takeover := d.waits.Load(), s.SafetyCheck[peer.SafetySource], s.SafetyCheck[peer.SafetyTakeover]
	switch at := d.takeover.progress(); at.state {
	case migrate.Waiting:
		s.AwaitsProxy, waits = true, new("a running kube-proxy to end: "+at.awaits)
	case migrate.Draining:
		s.Draining = at.awaits
	}
	switch failure := d.feed.Failure(); {
	case s.Ready:
		s.WaitingFor = ""
	case d.monitor.proxy.Ready():
		s.WaitingFor = "its ports for health checks and metrics to open"
	case !s.Synced && failure != nil:
		s.WaitingFor = "the API server: " + failure.Error()
	case waits != nil:
		s.WaitingFor = *waits
	case takeover != "":
		s.WaitingFor = "a source that has what kube-proxy serves: " + takeover
	case source != "":
		s.WaitingFor = "a source that has what our tables serve: " + source
	}
	return s
}
