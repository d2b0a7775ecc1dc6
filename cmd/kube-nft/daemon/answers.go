package daemon

import (
	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
)

// answers returns the answers to commands.
func (d *daemon) answers() *peer.Answers {
	return &peer.Answers{
		Settings: func() (*config.Running, error) { return d.config.Running(started) },
		Status:   d.status,
	}
}

// Limits of what an answer lists of Services that a quota leaves out: with them it stays below 500 KB.
const (
	maxUnserved          = 200
	maxUnservedAddresses = 50
)

// status answers kube-nft status and kube-nft ready.
func (d *daemon) status() *peer.Status {
	s := d.monitor.status()
	s.NodeMissing = nodeMissing(d.tracker)()
	for _, u := range d.tracker.Unserved(maxUnserved) {
		s.Unserved = append(s.Unserved, peer.UnservedService{Namespace: u.Refusal.Namespace, Name: u.Refusal.Name,
			Reason: u.Refusal.Reason, Addresses: u.Addresses[:min(len(u.Addresses), maxUnservedAddresses)],
			NodePorts: u.NodePorts[:min(len(u.NodePorts), maxUnservedAddresses)]})
	}
	if draining := d.draining.Load(); draining != nil {
		s.Draining = *draining
	}
	select {
	case <-d.feed.Synced:
		s.Synced = true
	default:
	}
	waits, source, takeover := d.waits.Load(), s.SafetyCheck[peer.SafetySource], s.SafetyCheck[peer.SafetyTakeover]
	s.AwaitsProxy = d.awaitsProxy.Load()
	switch failure := d.feed.Failure(); {
	case s.Ready:
		s.WaitingFor = ""
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
