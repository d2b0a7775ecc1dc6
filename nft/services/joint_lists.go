package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// A jointList has the endpoints of a port, or of several ports of a Service with the same ones. The tracker gives such
// ports the same *tracker.Lists. join finds them by the memory of Cluster and Local.
type jointList struct {
	*lists.Joint
	members [2][]netip.Addr // endpoints that affinity entries may name; none if no port has session affinity
	ports   int             // that share it
}

// keptPlaces is the part of manyPlaces down to which ports keep a joint list. To leave it, or to come back, each port
// changes its verdict or, with session affinity, its chains: 300 ports take 20 ms in the kernel.
const keptPlaces = 16

// A serviceKey names the ports of a Service that may have joint lists.
type serviceKey struct {
	namespace, service string
	protocol           tracker.Protocol
}

func serviceOf(id tracker.PortID) serviceKey {
	return serviceKey{id.Namespace, id.Service, id.Protocol}
}

// A setting is what a Service port is to become.
type setting struct {
	*tracker.ServicePort
	limits limits
}

// becomes is what a Service port is to become, or what it stays.
func (p *portState) becomes() setting {
	if p.wanted.ServicePort == nil {
		return setting{p.current, p.limits}
	}
	return p.wanted
}

// want notes what a Service port is to become.
func (p *portState) want(to setting) {
	was, now := p.current, to.ServicePort
	p.wanted = to
	p.stays = p.joint != nil && p.limits == to.limits && to.limits.hash(now) == layout.NoHash &&
		was.TargetPort == now.TargetPort && was.Port == now.Port && was.NodePort == now.NodePort
	p.relists = p.stays && !p.leaving &&
		(len(was.Cluster) == 0) == (len(now.Cluster) == 0) && (len(was.Local) == 0) == (len(now.Local) == 0) &&
		tracker.SameMemory(was.Sources, now.Sources) && was.EqualBesideEndpoints(now)
	p.yields = false
	if was != nil && !p.leaving && p.limits == to.limits &&
		(was.Leaving != now.Leaving || !slices.Equal(was.GivenUp, now.GivenUp)) {
		like := was.With(func(spec *tracker.PortSpec) {
			spec.GivenUp, spec.Leaving = now.GivenUp, now.Leaving
			spec.HealthCheckNodePort = now.HealthCheckNodePort // not in the tables, nor is LocalReady
		})
		like.LocalReady = now.LocalReady
		p.yields = like.Equal(now)
	}
}

// A jointGroup is ports of a Service that have the same endpoints.
type jointGroup struct {
	ports     []*portState
	targets   map[uint16]lists.Target // by the port that connections go to
	places    int                     // elements of direct lists
	frontends int
	list      *jointList
}

// move is about how many elements are written if the group gets another list. Where ports that shared a list part, the
// group with the most keeps it.
func (g *jointGroup) move() int {
	first := g.ports[0].becomes()
	return g.frontends + len(first.Cluster) + len(first.Local)
}

// portOf returns the state of a Service port, new or not. before is that of the port before it in a delta, or nil:
// mostly the two came in this order, too.
func (fr *familyRules) portOf(p *tracker.ServicePort, before *portState) *portState {
	if before != nil {
		if next := before.previous; next != nil && next.current != nil && next.current.ID == p.ID {
			return next
		}
	}
	port := fr.ports[p.ID]
	if port != nil {
		return port
	}
	first := fr.siblings[serviceOf(p.ID)]
	port = &portState{comment: layout.Comment(p.ID), next: first}
	if first != nil {
		first.previous = port
	}
	fr.ports[p.ID], fr.siblings[serviceOf(p.ID)] = port, port
	port.list, port.cluster.Endpoints, port.local.Endpoints = fr.adoptLists(p)
	return port
}

// forgetPort takes a port out of its Service.
func (fr *familyRules) forgetPort(port *portState) {
	delete(fr.ports, port.current.ID)
	if port.next != nil {
		port.next.previous = port.previous
	}
	switch key := serviceOf(port.current.ID); {
	case port.previous != nil:
		port.previous.next = port.next
	case port.next != nil:
		fr.siblings[key] = port.next
	default:
		delete(fr.siblings, key)
	}
}

// leave makes all ports of a Service give way to others.
func (fr *familyRules) leave(service tracker.ServiceID) {
	for _, protocol := range []tracker.Protocol{tracker.TCP, tracker.UDP, tracker.SCTP} {
		for port := fr.siblings[serviceKey{service.Namespace, service.Service, protocol}]; port != nil; port = port.next {
			port.leaving = true
			for i := 0; fr.standing > 0 && i < len(port.frontends); i++ {
				if f := &port.frontends[i]; f.state.claims.losers() > 0 {
					f.givenUp = true
					fr.claim(f, port)
				}
			}
		}
	}
}

// mayJoin reports whether join may have something to do. Most Services have one port and few endpoints. At a start, the
// kernel may hold a list that a port keeps.
func (fr *familyRules) mayJoin(key serviceKey) bool {
	first := fr.siblings[key]
	switch {
	case fr.adopted != nil || len(fr.joints[key]) > 0:
		return true
	case first == nil: // the Service is gone
		return false
	}
	s := first.becomes()
	return first.next != nil || s.Frontends()*(len(s.Cluster)+len(s.Local)) >= manyPlaces
}

// join decides which ports of a Service share a list, and writes their lists. Those that are wanted otherwise are set
// afterwards. Other ports that share a list from now on, or no more, are set at once.
func (fr *familyRules) join(key serviceKey) {
	if len(fr.joints[key]) == 1 && fr.relist(fr.siblings[key]) {
		return
	}
	groups := fr.jointGroups(key)
	slices.SortStableFunc(groups, func(a, b *jointGroup) int { return cmp.Compare(b.move(), a.move()) })
	joints, taken := fr.joints[key], make(map[*jointList]bool)
	for port := fr.siblings[key]; port != nil; port = port.next {
		port.left, port.joint = port.joint, nil
	}
	for _, g := range groups {
		if g.places < manyPlaces/keptPlaces {
			continue
		}
		if g.list = g.mostlyIn(taken); g.list == nil {
			g.list = fr.adoptJoint(g)
		}
		if g.list == nil && g.places >= manyPlaces {
			g.list = fr.newJoint(g, joints)
		}
		if g.list == nil {
			continue
		}
		if !slices.Contains(joints, g.list) {
			joints = append(joints, g.list)
		}
		taken[g.list] = true
		fr.setJoint(g)
	}
	joints = slices.DeleteFunc(joints, func(l *jointList) bool {
		if !taken[l] {
			fr.setJointMembers(l, key.namespace, [2][]netip.AddrPort{})
			fr.lists.RemoveJoint(l.Joint)
		}
		return !taken[l]
	})
	if fr.joints[key] = joints; len(joints) == 0 {
		delete(fr.joints, key)
	}
	for port := fr.siblings[key]; port != nil; port = port.next {
		if port.left != port.joint {
			if port.relists, port.yields = false, false; port.wanted.ServicePort == nil {
				fr.setPort(port, port.becomes())
			}
		}
		port.left = nil
	}
}

// relist is join for ports that all share one list and go on doing so; first is the first of them. If a port does not,
// it changes nothing and returns false. A Service may have 10,000 ports, of which few change at a time.
func (fr *familyRules) relist(first *portState) bool {
	if first == nil || first.joint == nil {
		return false
	}
	like := first.becomes()
	n, sticky := 0, false
	for port := first; port != nil; port = port.next {
		s := port.becomes()
		if port.joint != first.joint || port.wanted.ServicePort != nil && !port.stays || !sameLists(s.Lists, like.Lists) {
			return false
		}
		n, sticky = n+1, sticky || s.Affinity != 0
	}
	switch {
	case n*(len(like.Cluster)+len(like.Local)) < manyPlaces/keptPlaces:
		return false
	case n == first.joint.ports:
		fr.setEndpoints(first.joint, like, sticky)
	default: // some have gone
		g := &jointGroup{list: first.joint, targets: make(map[uint16]lists.Target, n)}
		for port := first; port != nil; port = port.next {
			g.add(port, port.becomes())
		}
		fr.setJoint(g)
	}
	return true
}

// sameLists reports whether ports with these lists may share one.
func sameLists(a, b *tracker.Lists) bool {
	return a == b || tracker.SameMemory(a.Cluster, b.Cluster) && tracker.SameMemory(a.Local, b.Local) &&
		slices.Equal(a.ClusterWeights, b.ClusterWeights) && slices.Equal(a.LocalWeights, b.LocalWeights)
}

// jointGroups returns the groups of ports with the same endpoints. A port is in none if its endpoints are chosen by a
// hash, or if their ports differ.
func (fr *familyRules) jointGroups(key serviceKey) (groups []*jointGroup) {
	type listPair struct {
		cluster, local tracker.Memory[netip.AddrPort]
	}
	var candidates []*portState
	for port := fr.siblings[key]; port != nil; port = port.next {
		s := port.becomes()
		if s.limits.hash(s.ServicePort) == layout.NoHash && s.TargetPort != 0 && len(s.Cluster)+len(s.Local) > 0 {
			candidates = append(candidates, port)
		}
	}
	slices.SortFunc(candidates, func(a, b *portState) int {
		return byID(a.becomes().ServicePort, b.becomes().ServicePort)
	})
	known := make(map[listPair][]*jointGroup)
	for _, port := range candidates {
		s := port.becomes()
		of := listPair{tracker.MemoryOf(s.Cluster), tracker.MemoryOf(s.Local)}
		alike := known[of]
		fits := slices.IndexFunc(alike, func(g *jointGroup) bool { return g.fits(s) })
		if fits < 0 {
			fits = len(alike)
			g := &jointGroup{targets: make(map[uint16]lists.Target, len(candidates)/(len(groups)+1))}
			alike, groups = append(alike, g), append(groups, g)
			known[of] = alike
		}
		alike[fits].add(port, s)
	}
	return groups
}

// fits reports whether a port with the same lists may share the list of the group. No more than three groups have the
// same lists: a port meets one port at most that is its node port, and one whose node port it is.
func (g *jointGroup) fits(s setting) bool {
	for _, port := range []uint16{s.Port, s.NodePort} {
		if target, taken := g.targets[port]; taken && target.Port != s.TargetPort {
			return false
		}
	}
	return sameLists(g.ports[0].becomes().Lists, s.Lists)
}

// add adds a port to the group.
func (g *jointGroup) add(port *portState, s setting) {
	g.ports = append(g.ports, port)
	target := lists.Target{Port: s.TargetPort, Comment: port.comment}
	for _, port := range []uint16{s.Port, s.NodePort} {
		if port != 0 && target.Comment > g.targets[port].Comment { // of two ports, it names the same one each time
			g.targets[port] = target
		}
	}
	g.frontends += s.Frontends()
	g.places += s.Frontends() * (len(s.Cluster) + len(s.Local))
}

// mostlyIn returns the list that most ports of the group share so far, of those that no other group has taken.
func (g *jointGroup) mostlyIn(taken map[*jointList]bool) (most *jointList) {
	votes := make(map[*jointList]int)
	for _, port := range g.ports {
		if l := port.left; l != nil && !taken[l] {
			if votes[l]++; most == nil || votes[l] > votes[most] {
				most = l
			}
		}
	}
	return most
}

// A jointPort names a port of a Service, as the maps of ports do.
type jointPort struct{ protocol, comment string }

// adoptJoint returns the list that a port of the group shares in the kernel; nil if there is none, or if its number is
// in use. The maps of ports name the ports of Services.
func (fr *familyRules) adoptJoint(g *jointGroup) *jointList {
	if fr.adopted == nil {
		return nil
	}
	if fr.adoptedJoints == nil {
		fr.adoptedJoints = make(map[jointPort]uint32)
		for name, set := range fr.adopted.Sets {
			protocol, ports := layout.HoldsPorts(name)
			if !ports {
				continue
			}
			for key, element := range set.Map {
				if number, _, ok := layout.InList(name, key); ok {
					fr.adoptedJoints[jointPort{protocol, element.Comment}] = number
				}
			}
		}
	}
	for _, port := range g.ports {
		number, found := fr.adoptedJoints[jointPort{port.becomes().ID.Protocol.String(), port.comment}]
		if _, taken := fr.numbers[number]; !found || taken {
			continue
		}
		var places [2]lists.Places
		for i := range places {
			places[i].Endpoints, _ = fr.readAdopted().SharedList(number, i == 1)
		}
		fr.numbers[number] = "adopted " + strconv.FormatUint(uint64(number), 10)
		return &jointList{Joint: fr.lists.NewJoint(number, port.becomes().ID, nil, places)}
	}
	return nil
}

// newJoint makes a list for a group, beside others of the Service. It begins with the order in which the first port has
// the endpoints.
func (fr *familyRules) newJoint(g *jointGroup, others []*jointList) *jointList {
	first := g.ports[0]
	id := first.becomes().ID
	identity := "joint list " + id.String()
	has := func(l *jointList) bool { return fr.numbers[l.Number] == identity }
	for slices.ContainsFunc(others, has) {
		identity += " again" // the port has left that list
	}
	return &jointList{Joint: fr.lists.NewJoint(fr.numberOf(identity), id, first.current,
		[2]lists.Places{first.cluster, first.local})}
}

// setJoint makes the list of a group hold the endpoints that the group wants, and the target ports of its ports.
func (fr *familyRules) setJoint(g *jointGroup) {
	sticky := slices.ContainsFunc(g.ports, func(p *portState) bool { return p.becomes().Affinity != 0 })
	fr.setEndpoints(g.list, g.ports[0].becomes(), sticky)
	fr.lists.SetTargets(g.list.Joint, g.targets)
	g.list.ports = len(g.ports)
	for _, port := range g.ports {
		port.joint = g.list
	}
}

// setEndpoints makes a list hold the endpoints of one of its ports. sticky says that a port has session affinity.
func (fr *familyRules) setEndpoints(l *jointList, like setting, sticky bool) {
	fr.lists.SetJoint(l.Joint, like.ServicePort, like.limits.method(like.ServicePort))
	var members [2][]netip.AddrPort
	if sticky {
		members = [2][]netip.AddrPort{like.Cluster, like.Local}
	}
	fr.setJointMembers(l, like.ID.Namespace, members)
}

// setJointMembers makes the set of members hold endpoints that affinity entries of the ports may name: cluster-wide and
// on this node.
func (fr *familyRules) setJointMembers(l *jointList, namespace string, endpoints [2][]netip.AddrPort) {
	for i, list := range endpoints {
		have := l.members[i]
		l.members[i] = nil
		for _, ep := range list {
			l.members[i] = append(l.members[i], ep.Addr())
		}
		fr.programMembers(have, affinity.List{Family: fr.Table.Family, Number: layout.ListNumber(l.Number, i == 1),
			Map: affinityMap(namespace), Members: l.members[i]})
	}
}
