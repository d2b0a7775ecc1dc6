package services

import (
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// manyPlaces is from how many elements of direct lists on, frontends times places, a Service port has shared lists. It
// has them until they would be half of that, so that an endpoint that comes and goes does not move them each time.
// Random tests lower it.
var manyPlaces = tracker.JointFrom

// shares reports whether a Service port is to have shared lists.
func (p *portState) shares() bool {
	places := len(p.frontends) * (p.cluster.Len() + p.local.Len())
	return places >= manyPlaces || p.list != nil && places >= manyPlaces/2
}

// setList gives a Service port shared lists with its endpoints, or takes them away.
func (fr *familyRules) setList(port *portState, shared bool) {
	switch {
	case shared:
		if port.list == nil {
			port.list = fr.lists.NewShared(port.current.ID)
		}
		fr.lists.SetShared(port.list, port.comment, port.cluster, port.local)
	case port.list != nil:
		fr.lists.RemoveShared(port.list)
		port.list = nil
	}
}

// listNumber is the number of the lists that all frontends of a Service port share; 0 if each has lists of its own.
func (p *portState) listNumber() uint32 {
	if p.joint != nil {
		return p.joint.Number
	}
	if p.list != nil {
		return p.list.Number
	}
	return 0
}

// adoptLists returns the order in which the kernel has the endpoints of a Service port that is new to
// the ruleset; nil if Adopt was not called. All frontends of the port share one order. shared is what is known of the
// shared lists that the port had; nil if there are none.
func (fr *familyRules) adoptLists(p *tracker.ServicePort) (shared *lists.Shared, cluster, local []netip.AddrPort) {
	if fr.adopted == nil {
		return nil, nil, nil
	}
	frontends := frontendsOf(p)
	if len(frontends)*(len(p.Cluster)+len(p.Local)) >= manyPlaces/2 || p.Settings.Maglev || p.Weighted() {
		shared, cluster, local = fr.lists.AdoptShared(p.ID, fr.readAdopted())
	}
	for _, wanted := range frontends {
		f, key := wanted.Frontend, layout.FrontendKeyOf(wanted.Frontend)
		if _, ok := fr.adoptedElement(p.ID, f); !ok {
			continue
		}
		if cluster == nil {
			cluster = fr.adopted.Sets[layout.EndpointsMapOf(f, false)].List(key)
		}
		if local == nil {
			local = fr.adopted.Sets[layout.EndpointsMapOf(f, true)].List(key)
		}
	}
	return shared, cluster, local
}

// adoptedElement is the element that the kernel had at start for a frontend. ok says that it was this Service port's,
// as its comment shows.
func (fr *familyRules) adoptedElement(id tracker.PortID, f tracker.Frontend) (e nft.Element, ok bool) {
	e = fr.adopted.Elements(layout.VerdictMap(f.NodePort()))[layout.FrontendKeyOf(f)]
	return e, layout.NameIn(e.Comment) == layout.Comment(id)
}

// readAdopted is what the kernel held at start, seen as Services.
func (fr *familyRules) readAdopted() readback.Table {
	if fr.adoptedView == nil {
		fr.adoptedView = readback.New(fr.adopted)
	}
	return *fr.adoptedView
}

// stagedFrom is from how many differing elements on a change of a slot table is staged. Tests lower it.
var stagedFrom = tracker.CommitElements

// Unfinished reports whether the next call of Apply has more to do, whatever delta it gets: a long slot table is being
// written or removed, or many frontends go to others.
func (r *Ruleset) Unfinished() bool {
	for _, family := range r.families {
		if family.lists.Unfinished() || len(family.givingWay) > 0 {
			return true
		}
	}
	return false
}
