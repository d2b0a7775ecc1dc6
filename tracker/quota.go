package tracker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/kube-nft/kube-nft/nft/maglev"
)

// Config.Quota bounds what the Services of one namespace may ask of a node: its memory, and the time that a change
// takes. The unit is an element of a set or map. If a namespace asks for more, its oldest Services are served, and
// those that do not fit are not. So an object that comes later takes nothing from one that is served, and all
// nodes serve the same.
//
// A frontend counts as frontendElements: whenever a frontend gets another verdict, the kernel takes a step for each
// frontend of all Services. A port of a Service with session affinity counts as affinityElements, for its chains. An
// endpoint counts each time that an EndpointSlice lists it, and once for each port that it serves; but once for all
// ports that share their lists in the tables. With session affinity it counts once more for each list. A change of a
// Service goes through all ports of its slices, with endpoints or not: each that serves a port counts as
// servedElements.
const (
	frontendElements = 8
	affinityElements = 40
	servedElements   = 4
	longElements     = 10
)

// manyFrontends is from how many frontends of a Service in a family on each further one counts longElements times: a
// change of the endpoints goes through all of them.
const manyFrontends = 20_000

// longList is from how many endpoints of a list on each further one counts as longElements: a change of a Service goes
// through all of its endpoints.
const longList = 10_000

// JointFrom is from how many elements of direct lists on the tables have lists once: frontends times endpoints of a
// port, and ports times endpoints of a Service. Ports go on to share theirs until it is a sixteenth of that, so that an
// endpoint that comes and goes does not move them.
const JointFrom = 1024

// jointFrom is JointFrom. Random tests lower it.
var jointFrom = JointFrom

// A demand is what a Service asks for, in elements.
type demand struct {
	base  int
	slots int // of slot tables and repeated places, without which the Service can be served
}

func (d demand) all() int { return d.base + d.slots }

// A grant says what a Service gets of its demand.
type grant uint8

const (
	whole        grant = iota
	withoutSlots       // endpoints are chosen by chance
	nothing            // the Service is not served
)

// demandOf works out the demand of a Service with its slices.
func (t *Tracker) demandOf(e *entry) (d demand) {
	s, parts := e.service, e.slices
	if s == nil {
		return d
	}
	for i := range s.fronts {
		f := &s.fronts[i]
		addresses := 1 + len(f.loadBalancers) + len(f.externalIPs)
		frontends := len(s.ports) * addresses
		for _, p := range s.ports {
			if p.nodePort != 0 {
				frontends++
			}
		}
		many := max(0, frontends-manyFrontends) * (longElements - 1)
		d.base += (frontends+many)*frontendElements + len(f.ranges)
		if s.timeout > 0 {
			d.base += len(s.ports) * affinityElements
		}
		endpoints, uneven := 0, false
		for _, part := range parts {
			if part.family != f.family {
				continue
			}
			endpoints += len(part.endpoints)
			uneven = uneven || part.settings.Weight != parts[0].settings.Weight
		}
		lists := 1
		if s.internalLocal || s.externalLocal {
			lists = 2
		}
		if s.settings.Maglev && endpoints > 0 {
			d.slots += len(s.ports) * lists * maglev.Size(endpoints)
		}
		e.groups = append(e.groups, t.portGroups(e, f.family))
		for _, g := range e.groups[i] {
			served, times := g.served(), len(g.ports)
			if g.uniform() && len(g.ports)*served >= jointFrom {
				times = e.kinds(&g)
				d.base += 2 * len(g.ports)
			}
			long := max(0, served-longList) * (longElements - 1)
			d.base += times*(served+long) + len(g.ports)*len(g.parts)*servedElements
			if s.timeout > 0 { // among the endpoints that affinity entries may name
				d.base += times * lists * served
			}
			if few := min(served, MostWeighted); uneven && few > 0 && !s.settings.Maglev {
				d.slots += times * lists * few * maglev.PlacesEach(few)
			}
		}
	}
	return d
}

// served counts the endpoints that slices list for a group of ports.
func (g *portGroup) served() (n int) {
	for _, part := range g.parts {
		n += len(part.endpoints)
	}
	return n
}

// kinds counts the lists that the ports of a group have at least: those of one protocol may share them, and only
// those with a node port may differ from the others in what a policy Local means.
func (e *entry) kinds(g *portGroup) int {
	type kind struct {
		protocol Protocol
		nodePort bool
	}
	kinds := make(map[kind]bool)
	for _, i := range g.ports {
		kinds[kind{e.service.ports[i].protocol, e.service.ports[i].nodePort != 0}] = true
	}
	return len(kinds)
}

// An OverQuota says which Service Config.Quota leaves out, and why.
type OverQuota struct{ Namespace, Name, Reason string }

func (o *OverQuota) Error() string {
	return fmt.Sprintf("Service %s/%s: %s", o.Namespace, o.Name, o.Reason)
}

// mostOverQuota is how many Services of a namespace one Delta names that the quota leaves out: the oldest. When an old
// Service grows, that may be 60,000. What is logged and reported of a namespace is less.
const mostOverQuota = 20

// applyQuota measures what has changed in a namespace and, if the namespace may add something, decides which of its
// Services are served. It adds to d some of those that have become too much.
func (t *Tracker) applyQuota(n *namespace, d *Delta, adds bool) {
	if t.config.Quota == 0 {
		return
	}
	for _, e := range n.dirty {
		if !e.unmeasured {
			continue
		}
		demand := t.demandOf(e)
		n.demand += demand.all() - e.demand.all()
		e.demand, e.unmeasured = demand, false
		n.recount = n.recount || n.refusing || n.demand > t.config.Quota
	}
	if !n.recount || !adds {
		return
	}
	if n.byAge == nil {
		n.byAge = slices.SortedFunc(maps.Keys(n.entries), (*entry).byAge)
		n.byAge = slices.DeleteFunc(n.byAge, func(e *entry) bool { return e.service == nil })
	}
	granted, leftOut, fresh := 0, 0, 0
	for _, e := range n.byAge {
		before := e.granted
		switch {
		case granted+e.demand.all() <= t.config.Quota:
			e.granted = whole
			granted += e.demand.all()
		case granted+e.demand.base <= t.config.Quota:
			e.granted = withoutSlots
			granted += e.demand.base
		default:
			e.granted = nothing
			leftOut++
		}
		if e.granted == before {
			continue
		}
		e.forgetListings()
		t.touch(e)
		e.over = nil
		if e.granted == nothing {
			e.over = t.overQuota(e, granted)
			if fresh++; fresh <= mostOverQuota {
				d.OverQuota = append(d.OverQuota, e.over)
			}
		}
	}
	t.unserved += leftOut - n.unserved
	n.unserved, n.refusing, n.recount = leftOut, n.demand > t.config.Quota, false
}

// setService sets the content of the Service of e, which may become nil. The order by age stays: a namespace may have
// 100,000 Services.
func (e *entry) setService(s *service) {
	n := e.in
	if n.byAge != nil && e.service != nil {
		i, _ := slices.BinarySearchFunc(n.byAge, e, (*entry).byAge)
		n.byAge = slices.Delete(n.byAge, i, i+1)
	}
	switch e.service = s; {
	case s == nil:
		e.granted = whole
	case n.byAge != nil:
		i, _ := slices.BinarySearchFunc(n.byAge, e, (*entry).byAge)
		n.byAge = slices.Insert(n.byAge, i, e)
	}
}

// byAge orders Services of a namespace as ByAge orders their ports.
func (e *entry) byAge(o *entry) int {
	return cmp.Or(e.age().compare(o.age()), cmp.Compare(e.name, o.name))
}

// age is zero without a Service.
func (e *entry) age() age {
	if e.service == nil {
		return age{}
	}
	return e.service.age
}

// overQuota describes a Service for which too little of its namespace's quota is left.
func (t *Tracker) overQuota(e *entry, granted int) *OverQuota {
	return &OverQuota{
		Namespace: e.namespace, Name: e.name,
		Reason: fmt.Sprintf("the Service asks for %d elements, but older Services of its namespace use %d of the %d that a "+
			"namespace may have on a node "+
			"(--namespace-quota); the Service is not served: give it fewer ports, addresses or endpoints, or raise the flag "+
			"on all nodes",
			e.demand.base, granted, t.config.Quota),
	}
}
