package tracker

import (
	"net/netip"
	"slices"
)

// port is step for one port: have is nil for a new one, want for one that goes. It returns want itself when nothing is
// left to do.
func (s *stepper) port(have, want *ServicePort) *ServicePort {
	switch {
	case have != nil && s.waits(have, want):
		if !s.again && have.Equal(want) {
			return want
		}
		return have
	case want == nil:
		return s.remove(have)
	case have != nil && (s.left <= 0 || !s.adds): // no walk through endpoints: there may be many such ports
		return s.change(have, want)
	}
	work := writes(have, want) + affinityWork(have, want)
	switch {
	case work == 0:
		return want
	case have == nil && (!s.adds || s.left <= 0):
		return nil
	case s.adds && work <= s.left:
		s.left -= work
		return want
	case have == nil:
		bare := want.bare()
		next := s.change(bare, want)
		s.left -= writes(nil, bare) + affinityWork(nil, want)
		return next
	}
	return s.change(have, want)
}

// waits reports whether a port stays as it is: nothing may be written now, and it gives up nothing that cannot wait.
func (s *stepper) waits(have, want *ServicePort) bool {
	switch {
	case s.left <= 0 && s.again:
		return true
	case want == nil || s.left > 0 && (s.adds || !have.givesUpNothing(want)):
		return false
	}
	but := *want
	if s.left <= 0 || want.HasEndpoints {
		but.HasEndpoints = have.HasEndpoints
	}
	return have.EqualBesideEndpoints(&but)
}

// is reports whether q is a later value of p, and not another port with its ID.
func (p *ServicePort) is(q *ServicePort) bool {
	return p.UID == q.UID && p.ClusterIP == q.ClusterIP && p.Port == q.Port
}

// remove is port for one that goes.
func (s *stepper) remove(have *ServicePort) *ServicePort {
	leaving := have.leaving()
	if s.left <= 0 {
		return leaving
	}
	bare, size := leaving.bare(), writes(have, nil)
	bare.ExternalLocal = leaving.ExternalLocal // with another policy, the list of this node would leave at once
	if size <= s.left || leaving.Equal(bare) {
		s.left -= size
		return nil
	}
	removing := stepper{left: s.left} // adds nothing, so that source ranges hold until the end
	next := removing.change(leaving, bare)
	s.left = min(removing.left, 0) // what is left of the port goes with the next step
	return next
}

// leaving is p while it is being removed.
func (p *ServicePort) leaving() *ServicePort {
	q := p.With(func(spec *PortSpec) { spec.Leaving, spec.HealthCheckNodePort = true, 0 })
	q.LocalReady = 0
	return q
}

// change is port for a port that stays.
func (s *stepper) change(have, want *ServicePort) *ServicePort {
	to, had := want, have
	switch { // lists without endpoints are of any port
	case !have.hasEndpoints():
		have = have.withTargetPort(want.TargetPort)
	case !want.hasEndpoints():
		to = want.withTargetPort(have.TargetPort)
	}
	next, left := *have, s.left
	stays := s.left <= 0 || !s.adds && have.givesUpNothing(to) // the lists stay
	if s.adds && s.left > 0 {
		next = *to
	}
	next.PortSpec = new(*next.PortSpec)
	frontend := price{comes: to.eachFrontend(), goes: have.eachFrontend()}
	next.LoadBalancers = move(s, have.LoadBalancers, want.LoadBalancers, netip.Addr.Compare, frontend)
	next.ExternalIPs = move(s, have.ExternalIPs, want.ExternalIPs, netip.Addr.Compare, frontend)
	next.GivenUp = givenUp(&next, want)
	next.Routers = common(next.Routers, next.LoadBalancers, netip.Addr.Compare)
	if next.NodePort != want.NodePort {
		next.NodePort = 0
	}
	if next.HealthCheckNodePort != want.HealthCheckNodePort {
		next.HealthCheckNodePort = 0
	}
	next.LocalReady = want.LocalReady
	// It decides what frontends without endpoints do. That they drop packets, and do not refuse connections, can wait.
	if left > 0 && (s.adds || !want.HasEndpoints) {
		next.HasEndpoints = want.HasEndpoints
	}

	if have.TargetPort != to.TargetPort && !stays { // the lists between them name other endpoints
		have, to = have.withPorts(), to.withPorts()
		next.TargetPort = 0
	}
	if stays {
		to = have
	}
	if s.adds && !have.shares() && to.shares() { // all endpoints are written again when the list becomes long
		s.left = max(s.left-have.size(), min(s.left, 1+mostWork/4))
	}
	s.setEndpoints(&next, have, to, stays)
	s.setSourceRanges(&next, had, want, left > 0)
	if !next.hasEndpoints() {
		next.TargetPort = 0
	}
	for _, known := range []*ServicePort{have, to} {
		if next.PortSpec.equal(known.PortSpec) {
			next.PortSpec = known.PortSpec
		}
	}
	is := &next
	if next.Equal(want) || !stays && next.TargetPort != want.TargetPort && next.Equal(to) {
		is = want
	}
	s.left = min(s.left, left-writes(had, is)-affinityWork(had, is))
	return is
}

// givesUpNothing reports whether no endpoint of p has to go when p becomes want. It is asked again and again of all
// ports of a Service that waits, and costs a tenth of setEndpoints.
func (p *ServicePort) givesUpNothing(want *ServicePort) bool {
	cluster, local := want.Cluster, want.Local
	if p.InternalLocal != want.InternalLocal || p.ExternalLocal != want.ExternalLocal || p.Settings != want.Settings {
		cluster, local = want.mayServe()
	}
	return (p.TargetPort == want.TargetPort || !p.hasEndpoints()) && slices.Equal(p.LeftOut, want.LeftOut) &&
		within(p.Cluster, cluster) && within(p.Local, local) && within(p.Serving, want.Serving) &&
		within(p.OnNode, want.OnNode)
}

// mayServe returns which endpoints may serve for the cluster-wide list, and for the list of this node, of a port that
// waits to become p and has another policy or setting: p lacks a list that nothing uses.
func (p *ServicePort) mayServe() (cluster, local []netip.AddrPort) {
	cluster, local = p.Cluster, p.Local
	if len(cluster) == 0 {
		cluster = p.Serving
	}
	if len(local) == 0 {
		local = p.Serving
	}
	return cluster, local
}

// A weightedList is a list of endpoints and, unless they are equal, their weights.
type weightedList struct {
	endpoints []netip.AddrPort
	weights   []uint16
}

// first returns the first n endpoints of a list.
func (l weightedList) first(n int) weightedList {
	n = min(n, len(l.endpoints))
	if l.weights != nil {
		l.weights = l.weights[:n:n]
	}
	return weightedList{l.endpoints[:n:n], l.weights}
}

// common returns what is left of a list when only others are there.
func (l weightedList) common(others []netip.AddrPort) weightedList {
	l.endpoints, l.weights = commonWeighted(l.endpoints, l.weights, others, netip.AddrPort.Compare)
	return l
}

// setEndpoints sets the lists of next, which lie between those of have and to, and the policies that go with them.
func (s *stepper) setEndpoints(next, have, to *ServicePort, stays bool) {
	hadCluster, hadLocal := weightedList{have.Cluster, have.ClusterWeights}, weightedList{have.Local, have.LocalWeights}
	cluster, local := weightedList{to.Cluster, to.ClusterWeights}, weightedList{to.Local, to.LocalWeights}
	if !to.hashes() && (have.long() || to.long()) { // the steps between them have no weights
		for _, l := range []*weightedList{&hadCluster, &hadLocal, &cluster, &local} {
			l.weights = nil
		}
	}
	toCluster, toLocal := cluster, local
	switch {
	case stays:
		cluster, local = hadCluster, hadLocal
	case next.InternalLocal == to.InternalLocal && next.ExternalLocal == to.ExternalLocal && next.Settings == to.Settings:
		each := have.each()
		each.comes = to.each().comes
		cluster, local = s.endpoints(hadCluster, cluster, each), s.endpoints(hadLocal, local, each)
	default: // the port waits for another policy or setting
		inCluster, inLocal := to.mayServe()
		if len(cluster.endpoints) == 0 {
			cluster = local
		}
		if len(local.endpoints) == 0 {
			local = weightedList{endpoints: to.OnNode}
		}
		cluster, local = remaining(hadCluster, cluster, inCluster), remaining(hadLocal, local, inLocal)
	}
	if next.Settings.LocalFallback && len(cluster.endpoints)+len(local.endpoints) == 0 { // clients pass to the other list
		come := min(replacements, len(have.Cluster)+len(have.Local))
		cluster, local = toCluster.first(come), toLocal.first(come)
	}
	if next.ExternalLocal && !next.External() && !(next.Leaving && len(local.endpoints) > 0) {
		next.ExternalLocal = false
	}
	if !next.InternalLocal && !next.ExternalLocal {
		local = weightedList{}
	}
	next.Lists = between(cluster, local, have.Lists, to.Lists)
}

// between returns lists that lie between have and to: have itself, or to, if they are equal. Removed endpoints leave
// OnNode at once: their addresses may be others'.
func between(cluster, local weightedList, have, to *Lists) *Lists {
	compare := netip.AddrPort.Compare
	l := &Lists{Cluster: cluster.endpoints, ClusterWeights: cluster.weights, Local: local.endpoints,
		LocalWeights: local.weights, Unweighted: to.Unweighted, OnNode: to.OnNode, LeftOut: to.LeftOut, Serving: to.Serving}
	if !sameList(l.Cluster, to.Cluster) || !sameList(l.Local, to.Local) {
		here := union(have.OnNode, to.OnNode, compare)
		l.OnNode = union(common(here, l.Cluster, compare), common(here, l.Local, compare), compare)
		l.Serving = union(common(have.Serving, to.Serving, compare), union(l.Cluster, l.Local, compare), compare)
	}
	switch {
	case l.equal(have):
		return have
	case l.equal(to):
		return to
	}
	return l
}

// remaining returns what is left of a list when only some endpoints may serve: a few others, if that is nothing.
func remaining(have, others weightedList, may []netip.AddrPort) weightedList {
	if kept := have.common(may); len(kept.endpoints) > 0 || len(have.endpoints) == 0 {
		return kept
	}
	return others.first(min(replacements, len(have.endpoints)))
}

// withTargetPort returns p with another TargetPort.
func (p *ServicePort) withTargetPort(port uint16) *ServicePort {
	q := *p
	q.TargetPort = port
	return &q
}

// withPorts returns p with the ports of its endpoints in the lists.
func (p *ServicePort) withPorts() *ServicePort {
	q := *p
	q.TargetPort = 0
	if p.TargetPort != 0 {
		q.Lists = p.Lists.numbered([]uint16{p.TargetPort})
		q.number()
	}
	return &q
}

// givenUp lists the addresses of p that want does not have, sorted.
func givenUp(p, want *ServicePort) (addrs []netip.Addr) {
	if slices.Equal(p.LoadBalancers, want.LoadBalancers) && slices.Equal(p.ExternalIPs, want.ExternalIPs) {
		return nil
	}
	kept := slices.Concat(want.LoadBalancers, want.ExternalIPs)
	slices.SortFunc(kept, netip.Addr.Compare)
	for _, addr := range slices.Concat(p.LoadBalancers, p.ExternalIPs) {
		if _, found := slices.BinarySearchFunc(kept, addr, netip.Addr.Compare); !found {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}

// setSourceRanges sets the source ranges of next. Where have has none and want has, they hold as soon as the port has
// its turn, though nothing may be added.
func (s *stepper) setSourceRanges(next, have, want *ServicePort, turn bool) {
	if !turn {
		want = have
	}
	next.RangesForNodePort = (have.RangesForNodePort && !s.adds || want.RangesForNodePort) && next.NodePort != 0
	next.HasSourceRanges = (have.HasSourceRanges && !s.adds || want.HasSourceRanges) &&
		(len(next.LoadBalancers) > 0 || next.RangesForNodePort)
	switch {
	case !next.HasSourceRanges:
		next.Sources = nil
	case want.HasSourceRanges:
		next.Sources = want.Sources
	default:
		next.Sources = have.Sources
	}
}

// endpoints moves a list of endpoints. A list with weights is moved at once. Even if nothing may be added, a few
// endpoints come for those that leave: a rolling update must not leave a Service without endpoints. They come for the
// last ones that leave in any case, and to a list that a policy may lead clients to from now on.
func (s *stepper) endpoints(have, want weightedList, each price) weightedList {
	compare := netip.AddrPort.Compare
	weighted, list := have.weights != nil || want.weights != nil, weightedList{}
	stay := 0 // how many are written to the list from which chance chooses
	if each.departs < each.goes {
		if gone, _ := differing(have.endpoints, want.endpoints, compare); gone*each.goes > mostSlots {
			each.goes, stay = each.departs, len(have.endpoints)-gone
		}
	}
	switch {
	case weighted && s.adds && s.left > 0:
		gone, come := differing(have.endpoints, want.endpoints, compare)
		s.left -= gone*each.goes + come*each.comes
		return want
	case weighted:
		list = have.common(want.endpoints)
	default:
		list.endpoints = move(s, have.endpoints, want.endpoints, compare, each)
		s.left -= stay
	}
	n := min(replacements, len(have.endpoints)-len(list.endpoints))
	switch {
	case s.adds && len(list.endpoints) == 0:
		return want.first(max(1, replacements/each.comes))
	case !s.adds && len(list.endpoints) == 0:
		return want.first(n)
	case !s.adds && !weighted && n > 0 && within(list.endpoints, want.endpoints):
		few := stepper{left: n, adds: true}
		list.endpoints = move(&few, list.endpoints, want.endpoints, compare, price{comes: 1, goes: 1})
	}
	return list
}

// mostSlots is about how many elements of slots a commit may have. Endpoints that leave more at once let chance choose.
const mostSlots = 4 * CommitElements

// replacements is how many endpoints of a port may come for others that leave while its namespace waits.
const replacements = 16

// bare returns p with its cluster IP alone, and without endpoints.
func (p *ServicePort) bare() *ServicePort {
	return &ServicePort{Lists: noLists, PortSpec: &PortSpec{
		ID: p.ID, Created: p.Created, UID: p.UID, Port: p.Port, ClusterIP: p.ClusterIP,
		InternalLocal: p.InternalLocal, Affinity: p.Affinity, Several: p.Several, Settings: p.Settings,
		WithoutSlots: p.WithoutSlots, Leaving: p.Leaving,
	}}
}
