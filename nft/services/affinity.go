package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/entries"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// An affinity is what a Service port with session affinity has of its own: at most three chains, and
// a number for each of its groups of endpoints. Its entries and members stand under these numbers in
// maps and sets that all Service ports share. The zero affinity means no session affinity.
//
// A chain for each kind of frontend sends a known client to its endpoint, and a new one to the random
// choice. The update chain writes into the entry to which endpoint a connection went. The chains hold
// the numbers. Maps per Service would need no numbers, but 4,000 Services took 7 s: the kernel walks
// the list of a table's sets for each set that it makes and for each rule that names one.
type affinity struct {
	number   uint32 // in the names of its chains
	protocol uint8
	timeout  time.Duration
	groups   affinityGroups
	chains   []*nft.Chain
	balances []balance // to whose chains its chains go
}

// A group names the endpoints of a list that have the same port. There is a group for each port,
// because nft can rewrite to an address from a map and one given port, but cannot reload a map that
// packets fill with both.
type group struct {
	local bool
	port  uint16
}

// An affinityGroup is a group with its number and the endpoints that its entries may name.
type affinityGroup struct {
	group
	number  uint32
	members []netip.Addr // sorted
}

// affinityGroups are the groups of a Service port, in order. Most have one.
type affinityGroups []affinityGroup

// find returns the affinityGroup of g; the zero value if the list has none.
func (list affinityGroups) find(g group) (found affinityGroup) {
	at, ok := slices.BinarySearchFunc(list, g, func(have affinityGroup, want group) int { return have.compare(want) })
	if ok {
		found = list[at]
	}
	return found
}

// twin returns the group of the other list with the same port; the zero value if there is none.
func (list affinityGroups) twin(g group) affinityGroup { return list.find(group{!g.local, g.port}) }

// programmed returns the members of a group that stand in the set of members. Only the rules for a
// group with a twin ask that set: see affinity.updateChain.
func (list affinityGroups) programmed(g group) []netip.Addr {
	if list.twin(g).number == 0 {
		return nil
	}
	return list.find(g).members
}

// onePort reports whether all groups have the same port.
func (list affinityGroups) onePort() bool {
	return !slices.ContainsFunc(list, func(g affinityGroup) bool { return g.port != list[0].port })
}

// compare orders groups by list, then port.
func (g group) compare(h group) int {
	if g.local != h.local {
		return nft.TrueFirst(g.local, h.local)
	}
	return int(g.port) - int(h.port)
}

func affinityIdentity(id tracker.PortID) string { return "affinity " + id.String() }

// numberOfGroup gives a group its number. A group and its twin have neighbouring numbers.
func (r *familyRules) numberOfGroup(id tracker.PortID, g group) uint32 {
	return layout.ListNumber(r.numberOf(affinityIdentity(id)+" "+strconv.Itoa(int(g.port))), g.local)
}

// affinityOf declares the affinity of a Service port.
func (r *familyRules) affinityOf(port *portState) affinity {
	p := port.current
	if p.Affinity == 0 {
		return affinity{}
	}
	a := affinity{number: r.numberOf(affinityIdentity(p.ID)), protocol: uint8(p.ID.Protocol), timeout: p.Affinity}
	for _, local := range []bool{false, true} {
		if !local && p.InternalLocal && !p.Settings.LocalFallback && p.NodePort == 0 && len(p.LoadBalancers)+len(p.ExternalIPs) == 0 {
			continue // no frontend uses this list
		}
		list := p.Cluster // port.listed in the order of addresses
		if local {
			list = p.Local
		}
		at := make(map[uint16]int) // where the groups of this list are
		for _, ep := range list {
			i, known := at[ep.Port()]
			if !known {
				i = len(a.groups)
				at[ep.Port()] = i
				g := group{local, ep.Port()}
				a.groups = append(a.groups, affinityGroup{group: g, number: r.numberOfGroup(p.ID, g), members: make([]netip.Addr, 0, len(list)/len(at))})
			}
			a.groups[i].members = append(a.groups[i].members, ep.Addr())
		}
	}
	if len(a.groups) > 1 {
		slices.SortFunc(a.groups, func(g, h affinityGroup) int { return g.compare(h.group) })
	}
	return a
}

// declareAffinity adds the chains of a Service port with affinity: one for each policy that its
// frontends have, and the one that updates entries.
func (r *familyRules) declareAffinity(port *portState, a *affinity) {
	a.chains = []*nft.Chain{a.updateChain(r.Table.Family)}
	declared := make(map[string]bool)
	for _, wanted := range port.frontends {
		p := claim{port: port, kind: wanted.kind}.serve(wanted.Frontend).policy.Open()
		if p.Affinity == 0 || declared[p.ChainName()] {
			continue
		}
		declared[p.ChainName()] = true
		a.chains = append(a.chains, r.affinityChain(port, a, p))
	}
}

// updateChain declares the chain that notes where a connection went, in the entry of the group that
// has the endpoint. If a port has one group, every endpoint of a connection belongs to it, except
// endpoints that have left while entries or packets may name them. Those are in the set of departed
// endpoints. If both lists have a group, the members of each tell whose entry it is.
func (a *affinity) updateChain(f nft.Family) *nft.Chain {
	chain := &nft.Chain{Name: layout.UpdateChain(a.number)}
	onePort := a.groups.onePort()
	for i := range a.groups {
		g := &a.groups[i]
		twin := a.groups.twin(g.group)
		var there nft.Rule // empty if all groups have one port: then it need not match
		if !onePort {
			there = nft.Rule{nft.PortIs{Port: g.port}}
		}
		add := func(stmts ...nft.Stmt) { chain.Rules = append(chain.Rules, slices.Concat(there, nft.Rule(stmts))) }
		switch {
		case twin.number == 0:
			add(nft.InSet{Key: g.endpointKey(), Set: layout.DepartedSet}, nft.Goto(layout.DepartedChain))
			add(a.update(f, g))
		case g.local: // these rules serve the twin, too
			stray := nft.InSet{Key: g.endpointKey(), Set: layout.MembersSet, Not: true}
			twinStray := nft.InSet{Key: twin.endpointKey(), Set: layout.MembersSet, Not: true}
			add(stray, twinStray, a.forget(f, g), a.forget(f, &twin), nft.Goto(layout.DepartedChain))
			add(nft.InSet{Key: g.endpointKey(), Set: layout.MembersSet}, a.update(f, g))
			add(nft.InSet{Key: twin.endpointKey(), Set: layout.MembersSet}, a.update(f, &twin))
		}
	}
	return chain
}

// endpointKey is the number of the group, and the endpoint of a connection.
func (g *affinityGroup) endpointKey() []nft.Part {
	return []nft.Part{nft.Constant(g.number), nft.Destination}
}

func (a *affinity) update(f nft.Family, g *affinityGroup) nft.Update {
	return nft.Update{Key: nft.Numbered(f, g.number, nft.OriginalSource), Map: layout.AffinityMap(g.number), Timeout: uint64(a.timeout / time.Second)}
}

func (a *affinity) forget(f nft.Family, g *affinityGroup) nft.Forget {
	return nft.Forget{Key: nft.Numbered(f, g.number, nft.OriginalSource), Map: layout.AffinityMap(g.number)}
}

// affinityChain declares the chain of a policy of a Service port with affinity. It differs from the
// policy's shared chain in one point: it looks for the client's entry before the random choice.
func (r *familyRules) affinityChain(port *portState, a *affinity, p layout.Policy) *nft.Chain {
	chain := &nft.Chain{Name: p.ChainName()}
	add := func(rules ...nft.Rule) { chain.Rules = append(chain.Rules, rules...) }
	choose := func(local bool, who ...nft.Stmt) { add(r.affinityChoice(port, a, p, local, who)...) }
	// A client that is already marked, or must not be, can take the chain of the cluster IP: one rule
	// instead of several.
	cluster := layout.Policy{Kind: layout.Internal, Affinity: p.Affinity}
	everywhere := func(who ...nft.Stmt) {
		if !port.sharesCluster() {
			choose(false, who...)
			return
		}
		add(slices.Concat(nft.Rule(who), nft.Rule{nft.Goto(cluster.ChainName())}))
	}
	podsEverywhere := func() {
		switch pods := r.config.Pods[r.Table.Family]; {
		case pods.None():
		case r.config.MasqueradeAll: // the chain of the cluster IP would masquerade pods, too
			choose(false, pods.Stmt(false))
		default:
			everywhere(pods.Stmt(false))
		}
	}
	switch p.Kind {
	case layout.Internal:
		add(r.config.markForAffinity(r.Table.Family)...)
		choose(false)
	case layout.InternalLocal:
		add(r.config.markForAffinity(r.Table.Family)...)
		choose(true)
	case layout.External:
		add(nft.Rule{nft.Jump(layout.MarkChain)})
		everywhere()
	case layout.ExternalFallback:
		podsEverywhere()
		add(nft.Rule{nft.Jump(layout.MarkChain)})
		everywhere()
	case layout.ExternalLocal:
		podsEverywhere()
		add(nft.Rule{nft.SourceLocal{}, nft.Jump(layout.MarkChain)})
		everywhere(nft.SourceLocal{})
		switch {
		case p.Router:
		case p.Local == 0:
			add(notLocal(p)...)
		default:
			choose(true)
		}
	}
	return chain
}

// markForAffinity does what masqueradeInternal does, with one expression.
func (c *Config) markForAffinity(f nft.Family) []nft.Rule {
	if c.marksUnlessPod(f) {
		return []nft.Rule{{nft.Jump(layout.MarkUnlessPodChain)}}
	}
	return c.masqueradeInternal(f)
}

func (c *Config) marksUnlessPod(f nft.Family) bool { return !c.MasqueradeAll && !c.Pods[f].None() }

// affinityChoice sends the clients that match who to an endpoint of a list: to the one in their entry,
// or to any. If the chain serves a node port and addresses, the port tells which map of endpoints to
// use.
func (r *familyRules) affinityChoice(port *portState, a *affinity, p layout.Policy, local bool, who []nft.Stmt) (rules []nft.Rule) {
	with := func(stmts ...nft.Stmt) { rules = append(rules, slices.Concat(nft.Rule(who), nft.Rule(stmts))) }
	for _, g := range a.groups {
		if g.local == local {
			with(nft.ProtocolIs{Number: a.protocol},
				nft.DNATFrom{Key: nft.Numbered(r.Table.Family, g.number, nft.Source), Map: layout.AffinityMap(g.number), ToPort: g.port})
		}
	}
	if port.list.number != 0 {
		with(nft.Goto(layout.ListChain(port.list.number, local)))
		return rules
	}
	hash := port.hash()
	size := capacityOf(port.listed(local), hash)
	mixed := p.Kind == layout.Internal && port.sharesCluster() ||
		p.Kind != layout.Internal && p.Kind != layout.InternalLocal && !p.NodePort && port.sharesExternal()
	if mixed && port.current.NodePort != 0 {
		own := balance{listOf(true, local), size, hash}
		a.addBalance(own)
		with(nft.PortIs{Port: port.current.NodePort}, nft.Goto(own.name()))
	}
	own := balance{listOf(p.NodePort, local), size, hash}
	a.addBalance(own)
	with(nft.Goto(own.name()))
	return rules
}

func (a *affinity) addBalance(b balance) {
	if !slices.Contains(a.balances, b) {
		a.balances = append(a.balances, b)
	}
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

// listed returns the places of the local or of the cluster-wide list.
func (p *portState) listed(local bool) places {
	if local {
		return p.local
	}
	return p.cluster
}

// setAffinity makes the tables hold the affinity that a Service port wants. With remove, it takes away
// what they hold.
func (r *familyRules) setAffinity(port *portState, remove bool) {
	have := port.affinity
	var want affinity
	if !remove {
		want = r.affinityOf(port)
	}
	port.affinity = want
	if want.number != 0 {
		r.declareAffinity(port, &want)
		port.affinity = want
	}
	switch {
	case have.number == 0 && want.number == 0:
		return
	case have.number == 0:
		r.acquireUpdates()
	case want.number == 0:
		defer r.releaseUpdates()
	}
	for _, pick := range want.balances {
		r.acquireBalance(pick)
	}
	r.programChains(have.chains, want.chains)
	for _, pick := range have.balances {
		r.releaseBalance(pick)
	}
	for _, g := range want.groups {
		r.programMembers(g.number, have.groups.programmed(g.group), want.groups.programmed(g.group))
	}
	for _, g := range have.groups {
		if want.groups.find(g.group).number == 0 {
			r.programMembers(g.number, have.groups.programmed(g.group), nil)
		}
	}
	r.noteDepartures(&have, &want)
	r.noteEntries(&have, &want)
	r.freeNumbers(&have, &want)
}

func (r *familyRules) programChains(have, want []*nft.Chain) {
	wanted := make(map[string]bool, len(want))
	for _, chain := range want {
		wanted[chain.Name] = true
		r.PutChain(chain)
	}
	for _, chain := range have {
		if !wanted[chain.Name] {
			r.RemoveChain(chain.Name)
		}
	}
}

// programMembers writes the elements in which two sorted lists of members differ.
func (r *familyRules) programMembers(number uint32, have, want []netip.Addr) {
	compareSorted(have, want, netip.Addr.Compare,
		func(addr netip.Addr) { r.Remove(layout.MembersSet, layout.MemberKey(number, addr)) },
		func(addr netip.Addr) { r.Put(layout.MembersSet, layout.MemberKey(number, addr), nft.Element{}) })
}

// compareSorted calls gone for each value that only have holds, and come for each that only want
// holds. Both lists must be sorted.
func compareSorted[T any](have, want []T, compare func(a, b T) int, gone, come func(T)) {
	for len(have) > 0 || len(want) > 0 {
		order := -1
		switch {
		case len(have) == 0:
			order = 1
		case len(want) > 0:
			order = compare(have[0], want[0])
		}
		if order < 0 {
			gone(have[0])
		} else if order > 0 {
			come(want[0])
		}
		if order <= 0 {
			have = have[1:]
		}
		if order >= 0 {
			want = want[1:]
		}
	}
}

// freeNumbers gives back the numbers that only have needed. Entries may stand under them until they
// have been cleaned up. A number is a hash, so only the same Service port gets it again, unless two
// hashes collide.
func (r *familyRules) freeNumbers(have, want *affinity) {
	if have.number != 0 && want.number == 0 {
		delete(r.numbers, have.number)
	}
	for _, g := range have.groups {
		if want.groups.find(g.group).number == 0 && want.groups.twin(g.group).number == 0 {
			delete(r.numbers, g.number/2)
		}
	}
}

// updateChains declares the chains that update affinity maps. They exist only while a Service port has
// session affinity: without them, the first packet of a connection passes one base chain less.
func (c *Config) updateChains(f nft.Family) []*nft.Chain {
	record := []nft.Rule{{nft.Translated{}, nft.Jump(layout.UpdateAffinityChain)}}
	var mark []*nft.Chain
	if c.marksUnlessPod(f) {
		mark = []*nft.Chain{{Name: layout.MarkUnlessPodChain, Rules: c.masqueradeInternal(f)}}
	}
	return append(mark, []*nft.Chain{
		{Name: layout.UpdateAffinityChain, Rules: c.updateRules(f)},
		{Name: layout.DepartedChain, Rules: []nft.Rule{{nft.InSet{Key: []nft.Part{nft.Destination}, Set: layout.DroppedSet}, nft.Drop}}},
		{Name: layout.InputChain, Hook: &nft.Hook{Type: "nat", Point: "input", Priority: srcnatPriority}, Rules: record},
		{Name: layout.AffinityPostroutingChain, Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: srcnatPriority - 1}, Rules: record},
	}...)
}

// updateRules declares the rules that find the Service port to which a translated connection was
// addressed. Each protocol needs a rule of its own: nft reads the port that connection tracking keeps
// only in the context of one protocol.
func (c *Config) updateRules(f nft.Family) []nft.Rule {
	var rules []nft.Rule
	for _, protocol := range nft.TransportNumbers {
		rules = append(rules,
			nft.Rule{nft.ProtocolIs{Number: protocol}, nft.VerdictFrom{Key: []nft.Part{nft.OriginalDestination, nft.Protocol, nft.OriginalPort}, Map: layout.AffinityFrontendsMap}})
	}
	for _, protocol := range nft.TransportNumbers {
		rule := nft.Rule{nft.ProtocolIs{Number: protocol}}
		if !c.AllNodePorts[f] {
			rule = append(rule, nft.InSet{Key: []nft.Part{nft.OriginalDestination}, Set: layout.NodePortAddressesSet})
		}
		rules = append(rules, append(rule, nft.VerdictFrom{Key: []nft.Part{nft.Protocol, nft.OriginalPort}, Map: layout.AffinityNodePortsMap}))
	}
	return rules
}

// acquireUpdates counts a Service port with affinity, and for the first one makes the affinity maps
// and the chains that update them. releaseUpdates takes them away with the last one.
func (r *familyRules) acquireUpdates() {
	if r.withAffinity++; r.withAffinity > 1 {
		return
	}
	for _, set := range r.config.affinitySets(r.Table.Family) {
		r.PutSet(set)
	}
	for _, chain := range r.config.updateChains(r.Table.Family) {
		r.PutChain(chain)
	}
}

func (r *familyRules) releaseUpdates() {
	if r.withAffinity--; r.withAffinity > 0 {
		return
	}
	for _, set := range r.config.affinitySets(r.Table.Family) {
		r.RemoveSet(set.Name)
	}
	for _, chain := range r.config.updateChains(r.Table.Family) {
		r.RemoveChain(chain.Name)
	}
}

// noteEntries notes the groups whose entries the change from have to want concerns.
func (r *familyRules) noteEntries(have, want *affinity) {
	note := func(e entries.Group) {
		e.Family = r.Table.Family
		if before, ok := r.entries[e.Number]; ok {
			e.Look = e.Look || before.Look
			e.From = cmp.Or(e.From, before.From)
		}
		r.entries[e.Number] = e
	}
	for _, now := range want.groups {
		before := have.groups.find(now.group)
		fresh := before.number == 0
		if !fresh && want.timeout == have.timeout && slices.Equal(before.members, now.members) {
			continue
		}
		e := entries.Group{Number: now.number, Members: now.members, Timeout: want.timeout}
		e.Look = fresh || want.timeout != have.timeout
		compareSorted(before.members, now.members, netip.Addr.Compare, func(netip.Addr) { e.Look = true }, func(netip.Addr) {})
		if fresh {
			e.From = have.groups.twin(now.group).number
		}
		note(e)
	}
	for _, before := range have.groups {
		if want.groups.find(before.group).number == 0 {
			note(entries.Group{Number: before.number, Look: true})
		}
	}
}
