package tracker

import (
	"maps"
	"math"
	"net/netip"
	"slices"
)

// A stepper turns the ports of a Service that Take has handed out into the wanted ones, a bounded number of elements at
// a time. Each step leads to a valid state of the Service. What goes, goes first. This file is about the ports of a
// Service together, step_port.go about one of them.
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
	for _, p := range have { // one port may have alone what others come to share
		if id := p.listID(); s.sharing[id] > 0 && s.stand[id] == 0 && p.sharesLists() && p.shares() {
			if s.stand == nil {
				s.stand = make(map[listID]int)
			}
			s.stand[id] = 1
		}
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
	if have != nil && want != nil && !have.is(want) {
		return s.replace(have, want)
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

// replace is portOfService for a port that makes room for another one with its ID: that comes when the first one has
// gone. What they have in common, as a node port, would not be served in between. So both happen in one step, unless
// that is too long.
func (s *stepper) replace(have, want *ServicePort) *ServicePort {
	lent := 0
	if s.adds && s.left > 0 {
		work := writes(have, nil) + writes(nil, want) + affinityWork(nil, want)
		lent = max(min(work, 2*mostWork)-s.left, 0)
	}
	s.left += lent
	next := s.portOfService(have, nil)
	if next == nil {
		next = s.portOfService(nil, want)
	}
	s.left -= lent
	return next
}

// freely is port for one whose endpoints cost nothing: they come if the port may add something.
func (s *stepper) freely(have, want *ServicePort) *ServicePort {
	if have != nil && want != nil && have.Equal(want) { // mostly only endpoints have changed
		return want
	}
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
		if s.left <= 0 && s.again && s.moved[[2]listID{pair[0].listID(), pair[1].listID()}] == nil {
			continue // it stays as it is
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
