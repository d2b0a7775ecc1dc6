package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// A portState is a Service port that the ruleset serves.
type portState struct {
	current        *tracker.ServicePort
	comment        string // names it
	comments       comments
	frontends      []wantedFrontend
	cluster, local lists.Places // its endpoints
	affinity       portAffinity
	sourceRanges   *sourceRanges        // of its Service; nil if it has none
	list           *lists.Shared        // nil: it has direct lists, as nearly always
	joint          *jointList           // that other ports of its Service may share; nil if it has other lists
	left           *jointList           // joint before, while join works
	wanted         setting              // what it is to become, while apply works
	stays          bool                 // wanted may go on sharing joint
	relists        bool                 // wanted differs in the endpoints of joint alone
	yields         bool                 // wanted differs in GivenUp and Leaving alone
	next, previous *portState           // ports of its Service with the same protocol
	committed      *tracker.ServicePort // what it was at the last commit, if it has changed
	changed        int                  // its place in changedPorts, from 1; 0 if it has not changed
	onNode         []netip.AddrPort     // its endpoints on this node
	limits         limits
	leaving        bool // its Service is being removed, see tracker.Delta.Leaving; current need not say so
}

// hash is what the endpoints of a Service port follow from.
func (p *portState) hash() layout.Hash { return p.limits.hash(p.current) }

// A program is what a frontend is programmed to do; the zero program is nothing.
type program struct {
	policy         layout.Policy
	id             tracker.PortID
	comment        string
	cluster, local lists.Places   // the lists that the policy uses
	updates        uint32         // the number of the chain that updates affinity maps; 0 without affinity
	serving        tracker.Served // whose flows are left alone
	sources        []netip.Prefix // who may connect; nil: every client
	reset          bool           // connections of TCP and SCTP to other endpoints end
	ping           bool           // its address answers echo requests
}

// serve says what the claim's Service port does at its frontend. This is the table of contents of what a Service port
// can ask for: each line is one feature, in the order in which they decide. A later one relies on what an earlier one
// has set. setLoadBalancer alone changes it: a refusal by the traffic policy becomes a pass at an address of ipMode
// Router. A line that refuses connections for another reason belongs behind it, before setReset.
func (c claim) serve(f tracker.Frontend) program {
	p := c.port.current
	s := program{id: p.ID, comment: c.port.comments.other, serving: p.Served()}
	c.setTrafficPolicy(&s)   // policy.go: which endpoints serve; or reject, or drop
	c.setLoadBalancer(f, &s) // load_balancers.go: addresses of load balancers, and their ipMode
	c.setReset(&s)           // reset.go: whether connections of departed endpoints are reset
	c.setSourceRanges(&s)    // source_ranges.go: which clients may connect
	c.setPing(&s)            // ping.go: whether the address answers echo requests
	c.setEndpoints(&s)       // below: how an endpoint is chosen
	return s
}

// setEndpoints says how an endpoint is chosen: by the chains of the Service port's session affinity, from the lists
// that all its frontends share, or from the frontend's own lists.
func (c claim) setEndpoints(s *program) {
	var cluster, local lists.Places
	switch s.policy.Kind {
	case layout.Internal, layout.External, layout.ExternalFallback:
		cluster = c.port.cluster
	case layout.InternalLocal:
		local = c.port.local
	case layout.ExternalLocal:
		cluster, local = c.port.cluster, c.port.local
	default: // no connection is translated
		return
	}
	number := c.port.listNumber()
	if number == 0 {
		s.cluster, s.local = cluster, local
	}
	s.policy.Cluster, s.policy.Local = min(cluster.Len(), 1), min(local.Len(), 1)
	switch {
	case c.port.affinity.Number != 0:
		s.policy.Affinity = c.port.affinity.Number
		s.policy.NodePort = c.kind == nodePort && !c.port.sharesExternal()
		s.updates = s.policy.Affinity
	case number != 0:
		s.policy.List = number
	default:
		s.policy.Hash = c.port.hash()
		s.policy.Cluster, s.policy.Local = cluster.Capacity(), local.Capacity()
	}
}

// setPort programs a Service port that is new or has changed.
func (fr *familyRules) setPort(port *portState, to setting) {
	fr.noteChange(port)
	p, limits := to.ServicePort, to.limits
	if port.relists {
		port.current = p
		port.cluster, port.local = port.joint.Of(p.TargetPort)
		fr.setOnNode(port, p.OnNode)
		fr.programFrontends(port)
		return
	}
	before, shown := port.frontends, port.current
	if port.yields {
		port.current = p
		fr.yield(port)
		return
	}
	back := port.leaving && !p.Leaving && p != shown // its Service has come back
	port.leaving = port.leaving && !back
	port.current, port.limits, port.comments = p, limits, commentsOf(limits.of(p), port.comment)
	if port.joint != nil {
		port.cluster, port.local = port.joint.Of(p.TargetPort)
	} else {
		by := limits.method(p)
		port.cluster = lists.Arrange(port.cluster, shown, p, false, by)
		port.local = lists.Arrange(port.local, shown, p, true, by)
	}
	var clusterIP netip.Addr
	if shown != nil {
		clusterIP = shown.ClusterIP
	}
	fr.setClusterIP(clusterIP, p.ClusterIP)
	fr.setOnNode(port, p.OnNode)
	claims := shown == nil || back || !sameClaims(shown, p)
	if claims {
		port.frontends = frontendsOf(p)
	}
	fr.setList(port, port.joint == nil && port.shares())
	fr.setPortRanges(port, p)
	if p.Affinity != 0 || port.affinity.Number != 0 {
		fr.setAffinity(port, false)
	}
	if claims {
		fr.changeClaims(port, before)
		return
	}
	fr.programFrontends(port)
}

// programFrontends programs the frontends at which a Service port is served.
func (fr *familyRules) programFrontends(port *portState) {
	for _, wanted := range port.frontends {
		fr.refresh(wanted.state, port)
	}
}

// noteChange keeps what a Service port was at the last commit, for PortChanges.
func (fr *familyRules) noteChange(port *portState) {
	if port.changed == 0 {
		fr.changedPorts = append(fr.changedPorts, port)
		port.committed, port.changed = port.current, len(fr.changedPorts)
	}
}

// changeClaims makes a Service port claim its frontends, and no other ones of those that it had before.
func (fr *familyRules) changeClaims(port *portState, before []wantedFrontend) {
	kept := make(map[tracker.Frontend]bool, len(port.frontends))
	for _, wanted := range port.frontends {
		kept[wanted.Frontend] = true
	}
	for _, wanted := range before {
		if !kept[wanted.Frontend] {
			fr.unclaim(wanted.state, port)
		}
	}
	for i := range port.frontends {
		fr.claim(&port.frontends[i], port)
	}
}

// sameClaims reports whether two values of one Service port claim the same frontends with the
// same right.
func sameClaims(p, q *tracker.ServicePort) bool {
	return p.ClusterIP == q.ClusterIP && p.Port == q.Port && p.NodePort == q.NodePort && p.Leaving == q.Leaving &&
		p.UID == q.UID && p.Created.Equal(q.Created) &&
		slices.Equal(p.LoadBalancers, q.LoadBalancers) && slices.Equal(p.ExternalIPs, q.ExternalIPs) &&
		slices.Equal(p.GivenUp, q.GivenUp)
}

// removePort takes a Service port out.
func (fr *familyRules) removePort(id tracker.PortID) {
	port := fr.ports[id]
	if port == nil {
		return
	}
	fr.noteChange(port)
	if port.committed == nil { // it has come since the last commit
		last := len(fr.changedPorts) - 1
		fr.changedPorts[port.changed-1], fr.changedPorts[last].changed = fr.changedPorts[last], port.changed
		fr.changedPorts = fr.changedPorts[:last]
	}
	fr.forgetPort(port)
	for _, wanted := range port.frontends {
		fr.unclaim(wanted.state, port)
	}
	port.frontends, port.leaving = nil, false
	fr.setClusterIP(port.current.ClusterIP, netip.Addr{})
	fr.setOnNode(port, nil)
	fr.setAffinity(port, true)
	fr.setPortRanges(port, nil)
	fr.setList(port, false)
}

// program makes a frontend do what its first claim says.
func (fr *familyRules) program(state *frontendState) {
	var want program
	if first := state.claims.first(); first != nil {
		want = first.serve(state.Frontend)
	}
	state.passing = false
	fr.reach(state, want)
}

// reach makes a frontend do what a program says.
func (fr *familyRules) reach(state *frontendState, want program) {
	f, have := state.Frontend, &state.shown
	if have.id != want.id {
		fr.overlaps.touch(f)
	}
	if have.policy != want.policy || have.comment != want.comment {
		fr.acquire(want.policy) // first, for the two may share chains
		if want.policy.Kind == 0 {
			fr.Remove(layout.VerdictMap(f.NodePort()), layout.FrontendKeyOf(f))
		} else {
			fr.Put(layout.VerdictMap(f.NodePort()), layout.FrontendKeyOf(f), nft.Element{Verdict: fr.verdict(want.policy),
				Comment: want.comment})
		}
		fr.release(have.policy)
	}
	if have.cluster.Len()+want.cluster.Len() > 0 {
		fr.lists.Write(layout.EndpointsMapOf(f, false), layout.FrontendKeyOf(f), "", have.cluster, want.cluster)
	}
	if have.local.Len()+want.local.Len() > 0 {
		fr.lists.Write(layout.EndpointsMapOf(f, true), layout.FrontendKeyOf(f), "", have.local, want.local)
	}
	if have.ping != want.ping {
		fr.programPing(f.Address, want.ping)
	}
	if have.updates != want.updates {
		fr.programUpdates(f, want.updates)
	}
	fr.touch(state, &want)
	state.shown = want
	fr.programHiding(state)
}

// touch notes that a frontend is about to do what a program says.
func (fr *familyRules) touch(state *frontendState, want *program) {
	if state.touched || state.shown.id == want.id && state.shown.sameConnections(want) {
		return
	}
	state.touched, state.before = true, state.shown.connections()
	fr.touchedFrontends = append(fr.touchedFrontends, state)
}

// programUpdates leads connections of a frontend to the chain with a number that updates affinity maps.
func (fr *familyRules) programUpdates(f tracker.Frontend, number uint32) {
	set := layout.AffinityFrontendsMap
	if f.NodePort() {
		set = layout.AffinityNodePortsMap
	}
	if number == 0 {
		fr.Remove(set, layout.FrontendKeyOf(f))
		return
	}
	fr.Put(set, layout.FrontendKeyOf(f), nft.Element{Verdict: new(nft.Goto(layout.UpdateChain(number)))})
}

// programHiding keeps a load-balancer IP or external IP apart from the node ports that are served at its address:
// what updates affinity maps would take it for a node port with the same number. Whether there is one does not matter
// here, or a node port that comes or goes would change an element of each such address.
func (fr *familyRules) programHiding(state *frontendState) {
	hides := false
	if first := state.claims.first(); first != nil && (first.kind == loadBalancerIP || first.kind == externalIP) {
		_, served := fr.Table.Sets[layout.NodePortAddressesSet].Map[nft.AddrKey(state.Address)]
		hides = served || fr.config.AllNodePorts[fr.Table.Family]
	}
	switch {
	case hides == state.hidesPort:
	case hides:
		fr.Put(layout.BeforeNodePortsSet, layout.FrontendKeyOf(state.Frontend), nft.Element{})
	default:
		fr.Remove(layout.BeforeNodePortsSet, layout.FrontendKeyOf(state.Frontend))
	}
	state.hidesPort = hides
}

// setClusterIP counts the Service ports that have a cluster IP. The zero address stands for none.
func (fr *familyRules) setClusterIP(have, want netip.Addr) {
	if have == want {
		return
	}
	for _, addr := range []netip.Addr{have, want} {
		if addr.IsValid() {
			fr.touchedClusterIPs = append(fr.touchedClusterIPs, addr)
		}
	}
	if want.IsValid() {
		fr.share(sharedElement{layout.ClusterIPsSet, nft.AddrKey(want)})
	}
	if have.IsValid() {
		fr.unshare(sharedElement{layout.ClusterIPsSet, nft.AddrKey(have)})
	}
}

// setOnNode sets which endpoints of a Service port are on this node: they may reach themselves through it.
func (fr *familyRules) setOnNode(port *portState, list []netip.AddrPort) {
	before := port.onNode
	if slices.Equal(before, list) {
		return
	}
	port.onNode = list
	var left, came []netip.AddrPort
	if id := tracker.MemoryOf(list); len(list) > 0 {
		if fr.onNode[id]++; fr.onNode[id] == 1 {
			came = list
		}
	}
	if id := tracker.MemoryOf(before); len(before) > 0 {
		if fr.onNode[id]--; fr.onNode[id] == 0 {
			delete(fr.onNode, id)
			left = before
		}
	}
	byAddr := func(a, b netip.AddrPort) int { return a.Addr().Compare(b.Addr()) }
	left, came = tracker.Difference(left, came, byAddr) // their ports do not matter
	for _, ep := range came {
		fr.share(hairpin(ep.Addr()))
	}
	for _, ep := range left {
		fr.unshare(hairpin(ep.Addr()))
	}
}

// share counts a user of an element, and puts it in place for the first one. unshare removes it with the last.
func (fr *familyRules) share(element sharedElement) {
	if fr.shared[element]++; fr.shared[element] == 1 {
		fr.Put(element.set, element.key, nft.Element{})
	}
}

func (fr *familyRules) unshare(element sharedElement) {
	if fr.shared[element]--; fr.shared[element] == 0 {
		delete(fr.shared, element)
		fr.Remove(element.set, element.key)
	}
}

type sharedElement struct{ set, key string }

// hairpin is the element for an endpoint that may be its own client, whatever the port.
func hairpin(endpoint netip.Addr) sharedElement {
	key := nft.AddrKey(endpoint)
	return sharedElement{layout.HairpinSet, key + key}
}
