package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/order"
	"github.com/kube-nft/kube-nft/tracker"
)

// A portState is a Service port that the ruleset serves.
type portState struct {
	current        *tracker.ServicePort
	comment        string // names it
	comments       comments
	frontends      []wantedFrontend
	cluster, local places // its endpoints
	affinity       affinity
	guard          *guard // of a Service with source ranges
	list           sharedList
	limits         limits
}

// hash is what the endpoints of a Service port follow from.
func (p *portState) hash() layout.Hash {
	switch {
	case !p.current.Settings.Maglev || p.limits.withoutSlots || p.limits.withoutHash:
		return layout.NoHash
	case p.current.Settings.HashAddress:
		return layout.HashAddress
	}
	return layout.HashAddressPort
}

// A program is what a frontend is programmed to do; the zero program is nothing.
type program struct {
	policy         layout.Policy
	id             tracker.PortID
	comment        string
	cluster, local places           // the lists that the policy uses
	updateChain    string           // the chain that updates affinity maps; empty without affinity
	serving        []netip.AddrPort // whose flows are left alone
	reset          bool             // connections of TCP and SCTP to other endpoints end
	ping           bool             // its address answers echo requests
}

// comments are those of a Service port's elements: at addresses of load balancers, at those of ipMode Router, and at
// all other frontends.
type comments struct{ loadBalancer, router, other string }

func commentsOf(p *tracker.ServicePort, name string) comments {
	c := comments{other: name}
	if p.Settings != (tracker.Settings{}) {
		c.other = layout.CommentWith(p, "")
	}
	if len(p.LoadBalancers) > 0 {
		c.loadBalancer = layout.CommentWith(p, layout.LoadBalancerWord)
	}
	if len(p.Routers) > 0 {
		c.router = layout.CommentWith(p, layout.RouterWord)
	}
	return c
}

// serve says what the claim's Service port does at its frontend.
func (c claim) serve(f tracker.Frontend) program {
	p := c.port.current
	s := program{id: p.ID, comment: c.port.comments.other, serving: p.Serving, reset: p.Settings.ResetDeparted && p.ID.Protocol != tracker.UDP}
	s.ping = p.Settings.Ping && !c.port.limits.withoutPing && p.HasEndpoints && c.kind != nodePort // an address answers while there are endpoints somewhere
	s.policy = layout.Policy{
		Kind:     c.policyKind(),
		NodePort: c.kind == nodePort,
	}
	if c.kind == loadBalancerIP {
		s.comment = c.port.comments.loadBalancer
		if _, router := slices.BinarySearchFunc(p.Routers, f.Address, netip.Addr.Compare); router {
			s.comment = c.port.comments.router
			if s.policy.Kind == layout.Refused || s.policy.Kind == layout.Dropped {
				s.policy.Kind = layout.Passed
			}
			s.policy.Router = s.policy.Kind == layout.ExternalLocal && c.port.local.len() == 0
		}
	}
	if c.kind == loadBalancerIP && c.port.guard != nil {
		s.policy.Guard = c.port.guard.number
	}
	if c.kind == nodePort && p.NodePortGuarded {
		s.policy.Guard, s.policy.NodePasses = c.port.guard.number, true
	}
	none := s.policy.Kind == layout.Dropped || s.policy.Kind == layout.ExternalLocal && c.port.local.len() == 0
	s.policy.Resets = none && s.reset && p.ID.Protocol == tracker.TCP && !s.policy.Router
	switch s.policy.Kind {
	case layout.Dropped:
		if s.policy.Resets { // of connections that were allowed
			return s
		}
		s.policy.Guard, s.policy.NodePasses = 0, false
		return s
	case layout.Internal, layout.External, layout.ExternalFallback:
		s.cluster = c.port.cluster
	case layout.InternalLocal:
		s.local = c.port.local
	case layout.ExternalLocal:
		s.cluster, s.local = c.port.cluster, c.port.local
	}
	endpoints := s.policy.Kind != layout.Refused && s.policy.Kind != layout.Passed
	if endpoints {
		s.policy.Hash = c.port.hash()
	}
	s.policy.Cluster, s.policy.Local = capacityOf(s.cluster, s.policy.Hash), capacityOf(s.local, s.policy.Hash)
	withAffinity := endpoints && c.port.affinity.number != 0
	if withAffinity { // its chains do not depend on capacities
		s.policy.Affinity, s.policy.Hash = c.port.affinity.number, layout.NoHash
		s.policy.NodePort = c.kind == nodePort && !c.port.sharesExternal()
		s.policy.Cluster, s.policy.Local = min(s.policy.Cluster, 1), min(s.policy.Local, 1)
		s.updateChain = layout.UpdateChain(s.policy.Affinity)
	}
	if c.port.list.number != 0 {
		s.cluster, s.local = places{}, places{}
		if endpoints && !withAffinity { // its chains do not depend on capacities
			s.policy.List, s.policy.Hash = c.port.list.number, layout.NoHash
			s.policy.Cluster, s.policy.Local = min(s.policy.Cluster, 1), min(s.policy.Local, 1)
		}
	}
	return s
}

// PolicyKind chooses the kind of policy from traffic policies and endpoints.
func (c claim) policyKind() layout.PolicyKind {
	p := c.port.current
	kind, usable := layout.External, c.port.cluster.len()
	fallback := p.Settings.LocalFallback && c.port.local.len() == 0
	switch {
	case c.kind == clusterIP && p.InternalLocal && !fallback:
		kind, usable = layout.InternalLocal, c.port.local.len()
	case c.kind == clusterIP:
		kind = layout.Internal
	case p.ExternalLocal && fallback:
		kind = layout.ExternalFallback
	case p.ExternalLocal:
		kind = layout.ExternalLocal
	}
	switch {
	case usable > 0:
		return kind
	case p.HasEndpoints:
		return layout.Dropped
	}
	return layout.Refused
}

// setPort programs a Service port that is new or has changed.
func (r *familyRules) setPort(p *tracker.ServicePort, limits limits) {
	port := r.ports[p.ID]
	if port == nil {
		port = &portState{comment: layout.Comment(p.ID)}
		r.ports[p.ID] = port
		port.list.number, port.cluster.endpoints, port.local.endpoints = r.adoptLists(p)
	}
	before, shown := port.frontends, port.current
	port.current, port.limits, port.comments = p, limits, commentsOf(limits.of(p), port.comment)
	hash := port.hash()
	port.cluster, port.local = limits.arrange(port.cluster, shown, p, hash, false), limits.arrange(port.local, shown, p, hash, true)
	if shown == nil || shown.ClusterIP != p.ClusterIP || !slices.Equal(shown.OnNode, p.OnNode) {
		r.changeShared(shown, p)
	}
	claims := shown == nil || !sameClaims(shown, p)
	if claims {
		port.frontends = frontendsOf(p)
	}
	if len(port.frontends) >= manyFrontends || p.Settings.Maglev || port.list.number != 0 {
		r.setList(port, port.shares())
	}
	if p.Guarded || port.guard != nil {
		r.setGuard(port, p)
	}
	if p.Affinity != 0 || port.affinity.number != 0 {
		r.setAffinity(port, false)
	}
	if !claims {
		for _, wanted := range port.frontends {
			if state := r.frontends[wanted.Frontend]; state.claims.first().port == port {
				r.program(state)
			}
		}
		return
	}
	kept := make(map[tracker.Frontend]bool, len(port.frontends))
	for _, wanted := range port.frontends {
		kept[wanted.Frontend] = true
	}
	for _, wanted := range before {
		if !kept[wanted.Frontend] {
			r.unclaim(wanted.Frontend, port)
		}
	}
	for _, wanted := range port.frontends {
		r.claim(wanted, port)
	}
}

// sameClaims reports whether two values of one Service port claim the same frontends with the
// same right.
func sameClaims(p, q *tracker.ServicePort) bool {
	return p.ClusterIP == q.ClusterIP && p.Port == q.Port && p.NodePort == q.NodePort &&
		p.UID == q.UID && p.Created.Equal(q.Created) &&
		slices.Equal(p.LoadBalancers, q.LoadBalancers) && slices.Equal(p.ExternalIPs, q.ExternalIPs)
}

// removePort takes a Service port out.
func (r *familyRules) removePort(id tracker.PortID) {
	port := r.ports[id]
	if port == nil {
		return
	}
	delete(r.ports, id)
	for _, wanted := range port.frontends {
		r.unclaim(wanted.Frontend, port)
	}
	r.changeShared(port.current, nil)
	r.setAffinity(port, true)
	r.setGuard(port, nil)
	r.setList(port, false)
}

// program makes a frontend do what its first claim says.
func (r *familyRules) program(state *frontendState) {
	var want program
	if first := state.claims.first(); first != nil {
		want = first.serve(state.Frontend)
	}
	f, have := state.Frontend, &state.shown
	if have.policy != want.policy || have.comment != want.comment {
		r.acquire(want.policy) // first, for the two may share chains
		if want.policy.Kind == 0 {
			r.Remove(layout.VerdictMap(f.NodePort()), layout.FrontendKeyOf(f))
		} else {
			r.Put(layout.VerdictMap(f.NodePort()), layout.FrontendKeyOf(f), nft.Element{Verdict: r.verdict(want.policy), Comment: want.comment})
		}
		r.release(have.policy)
	}
	if have.cluster.len()+want.cluster.len() > 0 {
		r.lists.write(layout.EndpointsMapOf(f.NodePort(), false), layout.FrontendKeyOf(f), "", have.cluster, want.cluster)
	}
	if have.local.len()+want.local.len() > 0 {
		r.lists.write(layout.EndpointsMapOf(f.NodePort(), true), layout.FrontendKeyOf(f), "", have.local, want.local)
	}
	if have.updateChain != want.updateChain {
		r.programUpdates(f, want.updateChain)
	}
	if have.ping != want.ping {
		r.pinged.program(r.Journal, f.Address, want.ping)
	}
	r.noteFlows(f, have, &want)
	state.shown = want
}

// noteFlows notes what the change from have to want means for connections. Those of TCP
// and SCTP end by themselves when their endpoint does, unless somebody asks for their reset. With a
// frontend that goes they are left alone: nobody would answer their next segment.
func (r *familyRules) noteFlows(f tracker.Frontend, have, want *program) {
	if (have.policy.Kind == 0) != (want.policy.Kind == 0) || have.reset != want.reset || !slices.Equal(have.serving, want.serving) {
		r.touchedFrontends[f] = struct{}{}
	}
	appeared, reset := want.serves() && !have.serves(), want.reset && !have.reset
	var removed []netip.AddrPort
	if f.Protocol == tracker.UDP || want.reset {
		removed, _ = order.Difference(have.serving, want.serving)
	}
	if !appeared && !reset && len(removed) == 0 {
		return
	}
	change := r.flows[f]
	if change == nil {
		change = &tracker.FlowChange{Frontend: f}
		r.flows[f] = change
	}
	change.Removed = append(change.Removed, removed...)
	change.Gone = len(want.serving) == 0
	change.Appeared = change.Appeared || appeared
	change.Reset = change.Reset || reset
}

// serves reports whether connections are translated.
func (s *program) serves() bool { return s.policy.Kind != 0 && len(s.serving) > 0 }

func (r *familyRules) programUpdates(f tracker.Frontend, chain string) {
	set := layout.AffinityFrontendsMap
	if f.NodePort() {
		set = layout.AffinityNodePortsMap
	}
	if chain == "" {
		r.Remove(set, layout.FrontendKeyOf(f))
		return
	}
	r.Put(set, layout.FrontendKeyOf(f), nft.Element{Verdict: gotoChain(chain)})
}

// changeShared counts the elements that several Service ports may need, of a port that
// changes; nil stands for none. Those that stay are not touched.
func (r *familyRules) changeShared(have, want *tracker.ServicePort) {
	if have == nil || want == nil || have.ClusterIP != want.ClusterIP {
		for _, p := range []*tracker.ServicePort{have, want} {
			if p != nil {
				r.touchedClusterIPs = append(r.touchedClusterIPs, p.ClusterIP)
			}
		}
	}
	for _, element := range sharedOf(want) {
		if r.shared[element]++; r.shared[element] == 1 {
			r.Put(element.set, element.key, nft.Element{})
		}
	}
	for _, element := range sharedOf(have) {
		if r.shared[element]--; r.shared[element] == 0 {
			delete(r.shared, element)
			r.Remove(element.set, element.key)
		}
	}
}

type sharedElement struct{ set, key string }

// sharedOf lists the cluster IP of a Service port, and the endpoints on this node that may
// reach themselves through it.
func sharedOf(p *tracker.ServicePort) []sharedElement {
	if p == nil {
		return nil
	}
	elements := make([]sharedElement, 0, 1+len(p.OnNode))
	elements = append(elements, sharedElement{layout.ClusterIPsSet, nft.AddrKey(p.ClusterIP)})
	for _, ep := range p.OnNode {
		addr := nft.AddrKey(ep.Addr())
		key := addr + addr + layout.FrontendKey(netip.Addr{}, uint8(p.ID.Protocol), ep.Port())
		elements = append(elements, sharedElement{layout.HairpinSet, key})
	}
	return elements
}
