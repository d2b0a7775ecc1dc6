package services

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// An affinity is what a Service port with session affinity has of its own: numbers for its
// groups of endpoints, under which its entries and members stand in maps and sets that all
// Service ports share, and at most three chains. The zero affinity is none.
//
// A chain for each kind of frontend sends a known client to its endpoint, and a new one on to
// the random choice; the record chain updates the entry with where a connection went. The
// chains hold the numbers. A number per Service in a key, where maps per Service are the other
// way: the kernel walks the list of a table's sets for each set that it makes and for each rule
// that names one, so that 4,000 Services took 7 s.
type affinity struct {
	number   uint32 // in the names of its chains
	protocol uint8
	timeout  time.Duration
	groups   map[group]affinityGroup
	chains   []*nft.Chain
	balances []balance // the choosing chains that its chains go to
}

// A group are the endpoints of a list that have the same port. nft can rewrite to an
// address from a map and one given port, but not reload a map that packets fill with both.
type group struct {
	local bool
	port  uint16
}

// An affinityGroup is what entries of a group may name.
type affinityGroup struct {
	number  uint32
	members []netip.Addr // sorted
}

// compare orders groups by list, then port.
func (g group) compare(h group) int {
	if g.local != h.local {
		return nft.TrueFirst(g.local, h.local)
	}
	return int(g.port) - int(h.port)
}

func affinityIdentity(id tracker.PortID) string { return "affinity " + id.String() }

// numberOfGroup gives a group its number; the two lists' groups of one port have neighbouring ones.
func (r *familyRules) numberOfGroup(id tracker.PortID, g group) uint32 {
	return layout.ListNumber(r.numberOf(affinityIdentity(id)+" "+strconv.Itoa(int(g.port))), g.local)
}

// affinityOf declares the affinity of a Service port.
func (r *familyRules) affinityOf(port *portState) affinity {
	p := port.current
	if p.Affinity == 0 {
		return affinity{}
	}
	a := affinity{number: r.numberOf(affinityIdentity(p.ID)), protocol: uint8(p.ID.Protocol), timeout: p.Affinity, groups: make(map[group]affinityGroup)}
	for _, local := range []bool{false, true} {
		if !local && p.InternalLocal && !p.Settings.LocalFallback && p.NodePort == 0 && len(p.LoadBalancers)+len(p.ExternalIPs) == 0 {
			continue // no frontend uses this list
		}
		list := p.Cluster // port.listed in the order of addresses
		if local {
			list = p.Local
		}
		var at group
		var members affinityGroup
		for _, ep := range list {
			if g := (group{local, ep.Port()}); g != at {
				if members.number != 0 {
					a.groups[at] = members
				}
				at, members = g, a.groups[g]
				if members.number == 0 {
					members = affinityGroup{number: r.numberOfGroup(p.ID, g), members: make([]netip.Addr, 0, len(list))}
				}
			}
			members.members = append(members.members, ep.Addr())
		}
		if members.number != 0 {
			a.groups[at] = members
		}
	}
	return a
}

// sorted lists the groups in order.
func (a *affinity) sorted() []group { return slices.SortedFunc(maps.Keys(a.groups), group.compare) }

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

// updateChain notes where connections went. An entry may name an endpoint that has left, until it
// has been cleaned up: a connection that follows it takes the entry with it, so that the client's
// next one is chosen anew.
func (a *affinity) updateChain(f nft.Family) *nft.Chain {
	chain := &nft.Chain{Name: layout.UpdateChain(a.number)}
	groups := a.sorted()
	ports := make([]uint16, 0, 1)
	for _, g := range groups {
		if !slices.Contains(ports, g.port) {
			ports = append(ports, g.port)
		}
	}
	for _, port := range ports {
		var there nft.Rule // where no other port can be meant, it is not asked for
		if len(ports) > 1 {
			there = nft.Rule{nft.PortIs{Port: port}}
		}
		var stale, forget, updates []nft.Rule
		for _, local := range []bool{true, false} {
			members, ok := a.groups[group{local, port}]
			if !ok {
				continue
			}
			key := nft.Numbered(f, members.number, nft.OriginalSource)
			entries := layout.AffinityMap(members.number)
			member := nft.InSet{Key: []nft.Part{nft.Constant(members.number), nft.Destination}, Set: layout.MembersSet}
			update := nft.Update{Key: key, Map: entries, Timeout: uint64(a.timeout / time.Second)}
			updates = append(updates, slices.Concat(there, nft.Rule{member, update}))
			member.Not = true
			stale, forget = append(stale, nft.Rule{member}), append(forget, nft.Rule{nft.Forget{Key: key, Map: entries}})
		}
		if len(updates) == 1 { // whoever is no member is left over: a lookup less for each connection, three expressions less for the kernel to take
			chain.Rules = append(chain.Rules, append(updates[0], nft.Return), slices.Concat(there, forget[0]))
			continue
		}
		stray := slices.Concat(there, slices.Concat(stale...), slices.Concat(forget...))
		chain.Rules = append(append(chain.Rules, stray), updates...)
	}
	return chain
}

// affinityChain declares the chain of a policy of a Service port with affinity. It is as the
// policy's shared chain is, but that it looks for the client's entry before a random choice.
func (r *familyRules) affinityChain(port *portState, a *affinity, p layout.Policy) *nft.Chain {
	chain := &nft.Chain{Name: p.ChainName()}
	add := func(rules ...nft.Rule) { chain.Rules = append(chain.Rules, rules...) }
	choose := func(local bool, who ...nft.Stmt) { add(r.affinityChoice(port, a, p, local, who)...) }
	// Whoever has been marked, or is not to be, may take the chain of the cluster IP: that is a rule
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
		case r.config.MasqueradeAll: // which the chain of the cluster IP does, with pods as well
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
			add(nft.Rule{nft.Goto(layout.DropNotLocalChain)})
		default:
			choose(true)
		}
	}
	return chain
}

// markForAffinity is masqueradeInternal in one expression.
func (c *Config) markForAffinity(f nft.Family) []nft.Rule {
	if c.marksUnlessPod(f) {
		return []nft.Rule{{nft.Jump(layout.MarkUnlessPodChain)}}
	}
	return c.masqueradeInternal(f)
}

func (c *Config) marksUnlessPod(f nft.Family) bool { return !c.MasqueradeAll && !c.Pods[f].None() }

// affinityChoice sends the clients that match who to an endpoint of a list: to that of their
// entry, or to any. Where the chain is for a node port and for addresses, the port tells which
// list of endpoints it is.
func (r *familyRules) affinityChoice(port *portState, a *affinity, p layout.Policy, local bool, who []nft.Stmt) (rules []nft.Rule) {
	with := func(stmts ...nft.Stmt) { rules = append(rules, slices.Concat(nft.Rule(who), nft.Rule(stmts))) }
	for _, g := range a.sorted() {
		if number := a.groups[g].number; g.local == local {
			with(nft.ProtocolIs{Number: a.protocol},
				nft.DNATFrom{Key: nft.Numbered(r.Table.Family, number, nft.Source), Map: layout.AffinityMap(number), ToPort: g.port})
		}
	}
	if port.list.number != 0 {
		with(nft.Goto(layout.ListChain(port.list.number, local)))
		return rules
	}
	hash := hashOf(port.current)
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
// Service port with affinity: both are there, and their ports tell them apart.
func (p *portState) sharesExternal() bool {
	c := p.current
	return c.NodePort != 0 && c.NodePort != c.Port && len(c.LoadBalancers)+len(c.ExternalIPs) > 0
}

// sharesCluster reports whether the chain of the cluster IP serves other frontends of a Service
// port with affinity, too: it chooses among all endpoints, and ports tell a node port apart.
func (p *portState) sharesCluster() bool {
	c := p.current
	return !c.InternalLocal && c.NodePort != c.Port
}

// listed is one of the two lists of endpoints.
func (p *portState) listed(local bool) places {
	if local {
		return p.local
	}
	return p.cluster
}

// setAffinity makes the tables hold the affinity that a Service port wants; remove takes away what
// they hold.
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
	for g, members := range want.groups {
		r.programMembers(members.number, have.groups[g].members, members.members)
	}
	for g, members := range have.groups {
		if _, ok := want.groups[g]; !ok {
			r.programMembers(members.number, members.members, nil)
		}
	}
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

// compareSorted calls gone and come for the values that only one of two sorted lists has.
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

// freeNumbers gives back the numbers that only have needed. Entries may stand under them until
// they have been cleaned up. Who gets a number then is, but for a meeting of two hashes, the same
// Service port again.
func (r *familyRules) freeNumbers(have, want *affinity) {
	if have.number != 0 && want.number == 0 {
		delete(r.numbers, have.number)
	}
	for g, members := range have.groups {
		_, stays := want.groups[g]
		_, other := want.groups[group{!g.local, g.port}]
		if !stays && !other {
			delete(r.numbers, members.number/2)
		}
	}
}

// updateChains update affinity maps. They exist while a Service port asks for session
// affinity: without them the first packet of a connection passes one base chain less.
func (c *Config) updateChains(f nft.Family) []*nft.Chain {
	record := []nft.Rule{{nft.Translated{}, nft.Jump(layout.UpdateAffinityChain)}}
	var mark []*nft.Chain
	if c.marksUnlessPod(f) {
		mark = []*nft.Chain{{Name: layout.MarkUnlessPodChain, Rules: c.masqueradeInternal(f)}}
	}
	return append(mark, []*nft.Chain{
		{Name: layout.UpdateAffinityChain, Rules: c.updateRules(f)},
		{Name: layout.InputChain, Hook: &nft.Hook{Type: "nat", Point: "input", Priority: srcnatPriority}, Rules: record},
		{Name: layout.AffinityPostroutingChain, Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: srcnatPriority - 1}, Rules: record},
	}...)
}

// updateRules find the Service port that a translated connection was addressed to. Each
// protocol needs a rule of its own: nft reads the port that connection tracking keeps
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

// acquireUpdates makes sure that the chains and the affinity maps exist while a Service port has
// affinity; releaseUpdates gives them up.
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

// noteEntries finds out what the change from have to want means for entries.
func (r *familyRules) noteEntries(have, want *affinity) {
	note := func(e Entries) {
		e.Family = r.Table.Family
		if before, ok := r.entries[e.Number]; ok {
			e.Look = e.Look || before.Look
			e.From = cmp.Or(e.From, before.From)
		}
		r.entries[e.Number] = e
	}
	for g, now := range want.groups {
		before, ok := have.groups[g]
		if ok && want.timeout == have.timeout && slices.Equal(before.members, now.members) {
			continue
		}
		e := Entries{Number: now.number, Members: now.members, Timeout: want.timeout}
		e.Look = !ok || want.timeout != have.timeout
		compareSorted(before.members, now.members, netip.Addr.Compare, func(netip.Addr) { e.Look = true }, func(netip.Addr) {})
		if !ok {
			e.From = have.groups[group{!g.local, g.port}].number
		}
		note(e)
	}
	for g, before := range have.groups {
		if _, ok := want.groups[g]; !ok {
			note(Entries{Number: before.number, Look: true})
		}
	}
}
