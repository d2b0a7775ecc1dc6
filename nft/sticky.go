package nft

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// An affinity is what a Service port with session affinity has of its own: for each of its
// lists and each port that endpoints of the list have, a map client -> endpoint and the set
// of the endpoints that may be remembered, and the chains that use them. The zero affinity
// is none.
type affinity struct {
	name     string
	protocol uint8
	timeout  time.Duration
	groups   map[group][]netip.Addr // who may be remembered; sorted
	chains   []*Chain
	picks    []pick // the choosing chains that its chains go to
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
		return TrueFirst(g.local, h.local)
	}
	return int(g.port) - int(h.port)
}

func recordName(sticky string) string { return "record-" + sticky }

// affinityOf declares the affinity of a Service port.
func affinityOf(port *portState) affinity {
	p := port.current
	if p.Affinity == 0 {
		return affinity{}
	}
	a := affinity{name: stickyName(p.ID), protocol: uint8(p.ID.Protocol), timeout: p.Affinity, groups: make(map[group][]netip.Addr)}
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
// remembers where a connection went.
func (a *affinity) declare(port *portState) {
	a.chains = []*Chain{a.recordChain()}
	for _, nodePort := range port.kinds() {
		for _, local := range []bool{false, true} {
			if n := port.length(local); n > 0 {
				next := pick{listOf(nodePort, local), capacity(n)}
				a.picks = append(a.picks, next)
				a.chains = append(a.chains, a.stickChain(nodePort, local, next))
			}
		}
	}
}

func (a *affinity) recordChain() *Chain {
	chain := &Chain{Name: recordName(a.name)}
	for _, g := range a.sorted() {
		chain.Rules = append(chain.Rules, Rule{
			PortIs{g.port},
			InSet{Key: []Part{Destination}, Set: membersName(a.name, g.local, g.port)},
			Update{Map: affinityName(a.name, g.local, g.port), Timeout: uint64(a.timeout / time.Second)},
		})
	}
	return chain
}

func (a *affinity) stickChain(nodePort, local bool, next pick) *Chain {
	chain := &Chain{Name: stickName(nodePort, local, a.name)}
	for _, g := range a.sorted() {
		if g.local == local {
			chain.Rules = append(chain.Rules, Rule{ProtocolIs{a.protocol},
				DNATFrom{Key: []Part{Source}, Map: affinityName(a.name, local, g.port), ToPort: g.port}})
		}
	}
	chain.Rules = append(chain.Rules, Rule{Goto(next.name())})
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
func (r *family) setAffinity(port *portState, want affinity) {
	have := port.affinity
	port.affinity = want
	switch {
	case have.name == "" && want.name == "":
		return
	case have.name == "":
		r.acquireRecord()
	case want.name == "":
		defer r.releaseRecord()
	}
	for _, pick := range want.picks {
		r.acquirePick(pick)
	}
	r.programChains(have.chains, want.chains)
	for _, pick := range have.picks {
		r.releasePick(pick)
	}
	for g, members := range want.groups {
		r.programGroup(want.name, g, members)
	}
	for g := range have.groups {
		if _, ok := want.groups[g]; !ok {
			r.removeSet(affinityName(have.name, g.local, g.port))
			r.removeSet(membersName(have.name, g.local, g.port))
			delete(r.tasks, affinityName(have.name, g.local, g.port)) // of a batch that has failed
		}
	}
	r.noteTasks(&have, &want)
}

func (r *family) programChains(have, want []*Chain) {
	wanted := make(map[string]bool, len(want))
	for _, chain := range want {
		wanted[chain.Name] = true
		r.putChain(chain)
	}
	for _, chain := range have {
		if !wanted[chain.Name] {
			r.removeChain(chain.Name)
		}
	}
}

func (r *family) programGroup(sticky string, g group, members []netip.Addr) {
	r.putSet(r.config.affinityMap(affinityName(sticky, g.local, g.port)))
	set := &Set{Name: membersName(sticky, g.local, g.port), Rank: affinityRank, Key: []Field{FieldAddr}}
	r.putSet(set)
	keys := make(map[string]bool, len(members))
	for _, addr := range members {
		keys[addrKey(addr)] = true
	}
	r.fillSet(set.Name, keys)
}

func (c *Config) affinityMap(name string) *Set {
	return &Set{Name: name, Rank: affinityRank, Key: []Field{FieldAddr}, Data: []Field{FieldAddr}, Dynamic: true, Size: c.AffinitySize}
}

// An AffinityTask is what remains to be done to the entries of one affinity map, which the
// packet path owns, after a change of its Service port: the entries of endpoints that have
// left must go, those of a map that comes into being are taken over from the map of the
// port's other list, and a new timeout is carried over.
type AffinityTask struct {
	Family  Family
	Map     *Set
	From    string // the map whose entries are to be looked at: Map itself, or its sibling
	members map[string]bool
	timeout time.Duration
}

// noteTasks finds out what the change from have to want means for remembered clients.
func (r *family) noteTasks(have, want *affinity) {
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
		task.From = affinityName(have.name, from.local, from.port)
		r.tasks[task.Map.Name] = task
	}
}

func (r *family) task(a *affinity, g group) AffinityTask {
	name := affinityName(a.name, g.local, g.port)
	members := make(map[string]bool, len(a.groups[g]))
	for _, addr := range a.groups[g] {
		members[addrKey(addr)] = true
	}
	return AffinityTask{Family: r.table.Family, Map: r.table.Sets[name].Set, From: name, members: members, timeout: a.timeout}
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
func (t *AffinityTask) Source() *Set {
	source := *t.Map
	source.Name = t.From
	return &source
}

// Sweep is the part of the task that is left after the commit: to remove what packets have
// put into the map since its entries were read.
func (t AffinityTask) Sweep() AffinityTask {
	t.From = t.Map.Name
	return t
}

// Ops returns the operations that do the task, given the entries that the kernel has in
// the map From. They belong at the end of the batch that carries the change. Entries may
// have expired since they were read: that does not fail the batch.
func (t *AffinityTask) Ops(entries map[string]Element) []Op {
	var gone, kept []KeyedElement
	for key, entry := range entries {
		member := t.members[entry.Data]
		if member && (t.Seeds() || entry.Life == nil || entry.Life.Timeout != t.timeout) {
			kept = append(kept, KeyedElement{key, Element{Data: entry.Data, Life: t.renew(entry.Life)}})
		}
		if !t.Seeds() && (!member || entry.Life == nil || entry.Life.Timeout != t.timeout) {
			gone = append(gone, KeyedElement{key, Element{Data: entry.Data, Life: t.renew(entry.Life)}})
		}
	}
	var ops []Op
	if len(gone) > 0 {
		ops = append(ops, Op{Verb: Destroy, Family: t.Family, Set: t.Map, Elements: sortElements(gone)})
	}
	if len(kept) > 0 {
		ops = append(ops, Op{Verb: Add, Family: t.Family, Set: t.Map, Elements: sortElements(kept)})
	}
	return ops
}

// renew carries an entry's remaining time over to the timeout of the task.
func (t *AffinityTask) renew(life *Life) *Life {
	expires := t.timeout
	if life != nil && life.Expires > 0 {
		expires = min(expires, life.Expires)
	}
	return &Life{Timeout: t.timeout, Expires: expires}
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
func (r *family) current() map[tracker.PortID]*tracker.ServicePort {
	ports := make(map[tracker.PortID]*tracker.ServicePort)
	for id, port := range r.ports {
		if port.affinity.name != "" {
			ports[id] = port.current
		}
	}
	return ports
}
