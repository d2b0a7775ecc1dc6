package sync

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// flows is what the loop needs of *conntrack.Reconciler.
type flows interface {
	Clean(context.Context, []tracker.FlowChange, conntrack.Desired) (conntrack.Result, error)
	Full(context.Context, conntrack.Desired) (conntrack.Result, error)
}

// staleFlows are connections that commits have made stale and that are not cleaned up yet. It
// answers conntrack's questions from the ruleset.
type staleFlows struct {
	flows     // nil leaves connections alone
	ruleset   *services.Ruleset
	nodePorts *nodePorts
	log       *zap.Logger
	logged    string // the latest complaint: one that goes on is not repeated

	all     bool // which ones is not known
	changes []tracker.FlowChange
}

// Endpoints implements conntrack.Desired.
func (s *staleFlows) Endpoints(f tracker.Frontend) (allowed func(netip.AddrPort) bool, known bool) {
	serving, known := s.ruleset.Serving(f)
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
func (s *staleFlows) add(changes []tracker.FlowChange, all bool) {
	s.all = s.all || all
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
	changes := s.changes
	if s.all {
		// A look at all connections does not know those of a frontend that is not there any
		// more from connections of others.
		changes = slices.DeleteFunc(slices.Clone(changes), func(c tracker.FlowChange) bool {
			_, known := s.ruleset.Serving(c.Frontend)
			return known
		})
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
