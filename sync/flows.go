package sync

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// flows is what the loop needs of *conntrack.Reconciler.
type flows interface {
	Clean(context.Context, []tracker.FlowChange, conntrack.Desired) (conntrack.Result, error)
	Full(context.Context, conntrack.Desired) (conntrack.Result, error)
}

// desired answers conntrack's questions from the ruleset.
type desired struct{ *Loop }

func (d desired) Endpoints(f tracker.Frontend) (allowed func(netip.AddrPort) bool, known bool) {
	at := nft.Frontend{Address: f.Address, Protocol: f.Protocol, Port: f.Port}
	if f.NodePort() {
		at.Address = netip.Addr{}
	}
	serving, known := d.ruleset.Serving(nft.Family(f.Family()), at)
	return func(ep netip.AddrPort) bool {
		_, ok := slices.BinarySearchFunc(serving, ep, netip.AddrPort.Compare)
		return ok
	}, known
}

func (d desired) ClusterIP(addr netip.Addr) bool { return d.ruleset.HasClusterIP(addr) }

func (d desired) ServiceCIDR(addr netip.Addr) bool { return d.ruleset.InServiceCIDR(addr) }

func (d desired) NodePortAddress(addr netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(d.nodePortAddrs, addr, netip.Addr.Compare)
	return ok
}

// changesOf says in the tracker's words what a commit changed.
func changesOf(noted []nft.FlowChange) []tracker.FlowChange {
	changes := make([]tracker.FlowChange, 0, len(noted))
	for _, c := range noted {
		at := tracker.Frontend{Address: c.Address, Protocol: c.Protocol, Port: c.Port}
		if !c.Address.IsValid() {
			at = tracker.NodePort(tracker.Family(c.Family), c.Protocol, c.Port)
		}
		changes = append(changes, tracker.FlowChange{Frontend: at, Removed: c.Removed, Gone: c.Gone, Appeared: c.Appeared})
	}
	return changes
}

// staleFlows are connections that commits have made stale and that are not cleaned up yet.
type staleFlows struct {
	all     bool // which ones is not known
	changes []tracker.FlowChange
}

// add takes in what a commit has made stale. Of one frontend there is one change, so that
// they do not pile up while connection tracking cannot be reached.
func (s *staleFlows) add(p *plan) {
	s.all = s.all || p.allFlows
	changes := changesOf(p.flows)
	if len(s.changes) == 0 {
		s.changes = changes
		return
	}
	for _, change := range changes {
		i := slices.IndexFunc(s.changes, func(c tracker.FlowChange) bool { return c.Frontend == change.Frontend })
		if i < 0 {
			s.changes = append(s.changes, change)
			continue
		}
		s.changes[i] = s.changes[i].Then(change)
	}
}

// clean removes the connections that the commit has made stale. What could not be done is
// done with the next commit.
func (l *Loop) clean(ctx context.Context, p *plan) FlowReport {
	if l.flows == nil {
		return FlowReport{}
	}
	l.stale.add(p)
	var report FlowReport
	report.Ran = l.stale.all || len(l.stale.changes) > 0
	changes := l.stale.changes
	if l.stale.all {
		report.add(l.flows.Full(ctx, desired{l}))
		changes = l.vanished(changes)
	}
	if len(changes) > 0 {
		report.add(l.flows.Clean(ctx, changes, desired{l}))
	}
	if report.Err != nil {
		if l.unclean.news(report.Err) {
			l.options.Log.Warn("stale connections may have stayed until the next commit", zap.Error(report.Err))
		}
		return report
	}
	l.stale, l.unclean = staleFlows{}, complaint{}
	return report
}

// vanished returns the changes of frontends that are not there any more: what was left of them
// cannot be told from connections of others without the change.
func (l *Loop) vanished(changes []tracker.FlowChange) (gone []tracker.FlowChange) {
	for _, change := range changes {
		if _, known := (desired{l}).Endpoints(change.Frontend); !known {
			gone = append(gone, change)
		}
	}
	return gone
}

// A FlowReport says what became of stale connections.
type FlowReport struct {
	Ran      bool // connections were looked at
	Deleted  map[tracker.Family]int
	Duration time.Duration
	Err      error
}

func (r *FlowReport) add(result conntrack.Result, err error) {
	if r.Deleted == nil {
		r.Deleted = make(map[tracker.Family]int)
	}
	r.Deleted[tracker.IPv4] += result.Deleted - result.Deleted6
	r.Deleted[tracker.IPv6] += result.Deleted6
	if err != nil {
		r.Err = err
	}
}
