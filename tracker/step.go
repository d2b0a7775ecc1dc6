package tracker

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft/maglev"
)

// A stepper turns the ports of a Service that Take has handed out into the wanted ones, a bounded number of elements at
// a time. Each step leads to a valid state of the Service. What goes, goes first.
type stepper struct {
	left int  // elements; may become negative
	adds bool // whether it may add anything

	sharing map[listID]int             // how many ports of a Service have these lists, where they share them
	moved   map[[2]listID]*ServicePort // what the first of them has become
	free    bool                       // endpoints cost nothing: another port has them
}

// A listID names the lists of a port by their memory.
type listID struct {
	first              [4]*netip.AddrPort
	length             [4]int
	internal, external bool // the policies Local
}

func (p *ServicePort) listID() (id listID) {
	if p == nil {
		return id
	}
	for i, list := range p.endpointLists() {
		if id.length[i] = len(*list); len(*list) > 0 {
			id.first[i] = &(*list)[0]
		}
	}
	id.internal, id.external = p.InternalLocal, p.ExternalLocal
	return id
}

// sharesLists reports whether a port has its lists with others, if these are long enough.
func (p *ServicePort) sharesLists() bool {
	return p.TargetPort != 0 && p.Affinity == 0 && (!p.Settings.Maglev || p.WithoutSlots)
}

// findSharing finds the lists that ports share in the tables.
func (s *stepper) findSharing(ports ...[]*ServicePort) {
	s.sharing, s.moved = nil, nil
	for _, list := range ports {
		if len(list) < 2 {
			continue
		}
		sharing := make(map[listID]int)
		for _, p := range list {
			if p.sharesLists() {
				sharing[p.listID()]++
			}
		}
		for id, n := range sharing {
			if endpoints := id.length[0] + id.length[1] + id.length[2] + id.length[3]; n < 2 || endpoints*n < jointFrom {
				delete(sharing, id)
			}
		}
		if s.sharing == nil {
			s.sharing = sharing
			continue
		}
		for id, n := range sharing {
			s.sharing[id] = max(s.sharing[id], n)
		}
	}
	if len(s.sharing) > 0 {
		s.moved = make(map[[2]listID]*ServicePort)
	}
}

// portOfService is port for one of the ports of a Service. What shares its lists with others moves with them: the lists
// cost what they cost once.
func (s *stepper) portOfService(have, want *ServicePort) *ServicePort {
	ids := [2]listID{have.listID(), want.listID()}
	if s.sharing[ids[0]] == 0 && s.sharing[ids[1]] == 0 ||
		have != nil && want != nil && (have.Affinity == 0) != (want.Affinity == 0) {
		return s.port(have, want)
	}
	if have != nil && want != nil && have.TargetPort != want.TargetPort && have.hasEndpoints() && want.hasEndpoints() &&
		have.TargetPort != 0 && s.left > 0 { // the list of their port changes at once
		q := *have
		q.TargetPort = want.TargetPort
		for i, list := range q.endpointLists() {
			*list = *want.endpointLists()[i]
		}
		q.ClusterWeights, q.LocalWeights = want.ClusterWeights, want.LocalWeights
		if s.moved[ids] == nil {
			s.left -= differing(have.Cluster, want.Cluster, netip.AddrPort.Compare) +
				differing(have.Local, want.Local, netip.AddrPort.Compare)
			s.record(ids, want)
		}
		s.left--
		return s.freely(&q, want)
	}
	first := s.moved[ids]
	switch {
	case want == nil && s.sharing[ids[0]] > 1: // the endpoints go with the last port
		s.sharing[ids[0]]--
		return s.freely(have, nil)
	case want == nil || first == nil:
		next := s.port(have, want)
		if next != nil && want != nil {
			s.record(ids, next)
		}
		return next
	}
	port := want.TargetPort
	if have != nil && port == 0 {
		port = have.TargetPort
	}
	target := want.withListsOf(first, port)
	if have != nil {
		have = have.withListsOf(first, port)
	}
	next := s.freely(have, target)
	if next == target && target.listID() == ids[1] && target.TargetPort == want.TargetPort {
		return want
	}
	return next
}

// record records what the first of the ports with certain lists has become. New ports get the same.
func (s *stepper) record(ids [2]listID, next *ServicePort) {
	s.moved[ids] = next
	if fresh := [2]listID{{}, ids[1]}; s.moved[fresh] == nil {
		s.moved[fresh] = next
	}
}

// withListsOf returns p with the lists of another port of its Service, and with a port of its endpoints.
func (p *ServicePort) withListsOf(q *ServicePort, port uint16) *ServicePort {
	r := *p
	r.Cluster, r.Local, r.Serving, r.OnNode = q.Cluster, q.Local, q.Serving, q.OnNode
	r.ClusterWeights, r.LocalWeights = q.ClusterWeights, q.LocalWeights
	if r.TargetPort = port; !r.hasEndpoints() {
		r.TargetPort = 0
	}
	return &r
}

// freely is port where endpoints cost nothing.
func (s *stepper) freely(have, want *ServicePort) *ServicePort {
	s.free = true
	next := s.port(have, want)
	s.free = false
	return next
}

// counted is p as it counts: without endpoints that cost nothing.
func (s *stepper) counted(p *ServicePort) *ServicePort {
	if p == nil || !s.free {
		return p
	}
	q := *p
	q.Cluster, q.Local, q.ClusterWeights, q.LocalWeights, q.TargetPort = nil, nil, nil, nil, 0
	return &q
}

// step returns the ports after the next step from have to want, both sorted by ID, and whether that is all of want.
func (s *stepper) step(have, want []*ServicePort) (ports []*ServicePort, done bool) {
	done = true
	s.findSharing(have, want)
	var pairs [][2]*ServicePort
	eachPair(have, want, func(h, w *ServicePort) { pairs = append(pairs, [2]*ServicePort{h, w}) })
	next := make([]*ServicePort, len(pairs))
	for _, fresh := range []bool{false, true} { // new ports get the lists of those that stay
		for i, pair := range pairs {
			if (pair[0] == nil) == fresh {
				next[i] = s.portOfService(pair[0], pair[1])
				done = done && next[i] == pair[1]
			}
		}
	}
	ports = slices.DeleteFunc(next, func(p *ServicePort) bool { return p == nil })
	return ports, done
}

// eachPair calls f for each ID of two sorted lists, with nil where a list has no such port.
func eachPair(have, want []*ServicePort, f func(h, w *ServicePort)) {
	for len(have) > 0 || len(want) > 0 {
		order := -1
		switch {
		case len(have) == 0:
			order = 1
		case len(want) > 0:
			order = have[0].ID.Compare(want[0].ID)
		}
		var h, w *ServicePort
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
	work := workBetween(s.counted(have), s.counted(want))
	switch {
	case work == 0 && (!s.free || have == nil || want == nil || have.Equal(want)):
		return want
	case want == nil ||
		have != nil && (have.UID != want.UID || have.ClusterIP != want.ClusterIP || have.Port != want.Port):
		leaving := *have
		leaving.Leaving, leaving.HealthCheckNodePort, leaving.LocalReady = true, 0, 0
		bare := leaving.bare()
		if s.free {
			bare = bare.withListsOf(&leaving, leaving.TargetPort)
		}
		if size := s.counted(have).size(); size > s.left && !leaving.Equal(bare) {
			if s.left <= 0 {
				return &leaving
			}
			removing := stepper{left: s.left, free: s.free} // adds nothing, so that source ranges hold until the end
			next := removing.change(&leaving, bare)
			s.left = removing.left
			return next
		}
		s.left -= s.counted(have).size()
		return s.port(nil, want)
	case have == nil && (want == nil || !s.adds || s.left <= 0):
		return nil
	case s.adds && work <= s.left:
		s.left -= work
		return want
	case have == nil:
		if have = want.bare(); s.free {
			have = have.withListsOf(want, want.TargetPort)
		}
	}
	return s.change(have, want)
}

// change is port for a port that stays.
func (s *stepper) change(have, want *ServicePort) *ServicePort {
	to := want
	switch { // lists without endpoints are of any port
	case !have.hasEndpoints():
		have = have.withTargetPort(want.TargetPort)
	case !want.hasEndpoints():
		to = want.withTargetPort(have.TargetPort)
	}
	next := *have
	stays := s.left <= 0 && have.TargetPort != to.TargetPort // the lists stay
	if s.adds && s.left > 0 {
		next = *to
	}
	next.LoadBalancers = move(s, have.LoadBalancers, want.LoadBalancers, netip.Addr.Compare)
	next.ExternalIPs = move(s, have.ExternalIPs, want.ExternalIPs, netip.Addr.Compare)
	next.GivenUp = givenUp(&next, want)
	next.Routers = common(want.Routers, next.LoadBalancers, netip.Addr.Compare)
	if next.NodePort != want.NodePort {
		next.NodePort = 0
	}
	if next.HealthCheckNodePort != want.HealthCheckNodePort {
		next.HealthCheckNodePort = 0
	}
	next.LocalReady, next.HasEndpoints = want.LocalReady, want.HasEndpoints

	if have.TargetPort != to.TargetPort && !stays { // the lists between them name other endpoints
		have, to = have.withPorts(), to.withPorts()
		next.TargetPort, next.OnNode = 0, next.Endpoints(next.OnNode)
	}
	if stays {
		to = have
	} else if next.InternalLocal == to.InternalLocal && next.ExternalLocal == to.ExternalLocal &&
		next.Settings == to.Settings {
		next.Cluster, next.ClusterWeights = s.endpoints(have.Cluster, have.ClusterWeights, to.Cluster, to.ClusterWeights)
		next.Local, next.LocalWeights = s.endpoints(have.Local, have.LocalWeights, to.Local, to.LocalWeights)
	} else { // a list of want may be missing because nothing uses it; Serving tells which endpoints there are
		compare := netip.AddrPort.Compare
		next.Cluster, next.ClusterWeights = commonWeighted(have.Cluster, have.ClusterWeights, to.Serving, compare)
		next.Local, next.LocalWeights = commonWeighted(have.Local, have.LocalWeights, to.Serving, compare)
	}
	next.OnNode = common(next.OnNode, to.OnNode, netip.AddrPort.Compare)
	next.ExternalLocal = next.ExternalLocal && next.External()
	s.setSourceRanges(&next, have, want)
	// after the lists have moved: each step gets further
	s.left -= next.slotWork() + rewritten(s.counted(have), s.counted(&next)) + affinityWork(have, &next)
	switch {
	case !next.InternalLocal && !next.ExternalLocal:
		next.Local, next.LocalWeights = nil, nil
	case next.Local == nil:
		next.Local = []netip.AddrPort{}
	}
	next.Serving = to.Serving
	if !sameEndpoints(next.Cluster, to.Cluster) || !sameEndpoints(next.Local, to.Local) {
		next.Serving = slices.Concat(common(have.Serving, to.Serving, netip.AddrPort.Compare), next.Cluster, next.Local)
		slices.SortFunc(next.Serving, netip.AddrPort.Compare)
		next.Serving = slices.Compact(next.Serving)
	}
	if !next.hasEndpoints() {
		next.TargetPort = 0
	}
	if next.Equal(want) || next.TargetPort != want.TargetPort && next.Equal(to) {
		return want
	}
	return &next
}

// withTargetPort returns p with another TargetPort.
func (p *ServicePort) withTargetPort(port uint16) *ServicePort {
	q := *p
	q.TargetPort = port
	return &q
}

// hasEndpoints reports whether a list of p has endpoints.
func (p *ServicePort) hasEndpoints() bool {
	return len(p.Cluster)+len(p.Local)+len(p.Serving)+len(p.OnNode) > 0
}

// withPorts returns p with the ports of its endpoints in the lists.
func (p *ServicePort) withPorts() *ServicePort {
	q := *p
	q.TargetPort = 0
	for i, list := range q.endpointLists() {
		*list = p.Endpoints(*p.endpointLists()[i])
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

// setSourceRanges sets the source ranges of next. Where have has none and want has, they hold at once.
func (s *stepper) setSourceRanges(next, have, want *ServicePort) {
	next.RangesForNodePort = (have.RangesForNodePort && !s.adds || want.RangesForNodePort) && next.NodePort != 0
	next.HasSourceRanges = (have.HasSourceRanges && !s.adds || want.HasSourceRanges) &&
		(len(next.LoadBalancers) > 0 || next.RangesForNodePort)
	switch {
	case !next.HasSourceRanges:
		next.Sources = nil
	case have.HasSourceRanges && want.HasSourceRanges:
		next.Sources = s.prefixes(have.Sources, want.Sources)
	case want.HasSourceRanges:
		all := stepper{left: s.left, adds: true} // have admits everybody, so that no range is an addition
		next.Sources, s.left = all.prefixes(nil, want.Sources), all.left
	default:
		next.Sources = have.Sources
	}
}

// endpoints moves a list of endpoints. A list with weights is moved at once. Even if nothing may be added, a few
// endpoints come for those that leave: a rolling update must not leave a Service without endpoints.
func (s *stepper) endpoints(
	have []netip.AddrPort, haveWeights []uint16, want []netip.AddrPort, wantWeights []uint16,
) ([]netip.AddrPort, []uint16) {
	compare := netip.AddrPort.Compare
	switch {
	case haveWeights == nil && wantWeights == nil && s.adds:
		return move(s, have, want, compare), nil
	case s.adds && s.left > 0:
		s.left -= differing(have, want, compare)
		return want, wantWeights
	case haveWeights != nil || wantWeights != nil:
		kept, weights := commonWeighted(have, haveWeights, want, compare)
		if len(kept) == 0 && len(have) > 0 && len(want) <= replacements {
			return want, wantWeights
		}
		return kept, weights
	}
	list := move(s, have, want, compare)
	replaced := stepper{left: min(replacements, len(have)-len(list)), adds: true}
	if replaced.left > 0 && len(common(list, want, compare)) == len(list) {
		list = move(&replaced, list, want, compare)
	}
	return list, nil
}

// replacements is how many endpoints of a port may come for others that leave while its namespace waits.
const replacements = 16

// move returns the list that lies between have and want, all of which are sorted: without some that want does not have,
// and, if none of those is left, with some that have does not have.
func move[T comparable](s *stepper, have, want []T, compare func(a, b T) int) []T {
	n := differing(have, want, compare)
	if n == 0 {
		return have
	}
	if n <= s.left && s.adds {
		s.left -= n
		return want
	}
	kept := common(have, want, compare)
	next := make([]T, 0, max(len(have), len(want)))
	for rest, i := kept, 0; i < len(have); i++ {
		switch {
		case len(rest) > 0 && rest[0] == have[i]:
			next, rest = append(next, have[i]), rest[1:]
		case s.left <= 0:
			next = append(next, have[i])
		default:
			s.left--
		}
	}
	if len(next) > len(kept) || !s.adds {
		return next
	}
	next = next[:0]
	for _, x := range want {
		if len(kept) > 0 && kept[0] == x {
			next, kept = append(next, x), kept[1:]
		} else if s.left > 0 {
			next = append(next, x)
			s.left--
		}
	}
	return next
}

// prefixes is move for source ranges: an address that have and want both admit is admitted meanwhile.
func (s *stepper) prefixes(have, want []netip.Prefix) []netip.Prefix {
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

// workBetween returns about how many elements differ between two values of a port, each of which may be nil; 0 if they
// are equal.
func workBetween(have, want *ServicePort) int {
	switch {
	case have == nil && want == nil:
		return 0
	case have == nil:
		return want.size() + affinityWork(nil, want)
	case want == nil:
		return have.size()
	case have == want || have.Equal(want):
		return 0
	}
	return 1 + want.slotWork() + affinityWork(have, want) + rewritten(have, want) + differingEndpoints(have, want) +
		differing(have.LoadBalancers, want.LoadBalancers, netip.Addr.Compare) +
		differing(have.ExternalIPs, want.ExternalIPs, netip.Addr.Compare) +
		differing(have.Sources, want.Sources, comparePrefixes)
}

// differingEndpoints returns in how many endpoints the lists of two values of a port differ.
func differingEndpoints(have, want *ServicePort) int {
	if have.TargetPort != want.TargetPort {
		return len(have.Cluster) + len(have.Local) + len(want.Cluster) + len(want.Local)
	}
	return differing(have.Cluster, want.Cluster, netip.AddrPort.Compare) +
		differing(have.Local, want.Local, netip.AddrPort.Compare)
}

// rewritten returns about how many elements of the endpoint lists are written or removed because a port that stays has
// other frontends or weights, or session affinity is switched on or off.
func rewritten(have, want *ServicePort) int {
	endpoints := len(have.Cluster) + len(have.Local)
	lists := max(have.lists(), want.lists()) - min(have.lists(), want.lists())
	if (have.Affinity == 0) != (want.Affinity == 0) {
		return want.lists() * endpoints
	}
	work := lists * endpoints
	if !slices.Equal(have.ClusterWeights, want.ClusterWeights) {
		work += want.lists() * len(want.Cluster) * maglev.PlacesEach(len(want.Cluster))
	}
	if !slices.Equal(have.LocalWeights, want.LocalWeights) {
		work += want.lists() * len(want.Local) * maglev.PlacesEach(len(want.Local))
	}
	return work
}

// affinityWork is the work of chains that look for a client's affinity entry. They are written anew when the endpoint
// lists of a port become longer or shorter, and for each the kernel goes through all entries of the affinity map: up to
// 20 ms for a port.
func affinityWork(have, want *ServicePort) int {
	if want.Affinity == 0 || have != nil && have.Affinity == want.Affinity && have.TargetPort == want.TargetPort &&
		len(have.Cluster) == len(want.Cluster) && len(have.Local) == len(want.Local) {
		return 0
	}
	return mostWork
}

// lists is how often the tables have the endpoints of a port: mostly once for each frontend, once for very many.
func (p *ServicePort) lists() int {
	lists := 1 + len(p.LoadBalancers) + len(p.ExternalIPs)
	if p.NodePort != 0 {
		lists++
	}
	return min(lists, mostLists)
}

// mostLists is how many frontends have lists of their own. A port with more has lists that they share.
const mostLists = 4

// slotWork is the work of computing a port's slot table. The commits that write the table are bounded by themselves.
func (p *ServicePort) slotWork() int {
	if !p.Settings.Maglev || p.WithoutSlots {
		return 0
	}
	return maglev.Size(len(p.Cluster)) / slotsPerElement
}

// slotsPerElement is how many slots of a table are computed in the time that the kernel takes for an element.
const slotsPerElement = 100

// size returns about how many elements a port takes.
func (p *ServicePort) size() int {
	return 1 + p.slotWork() + len(p.LoadBalancers) + len(p.ExternalIPs) + len(p.Sources) +
		p.lists()*(len(p.Cluster)+len(p.Local))
}

// bare returns p with its cluster IP alone, and without endpoints.
func (p *ServicePort) bare() *ServicePort {
	return &ServicePort{
		ID: p.ID, Created: p.Created, UID: p.UID, Port: p.Port, ClusterIP: p.ClusterIP,
		InternalLocal: p.InternalLocal, Affinity: p.Affinity, Settings: p.Settings, WithoutSlots: p.WithoutSlots,
		Leaving: p.Leaving,
	}
}

// differing returns how many values only one of two sorted lists has.
func differing[T comparable](a, b []T, compare func(a, b T) int) (n int) {
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] { // mostly nearly all is common to both
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 {
		switch c := compare(a[0], b[0]); {
		case c < 0:
			a, n = a[1:], n+1
		case c > 0:
			b, n = b[1:], n+1
		default:
			a, b = a[1:], b[1:]
		}
	}
	return n + len(a) + len(b)
}

// common returns what two sorted lists have in common: list itself if that is all of it.
func common[T comparable](list, other []T, compare func(a, b T) int) []T {
	kept, _ := commonWeighted(list, nil, other, compare)
	return kept
}

// commonWeighted is common for a list with weights, which may be nil.
func commonWeighted[T comparable](list []T, weights []uint16, other []T,
	compare func(a, b T) int) (kept []T, keptWeights []uint16) {
	if slices.Equal(list, other) {
		return list, weights
	}
	kept = list[:0:0]
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
