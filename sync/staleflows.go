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
	Clean(context.Context, []conntrack.Change, conntrack.Desired) (conntrack.Result, error)
	Full(context.Context, conntrack.Desired) (conntrack.Result, error)
}

// staleFlows are connections that commits have made stale and that are not cleaned up yet. It
// answers conntrack's questions from the ruleset.
type staleFlows struct {
	flows     // nil leaves connections alone
	ruleset   *nft.Ruleset
	nodePorts *nodePorts
	log       *zap.Logger
	logged    string // the latest complaint: one that goes on is not repeated

	all     bool // which ones is not known
	changes []nft.FlowChange
}

// Endpoints implements conntrack.Desired.
func (s *staleFlows) Endpoints(f conntrack.Frontend) (allowed func(netip.AddrPort) bool, known bool) {
	at := nft.Frontend{Address: f.Address, Protocol: f.Protocol, Port: f.Port}
	if f.IsNodePort() {
		at.Address = netip.Addr{}
	}
	serving, known := s.ruleset.Serving(nft.Family(tracker.FamilyOf(f.Address)), at)
	return func(ep netip.AddrPort) bool {
		_, ok := slices.BinarySearchFunc(serving, ep, netip.AddrPort.Compare)
		return ok
	}, known
}

// ClusterIP implements conntrack.Desired.
func (s *staleFlows) ClusterIP(addr netip.Addr) bool { return s.ruleset.HasClusterIP(addr) }

// ServiceCIDR implements conntrack.Desired.
func (s *staleFlows) ServiceCIDR(addr netip.Addr) bool { return s.ruleset.InServiceCIDR(addr) }

// NodePortAddress implements conntrack.Desired.
func (s *staleFlows) NodePortAddress(addr netip.Addr) bool {
	_, ok := slices.BinarySearchFunc(s.nodePorts.reached, addr, netip.Addr.Compare)
	return ok
}

// add takes in what a commit has made stale; all says that it may be any connection. Of one
// frontend there is one change, so that they do not pile up while connection tracking cannot
// be reached.
func (s *staleFlows) add(changes []nft.FlowChange, all bool) {
	s.all = s.all || all
	if len(s.changes) == 0 {
		s.changes = changes
		return
	}
	for _, change := range changes {
		i := slices.IndexFunc(s.changes, func(c nft.FlowChange) bool { return c.Family == change.Family && c.Frontend == change.Frontend })
		if i < 0 {
			s.changes = append(s.changes, change)
			continue
		}
		s.changes[i] = s.changes[i].Then(change)
	}
}

// clean removes the connections that commits have made stale. What could not be done is done
// with the next commit.
func (s *staleFlows) clean(ctx context.Context) (report FlowReport) {
	if s.flows == nil || !s.all && len(s.changes) == 0 {
		return report
	}
	report.Ran = true
	if s.all {
		report.add(s.Full(ctx, s))
	}
	var changes []conntrack.Change
	for _, c := range s.changes {
		// A look at all connections does not know those of a frontend that is not there any
		// more from connections of others.
		if _, known := s.ruleset.Serving(c.Family, c.Frontend); known && s.all {
			continue
		}
		at := conntrack.Frontend{Address: c.Address, Protocol: c.Protocol, Port: c.Port}
		if !c.Address.IsValid() {
			at = conntrack.NodePort(tracker.Family(c.Family), c.Protocol, c.Port)
		}
		changes = append(changes, conntrack.Change{Frontend: at, Removed: c.Removed, Gone: c.Gone, Appeared: c.Appeared})
	}
	if len(changes) > 0 {
		report.add(s.Clean(ctx, changes, s))
	}
	if report.Err == nil {
		s.all, s.changes, s.logged = false, nil, ""
	} else if text := report.Err.Error(); text != s.logged {
		s.logged = text
		s.log.Warn("stale connections may have stayed until the next commit", zap.Error(report.Err))
	}
	return report
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
