package tracker

import (
	"math/bits"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/maglev"
)

// How much of the tables a step writes follows from what nft/services makes of a port. It is counted in elements, and
// rather too high: all other changes wait for a commit of too many elements.

// MostWeighted is how many endpoints of a port may have weights where chance chooses: a list with weights has several
// places for each, and changes with one commit.
const MostWeighted = 512

// mostWeighted is MostWeighted. Random tests lower it.
var mostWeighted = MostWeighted

// slotsPerElement is how many slots of a table are computed in the time that the kernel takes for an element.
const slotsPerElement = 100

// endpointsPerElement is how many endpoints of lists that change are compared and arranged in that time. Ports whose
// endpoints have different ports have long lists each.
const endpointsPerElement = 200

// demandPerElement is how much of what a Service asks for, see quota.go, is worked out in that time. A change of its
// objects may change nothing in the tables.
const demandPerElement = 100

// writes returns about how many elements change when a port becomes another one, without affinityWork. Either may be
// nil. It is 0 if they are equal.
func writes(have, want *ServicePort) (n int) {
	switch {
	case have == want:
		return 0
	case want == nil:
		return have.size()
	case have == nil:
		return want.size()
	case have.Equal(want):
		return 0
	}
	if have.shape() != want.shape() || !slices.Equal(have.ClusterWeights, want.ClusterWeights) ||
		!slices.Equal(have.LocalWeights, want.LocalWeights) {
		n = have.size() + want.size()
		if each := have.each(); each.goes > each.comes { // until the new table is written, all slots name endpoints of want
			gone, _ := differingEndpoints(have, want)
			n += gone * (each.goes - each.comes)
		}
		return n
	}
	if have.verdict() != want.verdict() {
		n += want.Frontends()
	}
	gone, come := differingEndpoints(have, want)
	if gone+come > 0 {
		n += gone*have.each().goes + come*want.each().comes + want.slots()/slotsPerElement +
			(have.length()+want.length())/endpointsPerElement
	}
	gone, come = differing(have.LoadBalancers, want.LoadBalancers, netip.Addr.Compare)
	goneIPs, comeIPs := differing(have.ExternalIPs, want.ExternalIPs, netip.Addr.Compare)
	if have.NodePort != want.NodePort {
		gone, come = gone+int(min(have.NodePort, 1)), come+int(min(want.NodePort, 1))
	}
	n += (gone+goneIPs)*have.eachFrontend() + (come+comeIPs)*want.eachFrontend()
	goneRouters, comeRouters := differing(have.Routers, want.Routers, netip.Addr.Compare)
	gone, come = differing(have.Sources, want.Sources, comparePrefixes)
	return 1 + n + goneRouters + comeRouters + gone + come
}

// differingEndpoints is differing for the lists of two values of a port.
func differingEndpoints(have, want *ServicePort) (gone, come int) {
	gone, come = differing(have.Cluster, want.Cluster, netip.AddrPort.Compare)
	goneHere, comeHere := differing(have.Local, want.Local, netip.AddrPort.Compare)
	return gone + goneHere, come + comeHere
}

// A price is how many elements one endpoint or address more or less takes. If many leave a slot table that is staged,
// chance chooses until the next table is there, and they take less: each of them departs.
type price struct{ comes, goes, departs int }

// size returns about how many elements a port takes.
func (p *ServicePort) size() int {
	return 1 + p.Frontends() + len(p.Sources) + (len(p.Cluster)+len(p.Local))*p.each().comes + p.slots()/slotsPerElement
}

// each is the price of an endpoint: in each list, in the set of hairpin connections, among the endpoints that affinity
// entries may name.
func (p *ServicePort) each() (each price) {
	each = price{comes: 1, goes: 1, departs: 1}
	shares := p.shares()
	switch longest := max(len(p.Cluster), len(p.Local)); {
	case longest == 0:
	case p.hashes():
		each.goes = 1 + 2*maglev.Size(longest)/longest
		if !shares || maglev.Size(longest) < CommitElements { // the table is not staged
			each.comes, each.departs = each.goes, each.goes
		}
	case p.Weighted():
		places := maglev.PlacesEach(longest)
		each = price{comes: places, goes: places, departs: places}
	}
	lists, others := p.Frontends(), 0
	if shares {
		lists = 1
	}
	if p.Affinity != 0 {
		others++
	}
	if len(p.OnNode) > 0 {
		others++
	}
	return price{comes: each.comes*lists + others, goes: each.goes*lists + others, departs: each.departs*lists + others}
}

// eachFrontend returns how many elements a frontend takes.
func (p *ServicePort) eachFrontend() int {
	if p.shares() {
		return 1
	}
	return 1 + (len(p.Cluster)+len(p.Local))*p.each().comes/p.Frontends()
}

// shares reports whether the tables have the endpoint lists of a port once, in maps of their own, and not with each
// frontend. It may be false where they do: with weights an endpoint may have several places in a list.
func (p *ServicePort) shares() bool {
	places := 0
	for _, length := range []int{len(p.Cluster), len(p.Local)} {
		if p.hashes() && length > 0 {
			length = maglev.Size(length)
		}
		places += length
	}
	return p.Frontends()*places >= jointFrom
}

// long reports whether a list has too many endpoints for weights.
func (l *Lists) long() bool { return max(len(l.Cluster), len(l.Local)) > mostWeighted }

// Weighted reports whether endpoints have different weights.
func (l *Lists) Weighted() bool { return l.ClusterWeights != nil || l.LocalWeights != nil }

// hashes reports whether a hash of the client chooses its endpoint.
func (p *ServicePort) hashes() bool { return p.Settings.Maglev && !p.WithoutSlots }

// slots returns how many slots the longest slot table of a port has.
func (p *ServicePort) slots() int {
	if !p.hashes() {
		return 0
	}
	return maglev.Size(max(len(p.Cluster), len(p.Local)))
}

// A shape is where the tables have the endpoints of a port. In another shape all of them are written.
type shape struct {
	shared, affinity bool
	slots            [2]int
	port             uint16
}

func (p *ServicePort) shape() shape {
	s := shape{shared: p.shares(), affinity: p.Affinity != 0, port: p.TargetPort}
	if p.hashes() {
		s.slots = [2]int{maglev.Size(len(p.Cluster)), maglev.Size(len(p.Local))}
	}
	return s
}

// A verdict is what the verdict of a port's frontends follows from.
type verdict struct {
	cluster, local                               int
	internalLocal, externalLocal, served, ranges bool
	settings                                     Settings
}

func (p *ServicePort) verdict() verdict {
	v := verdict{len(p.Cluster), len(p.Local), p.InternalLocal, p.ExternalLocal, p.HasEndpoints, p.HasSourceRanges,
		p.Settings}
	if p.shares() || p.Affinity != 0 {
		v.cluster, v.local = min(v.cluster, 1), min(v.local, 1)
	}
	return v
}

// Capacity is the number of places that the choice among n endpoints reckons with: n or a little more. Lists of one
// capacity share the chains that choose, so that a list that grows or shrinks by an endpoint mostly keeps its verdict.
// The kernel takes 10 us for a commit of plain elements, but walks the whole verdict map when a commit adds a verdict
// (measured: 4 ms at 30,000 Services).
//
// Capacities are 1, the multiples of 4 up to 32, and then four for every doubling. Few are better: for each element
// that comes into a map, the kernel goes through all rules that look something up there (measured: 20 ns for each).
func Capacity(n int) int {
	if n <= 1 {
		return n
	}
	step := max(4, 1<<bits.Len(uint(n-1))/8)
	return (n + step - 1) / step * step
}

// workBesideLists is what a port takes that gets, or gives up, its endpoints with others which share them: its
// frontends lead elsewhere when it gets the first endpoint or gives up the last one. Either may be nil.
func workBesideLists(have, want *ServicePort) int {
	n := affinityWork(have, want)
	if have != nil && want != nil && ((len(have.Cluster) == 0) != (len(want.Cluster) == 0) ||
		(len(have.Local) == 0) != (len(want.Local) == 0)) {
		n += want.Frontends()
	}
	return n
}

// affinityWork is the work of rules that look for a client's affinity entry. For each the kernel goes through all
// entries of the affinity map: up to 20 ms for a port. They change with the ports of the endpoints, with policies and
// with annotations, and come with the first endpoint. If a Service has one port, they are in one chain with the rule
// that chooses an endpoint, which changes with the capacity of the list.
func affinityWork(have, want *ServicePort) int {
	if want == nil || want.Affinity == 0 || have != nil && have.sameLookups(want) {
		return 0
	}
	return mostWork
}

// sameLookups reports whether q needs no rule that looks for an affinity entry and p does not have.
func (p *ServicePort) sameLookups(q *ServicePort) bool {
	return p.Affinity == q.Affinity && p.InternalLocal == q.InternalLocal && p.ExternalLocal == q.ExternalLocal &&
		p.Settings == q.Settings && p.Several == q.Several && (p.Several || p.capacities() == q.capacities()) &&
		p.sameTargets(q, p.Cluster, q.Cluster) && p.sameTargets(q, p.Local, q.Local)
}

// sameTargets reports whether the endpoints in a list of p have the ports that those in a list of q need.
func (p *ServicePort) sameTargets(q *ServicePort, list, other []netip.AddrPort) bool {
	switch {
	case len(list) == 0 || len(other) == 0: // rules that go cost nothing
		return len(other) == 0
	case p.TargetPort != 0 && q.TargetPort != 0:
		return p.TargetPort == q.TargetPort
	}
	return slices.Equal(targetsOf(p.Endpoints(list)), targetsOf(q.Endpoints(other)))
}

// targetsOf lists the ports of endpoints, sorted.
func targetsOf(list []netip.AddrPort) (ports []uint16) {
	for _, ep := range list {
		if i, found := slices.BinarySearch(ports, ep.Port()); !found {
			ports = slices.Insert(ports, i, ep.Port())
		}
	}
	return ports
}

// capacities are those of the lists of a port. Weights and a hash have as many places as the endpoints need.
func (p *ServicePort) capacities() [2]int {
	if p.hashes() || p.Weighted() {
		return [2]int{len(p.Cluster), len(p.Local)}
	}
	return [2]int{Capacity(len(p.Cluster)), Capacity(len(p.Local))}
}
