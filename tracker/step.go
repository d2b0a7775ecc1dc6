package tracker

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"
)

// A stepper turns the ports of a Service that Take has handed out into the wanted ones, a bounded number of elements at
// a time. Each step leads to a valid state of the Service. What goes, goes first.
type stepper struct {
	left  int  // elements; may become negative
	adds  bool // whether it may add anything
	again bool // a step to the same ports was taken before: each has given up what cannot wait

	sharing map[listID]int             // how many ports of a Service have these lists, where they share them
	moved   map[[2]listID]*ServicePort // what the first of them has become
	stand   map[listID]int             // sharing, of the lists that the tables have
}

// A listID is the lists of a port and its policies Local. The zero value is that of no port.
type listID struct {
	*Lists
	internal, external bool
}

func (p *ServicePort) listID() (id listID) {
	if p == nil {
		return id
	}
	return listID{p.Lists, p.InternalLocal, p.ExternalLocal}
}

// sharesLists reports whether a port may share its lists: its endpoints have one port, and no hash chooses.
func (p *ServicePort) sharesLists() bool {
	return p.TargetPort != 0 && !p.hashes()
}

// findSharing finds the lists that ports share in the tables.
func (s *stepper) findSharing(have, want []*ServicePort) {
	s.stand, s.sharing, s.moved = sharing(have), sharing(want), nil
	if len(s.stand)+len(s.sharing) == 0 {
		return
	}
	s.moved = make(map[[2]listID]*ServicePort)
	if s.sharing == nil {
		s.sharing = make(map[listID]int)
	}
	for id, n := range s.stand {
		s.sharing[id] = max(s.sharing[id], n)
	}
}

// sharing returns how many ports of a Service have the lists that they share in the tables.
func sharing(ports []*ServicePort) (n map[listID]int) {
	if len(ports) < 2 {
		return nil
	}
	n = make(map[listID]int)
	var last listID
	alike := 0 // neighbours with these lists
	for _, p := range ports {
		if !p.sharesLists() {
			continue
		}
		if id := p.listID(); id != last {
			n[last] += alike
			last, alike = id, 0
		}
		alike++
	}
	n[last] += alike
	maps.DeleteFunc(n, func(id listID, n int) bool { return n < 2 || id.length()*n < jointFrom })
	return n
}

// portOfService is port for one of the ports of a Service. What shares its lists with others moves with them: the lists
// cost what they cost once.
func (s *stepper) portOfService(have, want *ServicePort) *ServicePort {
	if have == want {
		return want
	}
	if want != nil && want.unnumbered() && s.left > 0 {
		s.left -= want.placed.length() / endpointsPerElement
		want.number()
	}
	if have != nil && want != nil && !have.is(want) { // it comes when the other one has gone
		if left := s.portOfService(have, nil); left != nil {
			return left
		}
		have = nil
	}
	ids := [2]listID{have.listID(), want.listID()}
	first := s.moved[ids]
	if first == nil && s.adds && s.stand[ids[1]] > 0 {
		first = want
	}
	if first == nil && want != nil && len(want.Cluster)+len(want.Local) == 0 && s.sharing[ids[0]] > 1 {
		s.sharing[ids[0]]-- // the endpoints go with the last port
		first = want
	}
	target := want // with the lists of the first, if that is known
	if first != nil && want != nil && first.Lists != want.Lists {
		port := want.TargetPort
		if have != nil && port == 0 {
			port = have.TargetPort
		}
		target = want.withListsOf(first, port)
	}
	work := workBesideLists(have, target)
	both := have != nil && want != nil
	retargets := both && have.TargetPort != want.TargetPort && have.hasEndpoints() && want.hasEndpoints()
	policy := both && (have.InternalLocal != want.InternalLocal || have.ExternalLocal != want.ExternalLocal)
	switch {
	case s.movesAlone(have, want, ids) || have != nil && s.left <= 0 && (work > 0 || retargets || policy):
		return s.port(have, want)
	case retargets:
		next := s.retarget(have, want, ids)
		s.left -= work
		return next
	case want == nil && s.sharing[ids[0]] > 1: // the endpoints go with the last port
		s.sharing[ids[0]]--
		return s.freely(have, nil)
	case want == nil || first == nil:
		next := s.port(have, want)
		if next != nil && want != nil {
			s.moved[ids] = next
		}
		return next
	}
	had := have
	if have != nil {
		have = have.withListsOf(first, target.TargetPort)
	}
	next := s.freely(have, target)
	if had != nil && next != nil {
		s.left -= workBesideLists(had, had.withListsOf(next, next.TargetPort))
	}
	if next == target && target.listID() == ids[1] && target.TargetPort == want.TargetPort {
		return want
	}
	return next
}

// movesAlone reports whether a port does not move with others that share its lists, before or afterwards.
func (s *stepper) movesAlone(have, want *ServicePort, ids [2]listID) bool {
	ownLists := func(p *ServicePort) bool { return p != nil && p.hasEndpoints() && !p.sharesLists() }
	return s.sharing[ids[0]] == 0 && s.sharing[ids[1]] == 0 || ownLists(have) || ownLists(want)
}

// retarget is portOfService for a port whose endpoints get another port: the lists of their port change at once.
func (s *stepper) retarget(have, want *ServicePort, ids [2]listID) *ServicePort {
	q := have.withTargetPort(want.TargetPort)
	if first := s.moved[ids]; first != nil {
		q = q.withListsOf(first, want.TargetPort)
	} else {
		gone, come := differingEndpoints(have, want)
		s.left -= gone + come
		whole := stepper{left: math.MaxInt, adds: s.adds}
		whole.setEndpoints(q, have, want, false)
		s.moved[ids] = q
	}
	s.left--
	return s.freely(q, want)
}

// keepShared changes what is wanted of ports that share lists and leave them because endpoints get another port: they
// give up these endpoints in the shared lists and wait for a list each, which takes ports times endpoints. It reports
// whether there is such a port. If no endpoint would be left, nothing waits.
func (s *stepper) keepShared(pairs [][2]*ServicePort) (kept bool) {
	type source struct {
		lists *Lists
		place int
	}
	known := make(map[source]*Lists) // what is left of lists: a port costs no walk through them
	for i, pair := range pairs {
		have, want := pair[0], pair[1]
		if have == nil || want == nil || !have.is(want) || want.placed == nil || want.hashes() ||
			len(want.placed.LeftOut) > 0 || s.stand[have.listID()] == 0 {
			continue
		}
		place, found := slices.BinarySearch(want.placed.numbers, have.TargetPort)
		if !found {
			continue
		}
		from := source{want.placed.Lists, place}
		lists := known[from]
		if lists == nil {
			lists = want.placed.at(uint16(place))
			known[from] = lists
		}
		if (len(lists.Cluster) == 0) != (len(want.placed.Cluster) == 0) ||
			(len(lists.Local) == 0) != (len(want.placed.Local) == 0) || !lists.hasEndpoints() {
			continue
		}
		waiting := *want
		waiting.Lists, waiting.TargetPort = lists, have.TargetPort
		pairs[i][1], kept = &waiting, true
	}
	return kept
}

// at returns the lists with their endpoints at one place alone.
func (l *Lists) at(place uint16) *Lists {
	only := func(list []netip.AddrPort, weights []uint16) (some []netip.AddrPort, someWeights []uint16) {
		for i, ep := range list {
			if ep.Port() != place {
				continue
			}
			some = append(some, netip.AddrPortFrom(ep.Addr(), 0))
			if weights != nil {
				someWeights = append(someWeights, weights[i])
			}
		}
		return some, someWeights
	}
	m := &Lists{Unweighted: l.Unweighted}
	m.Cluster, m.ClusterWeights = only(l.Cluster, l.ClusterWeights)
	m.Local, m.LocalWeights = only(l.Local, l.LocalWeights)
	m.Serving, _ = only(l.Serving, nil)
	m.OnNode, _ = only(l.OnNode, nil)
	return m
}

// withListsOf returns p with the lists of another port of its Service, and with a port of its endpoints; p itself if it
// has them.
func (p *ServicePort) withListsOf(q *ServicePort, port uint16) *ServicePort {
	if p.Lists == q.Lists && p.TargetPort == port {
		return p
	}
	r := *p
	r.Lists = q.Lists
	if r.TargetPort = port; !r.hasEndpoints() {
		r.TargetPort = 0
	}
	return &r
}

// freely is port for one whose endpoints cost nothing: they come if the port may add something.
func (s *stepper) freely(have, want *ServicePort) *ServicePort {
	lists := have
	if want != nil && (have == nil || s.adds && s.left > 0) {
		lists = want
	}
	h, w := have.withoutEndpoints(), want.withoutEndpoints()
	next := s.port(h, w)
	switch next {
	case nil:
		return nil
	case w:
		next = want
	case h:
		next = have
	}
	return next.withListsOf(lists, lists.TargetPort)
}

// withoutEndpoints returns p without its lists; it may be nil.
func (p *ServicePort) withoutEndpoints() *ServicePort {
	if p == nil {
		return nil
	}
	q := *p
	q.Lists, q.TargetPort = noLists, 0
	return &q
}

// step returns the ports after the next step from have to want, both sorted by ID, and whether that is all of want.
func (s *stepper) step(have, want []*ServicePort) (ports []*ServicePort, done bool) {
	s.findSharing(have, want)
	pairs := make([][2]*ServicePort, 0, max(len(have), len(want)))
	eachPair(have, want, byID, func(h, w *ServicePort) { pairs = append(pairs, [2]*ServicePort{h, w}) })
	done = s.moveSources(pairs)
	if !s.adds {
		done = !s.keepShared(pairs) && done
	}
	next := make([]*ServicePort, len(pairs))
	for i, pair := range pairs {
		next[i] = pair[0]
	}
	for i, pair := range pairs {
		if s.left <= 0 && s.again {
			break // the others stay as they are
		}
		next[i] = s.portOfService(pair[0], pair[1])
	}
	for i, pair := range pairs {
		done = done && next[i] == pair[1]
	}
	ports = slices.DeleteFunc(next, func(p *ServicePort) bool { return p == nil })
	return ports, done
}

// removePorts returns what is left after the next step towards the end of all ports of a Service. Ports that the step
// does not reach stay as they are: there may be 10,000, and a step removes hundreds.
func (s *stepper) removePorts(have []*ServicePort) (left []*ServicePort) {
	s.findSharing(have, nil)
	for len(have) > 0 && s.left > 0 {
		if p := s.portOfService(have[0], nil); p != nil {
			left = append(left, p)
		}
		have = have[1:]
	}
	return append(left, have...)
}

// moveSources gives the ports of a family the source ranges that their Service has after this step, before and at the
// end of it: those that are in force belong to the Service. So a port that comes, or waits for its turn, does not
// change them for the others. It reports whether they are the wanted ones.
func (s *stepper) moveSources(pairs [][2]*ServicePort) (done bool) {
	done = true
	for _, family := range Families {
		var found [2]*ServicePort
		for _, pair := range pairs {
			for i, p := range pair {
				if found[i] == nil && p.hasRanges(family) {
					found[i] = p
				}
			}
		}
		have, want := found[0], found[1]
		if want == nil || have != nil && SameMemory(have.Sources, want.Sources) {
			continue
		}
		next := want.Sources[:min(len(want.Sources), max(s.left, mostWork))] // all are admitted: no range is an addition
		if have != nil {
			if next = have.Sources; s.left > 0 {
				next = s.prefixes(have.Sources, want.Sources)
			}
		}
		if slices.Equal(next, want.Sources) {
			next = want.Sources
		} else {
			done = false
		}
		for n, pair := range pairs {
			for i, p := range pair {
				if p.hasRanges(family) && !SameMemory(p.Sources, next) {
					pairs[n][i] = p.With(func(spec *PortSpec) { spec.Sources = next })
				}
			}
		}
	}
	return done
}

// hasRanges reports whether a port of a family has source ranges; it may be nil.
func (p *ServicePort) hasRanges(family Family) bool {
	return p != nil && p.ID.Family == family && p.HasSourceRanges
}

// byID compares ports.
func byID(p, q *ServicePort) int {
	if p == q {
		return 0
	}
	return p.ID.Compare(q.ID)
}

// eachPair calls f for each element of two sorted lists, with the zero value where a list has no such element.
func eachPair[T any](have, want []T, compare func(h, w T) int, f func(h, w T)) {
	for len(have) > 0 || len(want) > 0 {
		order := -1
		switch {
		case len(have) == 0:
			order = 1
		case len(want) > 0:
			order = compare(have[0], want[0])
		}
		var h, w T
		if order <= 0 {
			h, have = have[0], have[1:]
		}
		if order >= 0 {
			w, want = want[0], want[1:]
		}
		f(h, w)
	}
}

// port is step for one port: have is nil for a new one, want for one that goes. It returns want itself when nothing is
// left to do.
func (s *stepper) port(have, want *ServicePort) *ServicePort {
	switch {
	case have != nil && s.left <= 0 && s.again:
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
		next := s.change(want.bare(), want)
		s.left -= affinityWork(nil, want)
		return next
	}
	return s.change(have, want)
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
	stays := s.left <= 0 // the lists stay
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

// within reports whether a sorted list has all of another one.
func within(some, all []netip.AddrPort) bool {
	gone, _ := differing(some, all, netip.AddrPort.Compare)
	return gone == 0
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
	switch {
	case stays:
		cluster, local = hadCluster, hadLocal
	case next.InternalLocal == to.InternalLocal && next.ExternalLocal == to.ExternalLocal && next.Settings == to.Settings:
		each := price{comes: to.each().comes, goes: have.each().goes}
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
	if next.ExternalLocal && !next.External() {
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
	switch {
	case weighted && s.adds && s.left > 0:
		gone, come := differing(have.endpoints, want.endpoints, compare)
		s.left -= gone*each.goes + come*each.comes
		return want
	case weighted:
		list = have.common(want.endpoints)
	default:
		list.endpoints = move(s, have.endpoints, want.endpoints, compare, each)
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

// replacements is how many endpoints of a port may come for others that leave while its namespace waits.
const replacements = 16

// move returns the list that lies between have and want, all of which are sorted: without some that want does not have,
// and, if none of those is left, with some that have does not have.
func move[T comparable](s *stepper, have, want []T, compare func(a, b T) int, each price) []T {
	if sameList(have, want) {
		return have
	}
	gone, come := differing(have, want, compare)
	if n := gone*each.goes + come*each.comes; n <= s.left && (s.adds || come == 0) {
		s.left -= n
		return want
	}
	next := have
	if gone > 0 && s.left > 0 {
		next = make([]T, 0, len(have))
		for rest, i := want, 0; i < len(have); i++ {
			for len(rest) > 0 && compare(rest[0], have[i]) < 0 {
				rest = rest[1:]
			}
			if s.left <= 0 || len(rest) > 0 && rest[0] == have[i] {
				next = append(next, have[i])
			} else {
				s.left -= each.goes
			}
		}
	}
	if len(next) > len(have)-gone || !s.adds {
		return next
	}
	kept := next
	next = make([]T, 0, len(want))
	for _, x := range want {
		if len(kept) > 0 && kept[0] == x {
			next, kept = append(next, x), kept[1:]
		} else if s.left > 0 {
			next = append(next, x)
			s.left -= each.comes
		}
	}
	return next
}

// prefixes is move for source ranges: an address that have and want both admit is admitted meanwhile.
func (s *stepper) prefixes(have, want []netip.Prefix) []netip.Prefix {
	if SameMemory(have, want) {
		return want
	}
	next := commonPrefixes(have, want)
	if n := s.among(have, next); n < len(have) {
		return append(commonPrefixes(have[:n], want), have[n:]...)
	}
	if !s.adds {
		return next
	}
	n := s.among(want, next)
	if n == len(want) {
		return want
	}
	rest, _ := slices.BinarySearchFunc(next, want[n], comparePrefixes)
	return slices.Concat(want[:n], next[rest:])
}

// among uses up elements for prefixes of a list that are not in another one, and returns how far in the list they last.
func (s *stepper) among(list, other []netip.Prefix) int {
	for i, p := range list {
		if _, found := slices.BinarySearchFunc(other, p, comparePrefixes); found {
			continue
		}
		if s.left <= 0 {
			return i
		}
		s.left--
	}
	return len(list)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// bare returns p with its cluster IP alone, and without endpoints.
func (p *ServicePort) bare() *ServicePort {
	return &ServicePort{Lists: noLists, PortSpec: &PortSpec{
		ID: p.ID, Created: p.Created, UID: p.UID, Port: p.Port, ClusterIP: p.ClusterIP,
		InternalLocal: p.InternalLocal, Affinity: p.Affinity, Several: p.Several, Settings: p.Settings,
		WithoutSlots: p.WithoutSlots, Leaving: p.Leaving,
	}}
}

// differing returns how many values only the first of two sorted lists has, and how many only the second.
func differing[T comparable](a, b []T, compare func(a, b T) int) (gone, come int) {
	if SameMemory(a, b) {
		return 0, 0
	}
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] { // mostly nearly all is common to both
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 {
		switch c := compare(a[0], b[0]); {
		case c < 0:
			a, gone = a[1:], gone+1
		case c > 0:
			b, come = b[1:], come+1
		default:
			a, b = a[1:], b[1:]
		}
	}
	return gone + len(a), come + len(b)
}

// common returns what two sorted lists have in common: list itself if that is all of it.
func common[T comparable](list, other []T, compare func(a, b T) int) []T {
	kept, _ := commonWeighted(list, nil, other, compare)
	return kept
}

// commonWeighted is common for a list with weights, which may be nil.
func commonWeighted[T comparable](list []T, weights []uint16, other []T,
	compare func(a, b T) int) (kept []T, keptWeights []uint16) {
	if sameList(list, other) {
		return list, weights
	}
	kept = make([]T, 0, min(len(list), len(other)))
	for i, x := range list {
		for len(other) > 0 && compare(other[0], x) < 0 {
			other = other[1:]
		}
		if len(other) > 0 && other[0] == x {
			kept = append(kept, x)
			if weights != nil {
				keptWeights = append(keptWeights, weights[i])
			}
		}
	}
	if len(kept) == len(list) {
		return list, weights
	}
	return kept, keptWeights
}

// commonPrefixes returns the addresses that both of two lists of prefixes contain. In each list no prefix overlaps
// another one.
func commonPrefixes(a, b []netip.Prefix) (both []netip.Prefix) {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].Overlaps(b[0]) && a[0].Bits() >= b[0].Bits(): // a[0] is within b[0]
			both, a = append(both, a[0]), a[1:]
		case a[0].Overlaps(b[0]):
			both, b = append(both, b[0]), b[1:]
		case a[0].Addr().Less(b[0].Addr()):
			a = a[1:]
		default:
			b = b[1:]
		}
	}
	return both
}
