package services

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// connections are what a program means for connections.
type connections struct {
	serving       tracker.Served
	sources       tracker.Memory[netip.Prefix] // who may connect; zero: every client
	takes         uint8
	serves, reset bool
}

func (s *program) connections() connections {
	return connections{s.serving, tracker.MemoryOf(s.sources), s.takes(), s.serves(), s.reset}
}

// sameConnections reports whether s and o mean the same for connections.
func (s *program) sameConnections(o *program) bool {
	return s.serving.Same(o.serving) && tracker.SameMemory(s.sources, o.sources) && s.takes() == o.takes() &&
		s.serves() == o.serves() && s.reset == o.reset
}

// takes says whose packets do not go where they would go without the frontend, because they are translated or refused:
// 0 no client's, 1 those of pods and of the node, 2 all.
func (s *program) takes() uint8 {
	switch {
	case s.policy.Kind == 0 || s.policy.Kind == layout.Passed:
		return 0
	case s.policy.Router:
		return 1
	}
	return 2
}

// serves reports whether connections are translated.
func (s *program) serves() bool { return s.policy.Kind != 0 && s.serving.Len() > 0 }

// FlowChanges returns what the changes since Committed mean for connections, unsorted: there may be 100,000. Those of
// TCP and SCTP end by themselves when their endpoint does, unless the Service asks for their reset. With a frontend
// that goes they are left alone: no endpoint would answer their next segment.
func (r *Ruleset) FlowChanges() (changes []tracker.FlowChange) {
	for _, family := range r.families {
		memo, removed := make(tracker.Memo), []tracker.Served{{}}
		for i, state := range family.touchedFrontends {
			have, now := state.before, state.shown.connections()
			change := tracker.FlowChange{Frontend: state.Frontend, Gone: now.serving.Len() == 0,
				Appeared: now.takes > have.takes || now.serves && !have.serves, Reset: now.reset && !have.reset}
			if state.Protocol == tracker.UDP || now.reset {
				gone := have.serving.Without(now.serving, memo)
				if !gone.Same(removed[0]) { // mostly frontends of a port have lost the same endpoints
					removed = []tracker.Served{gone}
				}
				if gone.Len() > 0 {
					change.Removed = removed
				}
			}
			if change.Appeared || change.Reset || len(change.Removed) > 0 ||
				state.Protocol == tracker.UDP && state.shown.sources != nil && now.sources != have.sources {
				changes = append(slices.Grow(changes, len(family.touchedFrontends)-i), change)
			}
		}
	}
	return changes
}

// Vanished returns the UDP frontends that the kernel's tables have and that are not wanted,
// with the endpoints that they have there: what happened while no daemon ran. The tables do not list
// draining endpoints. No other program uses a cluster IP, so that all flows to one of them have gone; at
// other addresses another program may translate.
func (r *Ruleset) Vanished(have nft.Tables) (changes []tracker.FlowChange) {
	for _, f := range r.config.Families {
		if table := have[f]; table != nil {
			changes = append(changes, r.families[f].vanished(readback.New(table))...)
		}
	}
	return changes
}

func (fr *familyRules) vanished(have *readback.Table) (changes []tracker.FlowChange) {
	sorted, memo := make(map[*netip.AddrPort][]netip.AddrPort), make(tracker.Memo)
	removed := func(l readback.List) (change tracker.FlowChange) {
		if l.Len() == 0 {
			return change
		}
		first := &l.Endpoints[0]
		if sorted[first] == nil {
			sorted[first] = slices.SortedFunc(slices.Values(l.Endpoints), netip.AddrPort.Compare)
		}
		change.Removed = []tracker.Served{{List: sorted[first], Port: l.Port}}
		return change
	}
	for _, set := range []string{layout.ServicesMap, layout.NodePortsMap} {
		for key, element := range have.Elements(set) {
			f := layout.FrontendIn(fr.Table.Family, set, key)
			if f.Protocol != tracker.UDP || fr.frontends[f] != nil {
				continue
			}
			change := tracker.FlowChange{Frontend: f, Gone: true}
			if gone := have.FrontendAt(set, key, element); gone.Kind != readback.KindClusterIP {
				change = removed(gone.Cluster).Then(removed(gone.Local), memo).Then(change, memo)
			}
			changes = append(changes, change)
		}
	}
	return changes
}

// A Reached says what is reached at a frontend.
type Reached struct {
	Port    tracker.PortID // which has the frontend; zero if none has
	Serving tracker.Served // the endpoints that may go on serving connections
	Sources []netip.Prefix // who may connect, see tracker.PortSpec.Sources; nil: every client
	// Reset says that connections of TCP and SCTP end when their endpoint stops serving.
	Reset bool
}

// HasClusterIP reports whether addr is the cluster IP of a Service.
func (r *Ruleset) HasClusterIP(addr netip.Addr) bool {
	family := r.families[tracker.FamilyOf(addr)]
	if family == nil {
		return false
	}
	_, ok := family.Table.Sets[layout.ClusterIPsSet].Map[nft.AddrKey(addr)]
	return ok
}

// ServiceCIDRs returns the ranges of the Service CIDRs in the families that are served.
func (r *Ruleset) ServiceCIDRs() []netip.Prefix { return r.serviceCIDRs }

// TouchedFrontends returns the frontends that have come, gone or got other endpoints since Committed, and what is
// reached there now. Of one that comes more than once the last value counts.
func (r *Ruleset) TouchedFrontends() iter.Seq2[tracker.Frontend, Reached] {
	return func(yield func(tracker.Frontend, Reached) bool) {
		for _, family := range r.families {
			for _, state := range family.touchedFrontends {
				s := &state.shown
				if !yield(state.Frontend, Reached{Port: s.id, Serving: s.serving, Sources: s.sources, Reset: s.reset}) {
					return
				}
			}
		}
	}
}

// TouchedClusterIPs returns the addresses for which HasClusterIP may answer otherwise since
// Committed, some of them more than once.
func (r *Ruleset) TouchedClusterIPs() (addrs []netip.Addr) {
	for _, family := range r.families {
		addrs = append(addrs, family.touchedClusterIPs...)
	}
	return addrs
}
