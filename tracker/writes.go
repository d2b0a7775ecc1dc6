package tracker

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/maglev"
)

// How much of the tables a step writes follows from what nft/services makes of a port. It is counted in elements, and
// rather too high: all other changes wait for a commit of too many elements.

// Where all frontends of a port share its endpoint lists.
const (
	// ManyFrontends is from how many frontends on they do, if the lists would have JointFrom elements otherwise.
	ManyFrontends = 5
	// StagedSlots is from how many slots on they share a slot table. If such a table changes much, it is written in
	// bounded commits, whatever a step hands out.
	StagedSlots = 4001
)

// slotsPerElement is how many slots of a table are computed in the time that the kernel takes for an element.
const slotsPerElement = 100

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
		return have.size() + want.size()
	}
	if have.verdict() != want.verdict() {
		n += want.Frontends()
	}
	gone, come := differingEndpoints(have, want)
	if gone+come > 0 {
		n += gone*have.each().goes + come*want.each().comes + want.slots()/slotsPerElement
	}
	gone, come = differing(have.LoadBalancers, want.LoadBalancers, netip.Addr.Compare)
	goneIPs, comeIPs := differing(have.ExternalIPs, want.ExternalIPs, netip.Addr.Compare)
	n += (gone+goneIPs)*have.eachFrontend() + (come+comeIPs)*want.eachFrontend()
	gone, come = differing(have.Sources, want.Sources, comparePrefixes)
	return 1 + n + gone + come
}

// differingEndpoints is differing for the lists of two values of a port.
func differingEndpoints(have, want *ServicePort) (gone, come int) {
	gone, come = differing(have.Cluster, want.Cluster, netip.AddrPort.Compare)
	goneHere, comeHere := differing(have.Local, want.Local, netip.AddrPort.Compare)
	return gone + goneHere, come + comeHere
}

// A price is how many elements one endpoint or address more or less takes.
type price struct{ comes, goes int }

// size returns about how many elements a port takes.
func (p *ServicePort) size() int {
	return 1 + p.Frontends() + len(p.Sources) + (len(p.Cluster)+len(p.Local))*p.each().comes + p.slots()/slotsPerElement
}

// each is the price of an endpoint: in each list, in the set of hairpin connections, among the endpoints that affinity
// entries may name and those that have departed.
func (p *ServicePort) each() (each price) {
	each = price{1, 1}
	switch longest := max(len(p.Cluster), len(p.Local)); {
	case longest == 0:
	case p.hashes():
		if each.goes = 1 + 2*maglev.Size(longest)/longest; maglev.Size(longest) < StagedSlots {
			each.comes = each.goes
		}
	case p.ClusterWeights != nil || p.LocalWeights != nil:
		places := maglev.PlacesEach(longest)
		each = price{places, places}
	}
	lists, others := p.lists(), 0
	if p.Affinity != 0 {
		others = 2
	}
	if len(p.OnNode) > 0 {
		others++
	}
	return price{each.comes*lists + others, each.goes*lists + others}
}

// eachFrontend returns how many elements a frontend takes.
func (p *ServicePort) eachFrontend() int {
	if p.lists() == 1 && p.Frontends() > 1 {
		return 1
	}
	return 1 + (len(p.Cluster)+len(p.Local))*p.each().comes/p.lists()
}

// lists returns how often the tables have the endpoint lists of a port.
func (p *ServicePort) lists() int {
	n := p.Frontends()
	if n >= ManyFrontends && n*(len(p.Cluster)+len(p.Local)) >= jointFrom || p.slots() >= StagedSlots {
		return 1
	}
	return n
}

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
	s := shape{shared: p.lists() < p.Frontends(), affinity: p.Affinity != 0, port: p.TargetPort}
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
	if p.lists() < p.Frontends() || p.Affinity != 0 {
		v.cluster, v.local = min(v.cluster, 1), min(v.local, 1)
	}
	return v
}

// affinityWork is the work of chains that look for a client's affinity entry. They are written anew when the endpoint
// lists of a port become longer or shorter, and for each the kernel goes through all entries of the affinity map: up to
// 20 ms for a port.
func affinityWork(have, want *ServicePort) int {
	if want == nil || want.Affinity == 0 ||
		have != nil && have.Affinity == want.Affinity && have.TargetPort == want.TargetPort &&
			len(have.Cluster) == len(want.Cluster) && len(have.Local) == len(want.Local) {
		return 0
	}
	return mostWork
}
