package services

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// A portAffinity is the session affinity of a Service port, with its chains: at most six. Maps per Service
// port would need no numbers, but 4,000 Services took 7 s: the kernel walks the list of a table's sets for
// each set that it makes and for each rule that names one.
type portAffinity struct {
	affinity.Port
	policies []stickyPolicy // of its frontends; with the Port, all that its chains follow from
	chains   []*nft.Chain
	balances []lists.Balance // to whose chains its chains go
}

// A stickyPolicy is what the chain of a policy follows from, see affinityWays.
type stickyPolicy struct {
	layout.Policy
	choices       affinity.Choices
	sharesCluster bool
}

// affinitySettings say how the chains of session affinity look in a table.
func (c *Config) affinitySettings(f nft.Family) *affinity.Settings {
	return &affinity.Settings{
		Family: f, Masquerade: c.masqueradeInternal(f), MarksUnlessPod: !c.MasqueradeAll && !c.Pods[f].None(),
		AllNodePorts: c.AllNodePorts[f], Size: c.AffinitySize,
	}
}

// affinityMap names the map that has the affinity entries of a namespace.
func affinityMap(namespace string) string {
	return layout.AffinityMap(layout.ListNumber(hashOf(namespace)%layout.AffinityMaps, false))
}

// affinityNumbers is numberOf for the session affinity of a namespace. All its numbers have one affinity map.
func (fr *familyRules) affinityNumbers(namespace string) func(identity string) uint32 {
	const step = layout.AffinityMaps
	return func(identity string) uint32 {
		return fr.freeNumber(identity, max(step, hashOf(identity)/step*step)+hashOf(namespace)%step, step)
	}
}

// setAffinity makes the tables have the affinity that a Service port wants. With remove, it takes away what
// they have.
func (fr *familyRules) setAffinity(port *portState, remove bool) {
	have := port.affinity
	port.affinity = portAffinity{}
	want := &port.affinity
	if !remove {
		want.Port = fr.wantedAffinity(port, &have.Port)
	}
	switch {
	case have.Number == 0 && want.Number == 0:
		return
	case have.Number == 0:
		fr.acquireUpdates(want.Map())
	case want.Number == 0:
		defer fr.releaseUpdates(have.Map())
	}
	if want.Number != 0 {
		fr.choosePolicies(port)
	}
	fr.setMembers(have.Lists, want.Lists)
	if have.EqualGroups(&want.Port) && slices.Equal(have.policies, want.policies) {
		want.chains = have.chains
		return
	}
	if want.Number != 0 {
		fr.declareAffinity(want)
	}
	for _, pick := range want.balances {
		fr.acquireBalance(pick)
	}
	fr.programChains(have.chains, want.chains)
	for _, pick := range have.balances {
		fr.releaseBalance(pick)
	}
	change := have.Compare(&want.Port)
	for _, group := range change.Groups {
		fr.affinityGroups[group.Number] = group
	}
	for _, number := range change.Freed {
		delete(fr.numbers, number)
	}
}

// wantedAffinity is the affinity that a Service port asks for.
func (fr *familyRules) wantedAffinity(port *portState, have *affinity.Port) affinity.Port {
	p := port.current
	if p.Affinity == 0 {
		return affinity.Port{}
	}
	facts := affinity.Facts{ID: p.ID, Timeout: p.Affinity, Several: p.Several}
	if l := port.joint; l != nil {
		facts.Joint = affinity.Joint{Number: l.Number, Port: p.TargetPort, Has: [2]bool{len(p.Cluster) > 0, len(p.Local) > 0}}
	} else {
		facts.Cluster, facts.Local = p.Endpoints(p.Cluster), p.Endpoints(p.Local)
	}
	if p.InternalLocal && !p.Settings.LocalFallback && !p.External() {
		facts.Cluster, facts.Joint.Has[0] = nil, false // no frontend uses this list
	}
	return have.Next(facts, fr.affinityNumbers(p.ID.Namespace))
}

// choosePolicies works out the policies of a Service port with affinity.
func (fr *familyRules) choosePolicies(port *portState) {
	a := &port.affinity
	known := func(p layout.Policy) bool {
		return slices.ContainsFunc(a.policies, func(q stickyPolicy) bool {
			return q.Policy == p || q.ChainName() == p.ChainName()
		})
	}
	for _, wanted := range port.frontends {
		p := claim{port: port, kind: wanted.kind}.serve(wanted.Frontend).policy.Open()
		if p.Affinity == 0 || known(p) {
			continue
		}
		var choices affinity.Choices
		if p.Kind != layout.InternalLocal {
			choices.Cluster = fr.affinityChoice(port, p, false)
		}
		if p.Local > 0 {
			choices.Local = fr.affinityChoice(port, p, true)
		}
		a.policies = append(a.policies, stickyPolicy{p, choices, port.sharesCluster()})
	}
}

// declareAffinity declares the chains of a Service port with affinity: those that follow and update entries, and one
// for each policy.
func (fr *familyRules) declareAffinity(a *portAffinity) {
	a.chains = append(a.FollowChains(fr.Table.Family), a.UpdateChain(fr.affinity))
	for _, p := range a.policies {
		a.chains = append(a.chains, fr.config.policyChain(p.Policy, fr.Table.Family, fr.affinityWays(a, p)))
	}
}

// affinityWays are those of a policy of a Service port with session affinity. If its chain of the cluster IP can serve
// clients of other frontends, too, they go there.
func (fr *familyRules) affinityWays(a *portAffinity, p stickyPolicy) ways {
	w := ways{masquerade: fr.affinity.Mark()}
	w.choose = func(local bool, who ...nft.Stmt) []nft.Rule { return a.Choose(fr.Table.Family, p.choices, local, who) }
	w.everywhere = func(who ...nft.Stmt) []nft.Rule {
		if !p.sharesCluster {
			return w.choose(false, who...)
		}
		cluster := layout.Policy{Kind: layout.Internal, Affinity: p.Affinity}
		return []nft.Rule{append(nft.Rule(who), nft.Goto(cluster.ChainName()))}
	}
	w.pods = w.everywhere
	if fr.config.MasqueradeAll { // the chain of the cluster IP would masquerade pods, too
		w.pods = func(who ...nft.Stmt) []nft.Rule { return w.choose(false, who...) }
	}
	w.node = func() []nft.Rule {
		node := nft.AddressLocal{Of: nft.Source}
		return append([]nft.Rule{{node, nft.Jump(layout.MarkChain)}}, w.everywhere(node)...)
	}
	return w
}

// affinityChoice says which chains choose among the endpoints of a list, and records that they are used.
func (fr *familyRules) affinityChoice(port *portState, p layout.Policy, local bool) (c affinity.Choice) {
	if number := port.listNumber(); number != 0 {
		c.Chain = layout.ListChain(number, local)
		return c
	}
	use := func(nodePort bool) string {
		b := lists.Balance{NodePort: nodePort, Local: local, Capacity: port.cluster.Capacity(), Hash: port.hash()}
		if local {
			b.Capacity = port.local.Capacity()
		}
		if a := &port.affinity; !slices.Contains(a.balances, b) {
			a.balances = append(a.balances, b)
		}
		return b.Name()
	}
	mixed := p.Kind == layout.Internal && port.sharesCluster() ||
		p.Kind != layout.Internal && p.Kind != layout.InternalLocal && !p.NodePort && port.sharesExternal()
	if mixed && port.current.NodePort != 0 {
		c.NodePort, c.NodePortChain = port.current.NodePort, use(true)
	}
	c.Chain = use(p.NodePort)
	return c
}

// sharesExternal reports whether one chain serves the node port and the external addresses of a
// Service port with affinity. That takes both, with different ports that tell them apart.
func (p *portState) sharesExternal() bool {
	c := p.current
	return c.NodePort != 0 && c.NodePort != c.Port && len(c.LoadBalancers)+len(c.ExternalIPs) > 0
}

// sharesCluster reports whether the chain of the cluster IP serves other frontends of a Service port
// with affinity, too. For that it must choose among all endpoints, and a node port must have another
// port.
func (p *portState) sharesCluster() bool {
	c := p.current
	return !c.InternalLocal && c.NodePort != c.Port
}

func (fr *familyRules) programChains(have, want []*nft.Chain) {
	wanted := make(map[string]bool, len(want))
	for _, chain := range want {
		wanted[chain.Name] = true
		fr.PutChain(chain)
	}
	for _, chain := range have {
		if !wanted[chain.Name] {
			fr.RemoveChain(chain.Name)
		}
	}
}

// setMembers puts lists in place of others in the set of members.
func (fr *familyRules) setMembers(have, want []affinity.List) {
	for _, list := range want {
		fr.programMembers(membersOf(have, list.Number), list)
	}
	for _, list := range have {
		if before := list.Members; membersOf(want, list.Number) == nil {
			list.Members = nil
			fr.programMembers(before, list)
		}
	}
}

func membersOf(all []affinity.List, number uint32) []netip.Addr {
	for i := range all {
		if all[i].Number == number {
			return all[i].Members
		}
	}
	return nil
}

// programMembers writes in which elements of the set of members a list differs from what it was.
func (fr *familyRules) programMembers(have []netip.Addr, want affinity.List) {
	left, came := tracker.Difference(have, want.Members, netip.Addr.Compare)
	for _, addr := range came {
		fr.Put(layout.MembersSet, layout.NumberedAddr(want.Number, addr), nft.Element{})
	}
	for _, addr := range left {
		fr.Remove(layout.MembersSet, layout.NumberedAddr(want.Number, addr))
	}
	if len(left)+len(came) > 0 {
		leftBefore := fr.affinityLists[want.Number].Left
		fr.affinityLists[want.Number] = affinity.ListChange{List: want, Left: len(left) > 0 || leftBefore}
	}
}

// acquireUpdates counts a Service port whose entries are in an affinity map. The first one of a map makes the
// map, and the first one of all makes the chains that update entries. releaseUpdates removes both with the last.
func (fr *familyRules) acquireUpdates(name string) {
	if len(fr.affinityPorts) == 0 {
		for _, chain := range fr.affinity.SharedChains(srcnatPriority) {
			fr.PutChain(chain)
		}
	}
	if fr.affinityPorts[name]++; fr.affinityPorts[name] == 1 {
		fr.PutSet(fr.affinity.Map(name))
	}
}

func (fr *familyRules) releaseUpdates(name string) {
	if fr.affinityPorts[name]--; fr.affinityPorts[name] > 0 {
		return
	}
	delete(fr.affinityPorts, name)
	fr.RemoveSet(name)
	if len(fr.affinityPorts) == 0 {
		for _, chain := range fr.affinity.SharedChains(srcnatPriority) {
			fr.RemoveChain(chain.Name)
		}
	}
}

// AffinityMaps lists all affinity maps of a family. Each exists while a Service port has entries there. It depends on
// the Config alone, so any goroutine may call it.
func (r *Ruleset) AffinityMaps(f nft.Family) []*nft.Set { return r.config.affinitySettings(f).Maps() }

// AffinityChanges says what has changed for affinity entries since the last Committed that left nothing. While the
// ruleset is Behind, the kernel may lack some of it.
func (r *Ruleset) AffinityChanges() (c affinity.Changes) {
	for _, f := range r.config.Families {
		family := r.families[f]
		for _, number := range slices.Sorted(maps.Keys(family.affinityGroups)) {
			c.Groups = append(c.Groups, family.affinityGroups[number])
		}
		for _, number := range slices.Sorted(maps.Keys(family.affinityLists)) {
			c.Lists = append(c.Lists, family.affinityLists[number])
		}
	}
	return c
}

// A KnownClient is a client whose endpoint is known from another proxy: its connections to the Service port that has
// the frontend go to the endpoint.
type KnownClient struct {
	Frontend tracker.Frontend
	Client   netip.Addr
	Endpoint netip.AddrPort
}

// EntriesOfClients returns the operations that make affinity entries of these clients, with the full timeout, and of
// how many clients. A client counts if the frontend's Service port has session affinity and its endpoint. A table
// that has affinity maps already keeps its own entries: have are the tables in the kernel.
func (r *Ruleset) EntriesOfClients(knownClients []KnownClient, have nft.Tables) (ops []nft.Op, used int) {
	for _, f := range r.config.Families {
		table := have[f]
		exists := func(set *nft.Set) bool { return table.Sets[set.Name] != nil }
		if table != nil && slices.ContainsFunc(r.AffinityMaps(f), exists) {
			continue
		}
		var known []affinity.Known
		for i := range knownClients {
			if k := r.families[f].knownFrom(&knownClients[i]); len(k.Groups) > 0 {
				known = append(known, k)
			}
		}
		made, n := affinity.Entries(f, r.AffinityMaps(f), known)
		ops, used = append(ops, made...), used+n
	}
	return ops, used
}

// knownFrom returns a client of kube-proxy with the groups that get an entry: one of the cluster-wide list and
// one of the local list. It returns no group if the Service port does not have the client's endpoint.
func (fr *familyRules) knownFrom(client *KnownClient) (known affinity.Known) {
	state := fr.frontends[client.Frontend]
	if state == nil || state.claims.first() == nil || client.Client.Is4() != (fr.Table.Family == nft.IP) {
		return known
	}
	known.Client, known.Endpoint = client.Client, client.Endpoint.Addr()
	a, members := &state.claims.first().port.affinity, fr.Table.Sets[layout.MembersSet].Map
	for _, local := range []bool{false, true} {
		g := a.Find(local, client.Endpoint.Port())
		if _, is := members[layout.NumberedAddr(g.List, known.Endpoint)]; is {
			known.Groups = append(known.Groups, g)
		}
	}
	return known
}
