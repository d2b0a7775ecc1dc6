package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// A portState is a Service port that the ruleset serves.
type portState struct {
	current        *tracker.ServicePort
	comment        string
	frontends      []wantedFrontend
	cluster, local []netip.AddrPort // its endpoints, in the order of their indexes
	affinity       affinity
}

// A service is what a frontend is programmed to do; the zero service is nothing.
type program struct {
	policy         policy
	id             tracker.PortID
	comment        string
	cluster, local []netip.AddrPort // the lists that the policy uses
	sources        []netip.Prefix   // of a guarded policy
	updateChain    string           // the chain that remembers clients; empty without affinity
	serving        []netip.AddrPort // whose flows are left alone
}

// serve says what the claim's Service port does at its frontend.
func (c claim) serve() program {
	p := c.port.current
	s := program{id: p.ID, comment: c.port.comment, serving: p.Serving}
	s.policy = policy{
		kind:     c.policyKind(),
		nodePort: c.kind == nodePort,
		guarded:  c.kind == loadBalancerIP && p.Guarded,
	}
	switch s.policy.kind {
	case dropped:
		s.policy.guarded = false
		return s
	case internal, external:
		s.cluster = c.port.cluster
	case internalLocal:
		s.local = c.port.local
	case externalLocal:
		s.cluster, s.local = c.port.cluster, c.port.local
	}
	if s.policy.guarded {
		s.sources = p.Sources
	}
	s.policy.cluster, s.policy.local = capacity(len(s.cluster)), capacity(len(s.local))
	if s.policy.kind != refused && c.port.affinity.name != "" {
		s.policy.affinity = c.port.affinity.name
		s.updateChain = updateChainName(s.policy.affinity)
	}
	return s
}

// policyKind chooses the kind of policy from traffic policies and endpoints.
func (c claim) policyKind() policyKind {
	p := c.port.current
	kind, usable := external, len(c.port.cluster)
	switch {
	case c.kind == clusterIP && p.InternalLocal:
		kind, usable = internalLocal, len(c.port.local)
	case c.kind == clusterIP:
		kind = internal
	case p.ExternalLocal:
		kind = externalLocal
	}
	switch {
	case usable > 0:
		return kind
	case p.HasEndpoints:
		return dropped
	}
	return refused
}

// setPort programs a Service port that is new or has changed.
func (r *familyRules) setPort(p *tracker.ServicePort) {
	port := r.ports[p.ID]
	if port == nil {
		port = &portState{comment: comment(p.ID)}
		r.ports[p.ID] = port
		port.cluster, port.local = r.adoptLists(p)
	}
	before, shown := port.frontends, port.current
	port.current = p
	moved := shown == nil || !sameFrontends(shown, p)
	if moved {
		port.frontends = frontendsOf(p)
	}
	port.order(shown)
	r.changeShared(shown, p)
	r.setAffinity(port, affinityOf(port))
	if moved && before != nil {
		r.unclaimAll(before, port)
	}
	for _, wanted := range port.frontends {
		r.claim(wanted.Frontend, claim{port, wanted.kind})
	}
}

// order brings the endpoints of the current value into the order of their indexes. shown is
// the value before, nil if there was none: what is in order then was found in the kernel.
func (p *portState) order(shown *tracker.ServicePort) {
	if shown == nil {
		p.cluster, p.local = reorderAdopted(p.cluster, p.current.Cluster), reorderAdopted(p.local, p.current.Local)
		return
	}
	p.cluster = reorder(p.cluster, shown.Cluster, p.current.Cluster)
	p.local = reorder(p.local, shown.Local, p.current.Local)
}

// unclaimAll gives up those of some frontends that the port does not want any more.
func (r *familyRules) unclaimAll(frontends []wantedFrontend, port *portState) {
	kept := make(map[tracker.Frontend]bool, len(port.frontends))
	for _, wanted := range port.frontends {
		kept[wanted.Frontend] = true
	}
	for _, wanted := range frontends {
		if !kept[wanted.Frontend] {
			r.unclaim(wanted.Frontend, port)
		}
	}
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
	r.setAffinity(port, affinity{})
}

func (r *familyRules) claim(f tracker.Frontend, c claim) {
	state := r.frontends[f]
	if state == nil {
		state = &frontendState{Frontend: f}
		r.frontends[f] = state
	}
	state.claim(c)
	r.program(state)
}

func (r *familyRules) unclaim(f tracker.Frontend, port *portState) {
	state := r.frontends[f]
	state.drop(port)
	r.program(state)
	if len(state.claims) == 0 {
		delete(r.frontends, f)
	}
}

// program makes a frontend do what its first claim says.
func (r *familyRules) program(state *frontendState) {
	var want program
	if len(state.claims) > 0 {
		want = state.claims[0].serve()
	}
	have := &state.shown
	if have.policy != want.policy || have.comment != want.comment {
		r.acquire(want.policy) // first, for the two may share chains
		r.programVerdict(state.Frontend, &want)
		r.release(have.policy)
	}
	r.programList(state.Frontend, false, have.cluster, want.cluster)
	r.programList(state.Frontend, true, have.local, want.local)
	r.programSources(state.Frontend, have.sources, want.sources)
	r.programUpdates(state.Frontend, have.updateChain, want.updateChain)
	r.noteFlows(state.Frontend, have, &want)
	r.noteConflicts(state)
	state.shown = want
}

func (r *familyRules) programVerdict(f tracker.Frontend, want *program) {
	if want.policy.kind == 0 {
		r.Remove(verdictMap(f.NodePort()), frontendKeyOf(f))
		return
	}
	r.Put(verdictMap(f.NodePort()), frontendKeyOf(f), nft.Element{Verdict: r.verdict(want.policy), Comment: want.comment})
}

// programList writes the elements in which two lists differ, index by index.
func (r *familyRules) programList(f tracker.Frontend, local bool, have, want []netip.AddrPort) {
	set, key := listOf(f.NodePort(), local).Map, ""
	for i := range max(len(have), len(want)) {
		if i < len(have) && i < len(want) && have[i] == want[i] {
			continue
		}
		if key == "" {
			key = frontendKeyOf(f)
		}
		if i < len(want) {
			r.Put(set, nft.IndexedKey(key, i), nft.Element{Data: nft.AddrPortData(want[i])})
		} else {
			r.Remove(set, nft.IndexedKey(key, i))
		}
	}
}

func (r *familyRules) programSources(f tracker.Frontend, have, want []netip.Prefix) {
	if slices.Equal(have, want) {
		return
	}
	for _, source := range have {
		if !slices.Contains(want, source) {
			r.Remove(allowedSourcesSet, nft.RangeKey(frontendKeyOf(f), source))
		}
	}
	for _, source := range want {
		r.Put(allowedSourcesSet, nft.RangeKey(frontendKeyOf(f), source), nft.Element{})
	}
}

func (r *familyRules) programUpdates(f tracker.Frontend, have, chain string) {
	if have == chain {
		return
	}
	set := affinityFrontendsMap
	if f.NodePort() {
		set = affinityNodePortsMap
	}
	if chain == "" {
		r.Remove(set, frontendKeyOf(f))
		return
	}
	r.Put(set, frontendKeyOf(f), nft.Element{Verdict: gotoChain(chain)})
}

// changeShared counts the elements that several Service ports may need, of a port that
// changes; nil stands for none. Those that stay are not touched.
func (r *familyRules) changeShared(have, want *tracker.ServicePort) {
	if have != nil && want != nil && have.ClusterIP == want.ClusterIP && slices.Equal(have.OnNode, want.OnNode) {
		return
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
	elements = append(elements, sharedElement{clusterIPsSet, nft.AddrKey(p.ClusterIP)})
	for _, ep := range p.OnNode {
		addr := nft.AddrKey(ep.Addr())
		key := addr + addr + frontendKey(netip.Addr{}, uint8(p.ID.Protocol), ep.Port())
		elements = append(elements, sharedElement{hairpinSet, key})
	}
	return elements
}
