package services

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// An affinity is what a Service port with session affinity has of its own: for each of its
// lists and each port that endpoints of the list have, a map client -> endpoint and the set
// of its members, and the chains that use them. The zero affinity
// is none.
type affinity struct {
	name     string
	protocol uint8
	timeout  time.Duration
	groups   map[group][]netip.Addr // members; sorted
	chains   []*nft.Chain
	balances []balance // the choosing chains that its chains go to
}

// A group are the endpoints of a list that have the same port. nft can rewrite to an
// address from a map and one given port, but not reload a map that packets fill with both.
type group struct {
	local bool
	port  uint16
}

// compare orders groups by list, then port.
func (g group) compare(h group) int {
	if g.local != h.local {
		return nft.TrueFirst(g.local, h.local)
	}
	return int(g.port) - int(h.port)
}

func updateChainName(name string) string { return "record-" + name }

// affinityOf declares the affinity of a Service port.
func affinityOf(port *portState) affinity {
	p := port.current
	if p.Affinity == 0 {
		return affinity{}
	}
	a := affinity{name: affinityName(p.ID), protocol: uint8(p.ID.Protocol), timeout: p.Affinity, groups: make(map[group][]netip.Addr)}
	for _, ep := range port.cluster {
		a.add(group{false, ep.Port()}, ep.Addr())
	}
	for _, ep := range port.local {
		a.add(group{true, ep.Port()}, ep.Addr())
	}
	for _, members := range a.groups {
		slices.SortFunc(members, netip.Addr.Compare)
	}
	a.declare(port)
	return a
}

func (a *affinity) add(g group, addr netip.Addr) { a.groups[g] = append(a.groups[g], addr) }

// sorted lists the groups in order.
func (a *affinity) sorted() []group {
	return slices.SortedFunc(maps.Keys(a.groups), group.compare)
}

// declare adds the chains of the affinity: for each kind of frontend and list one that
// sends a known client to its endpoint and a new one on to the random choice, and one that
// updates the affinity map with where a connection went.
func (a *affinity) declare(port *portState) {
	a.chains = []*nft.Chain{a.updateChain()}
	for _, nodePort := range port.kinds() {
		for _, local := range []bool{false, true} {
			n := port.length(local)
			if n == 0 {
				continue
			}
			next := sharedChainName(port.list.number, local)
			if port.list.number == 0 {
				own := balance{listOf(nodePort, local), capacity(n)}
				a.balances = append(a.balances, own)
				next = own.name()
			}
			a.chains = append(a.chains, a.affinityChain(nodePort, local, next))
		}
	}
}

func (a *affinity) updateChain() *nft.Chain {
	chain := &nft.Chain{Name: updateChainName(a.name)}
	for _, g := range a.sorted() {
		chain.Rules = append(chain.Rules, nft.Rule{
			nft.PortIs{Port: g.port},
			nft.InSet{Key: []nft.Part{nft.Destination}, Set: membersName(a.name, g.local, g.port)},
			nft.Update{Map: affinityMapName(a.name, g.local, g.port), Timeout: uint64(a.timeout / time.Second)},
		})
	}
	return chain
}

func (a *affinity) affinityChain(nodePort, local bool, next string) *nft.Chain {
	chain := &nft.Chain{Name: affinityChainName(nodePort, local, a.name)}
	for _, g := range a.sorted() {
		if g.local == local {
			chain.Rules = append(chain.Rules, nft.Rule{nft.ProtocolIs{Number: a.protocol},
				nft.DNATFrom{Key: []nft.Part{nft.Source}, Map: affinityMapName(a.name, local, g.port), ToPort: g.port}})
		}
	}
	chain.Rules = append(chain.Rules, nft.Rule{nft.Goto(next)})
	return chain
}

// kinds lists the kinds of frontends that the port has: at addresses, and node ports.
func (p *portState) kinds() []bool {
	if p.current.NodePort != 0 {
		return []bool{false, true}
	}
	return []bool{false}
}

func (p *portState) length(local bool) int {
	if local {
		return len(p.local)
	}
	return len(p.cluster)
}

// setAffinity makes the tables hold want where they held the affinity that port has.
func (r *familyRules) setAffinity(port *portState, want affinity) {
	have := port.affinity
	port.affinity = want
	switch {
	case have.name == "" && want.name == "":
		return
	case have.name == "":
		r.acquireUpdates()
	case want.name == "":
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
		r.programGroup(want.name, g, members)
	}
	for g := range have.groups {
		if _, ok := want.groups[g]; !ok {
			r.RemoveSet(affinityMapName(have.name, g.local, g.port))
			r.RemoveSet(membersName(have.name, g.local, g.port))
			delete(r.tasks, affinityMapName(have.name, g.local, g.port)) // of a batch that has failed
		}
	}
	r.noteTasks(&have, &want)
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

func (r *familyRules) programGroup(name string, g group, members []netip.Addr) {
	r.PutSet(r.config.affinityMap(affinityMapName(name, g.local, g.port)))
	set := &nft.Set{Name: membersName(name, g.local, g.port), Rank: affinityRank, Key: []nft.Field{nft.FieldAddr}}
	r.PutSet(set)
	keys := make(map[string]bool, len(members))
	for _, addr := range members {
		keys[nft.AddrKey(addr)] = true
	}
	r.fillSet(set.Name, keys)
}

func (c *Config) affinityMap(name string) *nft.Set {
	return &nft.Set{Name: name, Rank: affinityRank, Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr}, Dynamic: true, Size: c.AffinitySize}
}

// An AffinityTask is what remains to be done to the entries of one affinity map, which the
// packet path owns, after a change of its Service port: entries of endpoints that have left
// must go, a map that comes into being takes over the entries of the map of the port's other
// list, and entries get a new timeout.
type AffinityTask struct {
	Family  nft.Family
	Map     *nft.Set
	From    string // the map whose entries are to be looked at: Map itself, or its sibling
	members map[string]bool
	timeout time.Duration
}

// noteTasks finds out what the change from have to want means for affinity entries.
func (r *familyRules) noteTasks(have, want *affinity) {
	for g, members := range want.groups {
		from := g
		if _, ok := have.groups[g]; !ok {
			from.local = !g.local
		}
		before, ok := have.groups[from]
		if !ok || from == g && want.timeout == have.timeout && subset(before, members) {
			continue
		}
		task := r.task(want, g)
		task.From = affinityMapName(have.name, from.local, from.port)
		r.tasks[task.Map.Name] = task
	}
}

func (r *familyRules) task(a *affinity, g group) AffinityTask {
	name := affinityMapName(a.name, g.local, g.port)
	members := make(map[string]bool, len(a.groups[g]))
	for _, addr := range a.groups[g] {
		members[nft.AddrKey(addr)] = true
	}
	return AffinityTask{Family: r.Table.Family, Map: r.Table.Sets[name].Set, From: name, members: members, timeout: a.timeout}
}

func subset(few, many []netip.Addr) bool {
	for _, addr := range few {
		if _, ok := slices.BinarySearchFunc(many, addr, netip.Addr.Compare); !ok {
			return false
		}
	}
	return true
}

// Seeds reports whether the task fills a new map from its sibling.
func (t *AffinityTask) Seeds() bool { return t.From != t.Map.Name }

// Source is the map whose entries Ops wants to see.
func (t *AffinityTask) Source() *nft.Set {
	source := *t.Map
	source.Name = t.From
	return &source
}

// Rest is the part of the task that is left after the commit: to remove what packets have
// put into the map since its entries were read.
func (t AffinityTask) Rest() AffinityTask {
	t.From = t.Map.Name
	return t
}

// Ops returns the operations that do the task, given the entries that the kernel has in
// the map From. They belong at the end of the batch that carries the change. Entries may
// have expired since they were read: that does not fail the batch.
func (t *AffinityTask) Ops(entries map[string]nft.Element) []nft.Op {
	var gone, kept []nft.KeyedElement
	for key, entry := range entries {
		member := t.members[entry.Data]
		if !t.Seeds() && entry.Life != nil && entry.Life.Twin { // packets go on with the other one
			gone = append(gone, nft.KeyedElement{Key: key, Element: nft.Element{Data: entry.Data, Life: t.renew(entry.Life)}})
			continue
		}
		if member && (t.Seeds() || entry.Life == nil || entry.Life.Timeout != t.timeout) {
			kept = append(kept, nft.KeyedElement{Key: key, Element: nft.Element{Data: entry.Data, Life: t.renew(entry.Life)}})
		}
		if !t.Seeds() && (!member || entry.Life == nil || entry.Life.Timeout != t.timeout) {
			gone = append(gone, nft.KeyedElement{Key: key, Element: nft.Element{Data: entry.Data, Life: t.renew(entry.Life)}})
		}
	}
	var ops []nft.Op
	if len(gone) > 0 {
		ops = append(ops, nft.Op{Verb: nft.Destroy, Family: t.Family, Set: t.Map, Elements: nft.SortElements(gone)})
	}
	if len(kept) > 0 {
		ops = append(ops, nft.Op{Verb: nft.Add, Family: t.Family, Set: t.Map, Elements: nft.SortElements(kept)})
	}
	return ops
}

// renew carries an entry's remaining time over to the timeout of the task.
func (t *AffinityTask) renew(life *nft.Life) *nft.Life {
	expires := t.timeout
	if life != nil && life.Expires > 0 {
		expires = min(expires, life.Expires)
	}
	return &nft.Life{Timeout: t.timeout, Expires: expires}
}

// AffinityTasks returns the tasks of the changes since Committed; AllAffinityTasks those
// that make every affinity map fit its Service port, for a start and for a repair.
func (r *Ruleset) AffinityTasks() []AffinityTask {
	var tasks []AffinityTask
	for _, f := range r.config.Families {
		for _, name := range slices.Sorted(maps.Keys(r.families[f].tasks)) {
			tasks = append(tasks, r.families[f].tasks[name])
		}
	}
	return tasks
}

// AllAffinityTasks is described with AffinityTasks.
func (r *Ruleset) AllAffinityTasks() []AffinityTask {
	var tasks []AffinityTask
	for _, f := range r.config.Families {
		for _, port := range inOrder(r.families[f].current()) {
			a := &r.families[f].ports[port.ID].affinity
			for _, g := range a.sorted() {
				tasks = append(tasks, r.families[f].task(a, g))
			}
		}
	}
	return tasks
}

// current lists the Service ports with affinity.
func (r *familyRules) current() map[tracker.PortID]*tracker.ServicePort {
	ports := make(map[tracker.PortID]*tracker.ServicePort)
	for id, port := range r.ports {
		if port.affinity.name != "" {
			ports[id] = port.current
		}
	}
	return ports
}

// updateChains update affinity maps. They exist while a Service port asks for session
// affinity: without them the first packet of a connection passes one base chain less.
func (c *Config) updateChains(f nft.Family) []*nft.Chain {
	record := []nft.Rule{{nft.Translated{}, nft.Jump(updateAffinityChain)}}
	return []*nft.Chain{
		{Name: updateAffinityChain, Rules: c.updateRules(f)},
		{Name: inputChain, Hook: &nft.Hook{Type: "nat", Point: "input", Priority: srcnatPriority}, Rules: record},
		{Name: affinityPostroutingChain, Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: srcnatPriority - 1}, Rules: record},
	}
}

// updateRules find the Service port that a translated connection was addressed to. Each
// protocol needs a rule of its own: nft reads the port that connection tracking keeps
// only in the context of one protocol.
func (c *Config) updateRules(f nft.Family) []nft.Rule {
	var rules []nft.Rule
	for _, protocol := range nft.TransportNumbers {
		rules = append(rules,
			nft.Rule{nft.ProtocolIs{Number: protocol}, nft.VerdictFrom{Key: []nft.Part{nft.OriginalDestination, nft.Protocol, nft.OriginalPort}, Map: affinityFrontendsMap}})
	}
	for _, protocol := range nft.TransportNumbers {
		rule := nft.Rule{nft.ProtocolIs{Number: protocol}}
		if !c.AllNodePorts[f] {
			rule = append(rule, nft.InSet{Key: []nft.Part{nft.OriginalDestination}, Set: nodePortAddressesSet})
		}
		rules = append(rules, append(rule, nft.VerdictFrom{Key: []nft.Part{nft.Protocol, nft.OriginalPort}, Map: affinityNodePortsMap}))
	}
	return rules
}

// acquireUpdates makes sure that the chains exist while a Service port has affinity;
// releaseRecord gives them up.
func (r *familyRules) acquireUpdates() {
	if r.withAffinity++; r.withAffinity > 1 {
		return
	}
	for _, chain := range r.config.updateChains(r.Table.Family) {
		r.PutChain(chain)
	}
}

func (r *familyRules) releaseUpdates() {
	if r.withAffinity--; r.withAffinity > 0 {
		return
	}
	for _, chain := range r.config.updateChains(r.Table.Family) {
		r.RemoveChain(chain.Name)
	}
}
