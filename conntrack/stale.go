package conntrack

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/tracker"
)

// Desired answers what should exist after the latest commit. Lookups are made for every
// flow that the kernel reports, so they should cost no more than a map access. The answers
// may change from one to the next, when a commit overtakes the clean-up.
type Desired interface {
	// Endpoints returns which endpoints may go on serving flows to frontend: all serving ones,
	// whatever the policies. known is false if no Service is reached at frontend.
	Endpoints(frontend tracker.Frontend) (allowed func(netip.AddrPort) bool, known bool)
	// Admits reports whether the source ranges of frontend, if it has some, contain a client.
	Admits(frontend tracker.Frontend, client netip.Addr) bool
	// Resets reports whether connections of TCP and SCTP to frontend end when their endpoint stops
	// serving. AnyResets reports whether those to any frontend do.
	Resets(frontend tracker.Frontend) bool
	AnyResets() bool
	// ClusterIP reports whether addr is a cluster IP of a Service handled here.
	ClusterIP(addr netip.Addr) bool
	// ServiceCIDR reports whether addr is within a Service CIDR.
	ServiceCIDR(addr netip.Addr) bool
	// NodePortAddress reports whether node ports are reached at addr.
	NodePortAddress(addr netip.Addr) bool
}

// lookUp is tracker.LookUp for a flow.
func lookUp[T any](flow *Flow, desired Desired, find func(tracker.Frontend) (T, bool)) (T, bool) {
	return tracker.LookUp(flow.Original.Destination, flow.Original.Protocol, desired.NodePortAddress, find)
}

// serving returns a flow's frontend, and whether the flow may go on there: the frontend has its endpoint, and admits
// its client.
func serving(flow *Flow, desired Desired) (at tracker.Frontend, goesOn, known bool) {
	allowed, known := lookUp(flow, desired, func(f tracker.Frontend) (func(netip.AddrPort) bool, bool) {
		at = f
		return desired.Endpoints(f)
	})
	return at, known && allowed(flow.Endpoint()) && admitted(flow, at, desired), known
}

// stale reports whether flow contradicts desired, whatever changed when. A translated flow
// to an address or node port that is not ours belongs to another program. Addresses of a Service CIDR
// are ours, with a Service or without: a new flow to an unused one would be dropped.
func stale(flow *Flow, desired Desired) bool {
	addr := flow.Original.Destination.Addr()
	if at, goesOn, known := serving(flow, desired); known {
		return (isUDP(flow) || flow.Bypasses() || resets(flow, at, desired)) && !goesOn
	}
	return (flow.Bypasses() || isUDP(flow) && flow.Translated()) && (desired.ClusterIP(addr) || desired.ServiceCIDR(addr))
}

// isUDP limits cuts to UDP when an endpoint stops serving. Connections of TCP and SCTP end on their
// own, and their endpoint may still be finishing them.
func isUDP(flow *Flow) bool { return flow.Original.Protocol == tracker.UDP }

// admitted reports whether a flow at this frontend may go on although the source ranges may have changed. Rules see no
// packet of a UDP flow after the first one. One that nothing answers may be a flood from a client that is not admitted
// any more; answered ones go on, as with kube-proxy.
func admitted(flow *Flow, at tracker.Frontend, desired Desired) bool {
	return !isUDP(flow) || flow.Status&SeenReply != 0 || desired.Admits(at, flow.Original.Source.Addr())
}

// resets reports whether a flow at this frontend ends when its endpoint stops serving, although it is
// none of UDP: the Service asked for that. Without its entry, the client's next segment is the first
// packet of a connection to another endpoint, which resets it.
func resets(flow *Flow, at tracker.Frontend, desired Desired) bool {
	return !isUDP(flow) && flow.Translated() && desired.Resets(at)
}

// changeSet is a commit's changes, ready for lookups.
type changeSet struct {
	changes  map[tracker.Frontend]*tracker.FlowChange
	appeared map[netip.Addr]bool // addresses of the frontends that appeared
	desired  Desired
}

func newChangeSet(changes []tracker.FlowChange, desired Desired) *changeSet {
	s := &changeSet{
		changes:  make(map[tracker.Frontend]*tracker.FlowChange, len(changes)),
		appeared: make(map[netip.Addr]bool),
		desired:  desired,
	}
	for i := range changes {
		change := &changes[i]
		s.changes[change.Frontend] = change
		if change.Appeared && !change.NodePort() {
			s.appeared[change.Address] = true
		}
	}
	return s
}

// stale reports whether the changes made flow stale.
func (s *changeSet) stale(flow *Flow) bool {
	change, _ := lookUp(flow, s.desired, func(f tracker.Frontend) (*tracker.FlowChange, bool) {
		change, changed := s.changes[f]
		return change, changed
	})
	at, goesOn, known := serving(flow, s.desired)
	switch {
	case goesOn:
		return false
	case change != nil && known:
		return isUDP(flow) || change.Appeared && flow.Bypasses() || resets(flow, at, s.desired)
	case change != nil && orphans(change, flow):
		return true
	}
	// A flow that bypasses a cluster IP at which a frontend has just appeared: our rules now reject packets to its other
	// ports.
	addr := flow.Original.Destination.Addr()
	return s.appeared[addr] && flow.Bypasses() && s.desired.ClusterIP(addr)
}

// orphans reports whether flow was a flow of the changed frontend, which is gone: with the
// change, or with a later one that has overtaken it. At a node port that no Service has now,
// any program may translate: its endpoint must be one that we know.
func orphans(c *tracker.FlowChange, flow *Flow) bool {
	if !isUDP(flow) || !flow.Translated() {
		return false
	}
	if len(c.Removed) == 0 {
		return c.Gone && !c.NodePort()
	}
	return slices.ContainsFunc(c.Removed, func(s tracker.Served) bool { return s.Has(flow.Endpoint()) })
}
