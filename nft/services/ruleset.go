package services

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/nft/services/affinity"
	"github.com/kube-nft/kube-nft/nft/services/lists"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Ruleset is the wanted state. It takes the deltas of the tracker and keeps the tables that follow
// from them, and what has changed in these since the last commit.
//
// It is not safe for concurrent use; the sync loop owns it.
type Ruleset struct {
	config       Config
	families     map[nft.Family]*familyRules
	serviceCIDRs []netip.Prefix // in the families that are served
	reserved     map[netip.Addr]bool

	unmet unmetAnnotations
	work  change.Tally // since the last commit
	late  change.Tally // for what the kernel lacks, while the ruleset is Behind
	held  map[string]bool
	stray []*nft.Table // that the kernel had in families that are not served, until the next commit
}

// familyRules is the part of a Ruleset in one table.
type familyRules struct {
	*change.Journal
	config         *Config
	ports          map[tracker.PortID]*portState
	frontends      map[tracker.Frontend]*frontendState
	chains         map[string]*chainUse
	affinityPorts  map[string]int // how many Service ports have entries in an affinity map, by its name
	shared         map[sharedElement]int
	onNode         map[tracker.Memory[netip.AddrPort]]int // how many Service ports have this list
	sourceRanges   map[uint32]*sourceRanges               // by number
	numbers        map[uint32]string                      // the identity that has a number
	adopted        *nft.Table                             // what the kernel held at start; for the order of lists
	affinity       *affinity.Settings
	affinityGroups map[uint32]affinity.Group      // that have changed since the last commit, by number
	affinityLists  map[uint32]affinity.ListChange // lists that have changed since the last commit, by number
	contests       map[*frontendState]*contest
	givingWay      map[string][]handover // by the namespace that has the frontends, or had them
	passed         int                   // work for frontends that other ports have won, since giveWay
	overlaps       overlaps
	standing       int           // conflicts within contests
	fresh          []Conflict    // not reported yet
	ownerChanges   []OwnerChange // not reported yet
	lists          *lists.Writer
	siblings       map[serviceKey]*portState
	joints         map[serviceKey][]*jointList
	adoptedView    *readback.Table
	adoptedJoints  map[jointPort]uint32 // the numbers of the joint lists in adopted
	// Since the last commit, see PortChanges, FlowChanges, TouchedFrontends and TouchedClusterIPs.
	changedPorts      []*portState
	touchedFrontends  []*frontendState
	touchedClusterIPs []netip.Addr
}

// A chainUse counts the users of a chain: those that go there.
type chainUse struct {
	verdict *nft.Verdict
	users   int
}

// NewRuleset returns the ruleset of a cluster without Services.
func NewRuleset(config Config) *Ruleset {
	r := &Ruleset{config: config, families: make(map[nft.Family]*familyRules), work: change.NewTally(),
		late: change.NewTally(), held: make(map[string]bool)}
	r.unmet = unmetAnnotations{config: &r.config, standing: make(map[unmetKey]bool)}
	for _, f := range config.Families {
		r.families[f] = newFamily(&r.config, f)
	}
	return r
}

func newFamily(config *Config, f nft.Family) *familyRules {
	fr := &familyRules{
		Journal:      change.NewJournal(config.skeleton(f)),
		config:       config,
		ports:        make(map[tracker.PortID]*portState),
		frontends:    make(map[tracker.Frontend]*frontendState),
		chains:       make(map[string]*chainUse),
		shared:       make(map[sharedElement]int),
		onNode:       make(map[tracker.Memory[netip.AddrPort]]int),
		sourceRanges: make(map[uint32]*sourceRanges),

		numbers:        make(map[uint32]string),
		siblings:       make(map[serviceKey]*portState),
		joints:         make(map[serviceKey][]*jointList),
		affinity:       config.affinitySettings(f),
		affinityGroups: make(map[uint32]affinity.Group),
		affinityLists:  make(map[uint32]affinity.ListChange),
		affinityPorts:  make(map[string]int),
		contests:       make(map[*frontendState]*contest),
		givingWay:      make(map[string][]handover),
		overlaps:       newOverlaps(),
	}
	fr.lists = lists.NewWriter(fr.Journal, lists.Settings{Counters: config.EndpointCounters, StagedFrom: stagedFrom,
		Number: fr.numberOf, Free: func(number uint32) { delete(fr.numbers, number) }})
	for _, name := range []string{layout.RejectChain, layout.DropNotLocalChain} { // they are always there
		fr.chains[name] = &chainUse{verdict: new(nft.Goto(name)), users: 1}
	}
	for c := 1; c <= usualLengths; c = tracker.Capacity(c + 1) {
		fr.acquire(layout.Policy{Kind: layout.Internal, Cluster: c})
		fr.acquire(layout.Policy{Kind: layout.External, Cluster: c})
		fr.acquire(layout.Policy{Kind: layout.External, NodePort: true, Cluster: c})
	}
	for c := 1; c <= usualLocalLengths; c = tracker.Capacity(c + 1) {
		fr.acquire(layout.Policy{Kind: layout.InternalLocal, Local: c})
		fr.acquireBalance(lists.Balance{NodePort: true, Local: true, Capacity: c})
	}
	return fr
}

// Adopt tells the ruleset what the kernel holds. Then endpoints keep the places that they have there, and a restart
// writes only what differs. Call it before the first Apply.
func (r *Ruleset) Adopt(tables nft.Tables) {
	for f, family := range r.families {
		family.adopted = tables[f]
	}
}

// Apply makes the wanted tables follow a delta. Service ports of a family that is not served are
// passed over.
func (r *Ruleset) Apply(delta tracker.Delta) {
	for id := range delta.Removed {
		r.unmet.updateLimits(id, nil)
	}
	ports := slices.Clone(delta.Changed)
	slices.SortFunc(ports, byID)
	for _, port := range ports {
		r.unmet.updateLimits(port.ID, port)
	}
	for _, f := range r.config.Families {
		family, mine := r.families[f], ports
		other := func(p *tracker.ServicePort) bool { return p.ID.Family != f }
		if slices.ContainsFunc(ports, other) {
			mine = slices.DeleteFunc(slices.Clone(ports), other)
		}
		for service := range delta.Leaving {
			before := family.Work()
			family.leave(service)
			r.work.Count(service.Namespace, family.Journal, before)
		}
		if len(mine)+len(delta.Removed) > 0 {
			family.apply(delta.Removed, mine, r)
		}
		if delta.CIDRsChanged {
			family.fillSet(layout.ServiceCIDRsSet, rangesOf(f, delta.ServiceCIDRs))
		}
	}
	for _, f := range r.config.Families {
		family := r.families[f]
		family.giveWay(r.Room(), &r.work)
		if !family.Behind() { // the next batch would take all of a list along that has not had its turn
			family.lists.Advance(r.Room(), &r.work)
		}
	}
	if delta.CIDRsChanged {
		r.serviceCIDRs = slices.DeleteFunc(slices.Clone(delta.ServiceCIDRs), func(p netip.Prefix) bool {
			return r.families[tracker.FamilyOf(p.Addr())] == nil
		})
	}
}

// apply makes the table follow what has become of Service ports: ports are those of its family that are new or have
// changed, removed may be of any family. It adds to r.work what each namespace has changed.
func (fr *familyRules) apply(removed map[tracker.PortID]bool, ports []*tracker.ServicePort, r *Ruleset) {
	left := make(map[serviceKey]bool) // Services of which a port has gone
	for id := range removed {
		if id.Family == fr.Table.Family {
			before := fr.Work()
			fr.removePort(id)
			before.Elements-- // the look at the port
			r.work.Count(id.Namespace, fr.Journal, before)
			left[serviceOf(id)] = true
		}
	}
	if len(ports) >= manyPorts {
		fr.reserve(ports, &r.unmet)
	}
	states := make([]*portState, len(ports))
	var before *portState
	for i, port := range ports {
		states[i] = fr.portOf(port, before)
		before = states[i]
		states[i].want(setting{port, r.unmet.limitsOf(port)})
	}
	joined, last := make(map[serviceKey]bool), serviceKey{}
	join := func(key serviceKey) {
		if key == last {
			return
		}
		if !joined[key] && fr.mayJoin(key) {
			fr.join(key)
		}
		joined[key], last = true, key
	}
	for _, port := range states {
		id, before := port.wanted.ID, fr.Work()
		join(serviceOf(id))
		fr.setPort(port, port.wanted)
		port.wanted = setting{}
		before.Elements -= 1 + len(port.frontends)/frontendsPerElement // the look at the port, and at its frontends
		r.work.Count(id.Namespace, fr.Journal, before)
	}
	for key := range left {
		before := fr.Work()
		join(key)
		r.work.Count(key.namespace, fr.Journal, before)
	}
}

// frontendsPerElement is how many frontends of a port, whether they change or not, are worked out in the time that an
// element takes.
const frontendsPerElement = 10

// Work says how much each namespace has changed of the tables since the last commit. It is valid until the next call of
// Apply or Committed.
func (r *Ruleset) Work() change.Tally { return r.work }

// Room is how many elements of what waits the next commit may have beside what has changed.
func (r *Ruleset) Room() int { return max(stagedFrom-r.work.All.Elements, stagedFrom/4) }

// reserve makes room for the first Service ports in the sets and indexes that grow with them.
func (fr *familyRules) reserve(ports []*tracker.ServicePort, unmet *unmetAnnotations) {
	endpoints, each := make(map[tracker.Protocol]int), make(map[tracker.Memory[netip.AddrPort]]int)
	for _, port := range ports {
		id := tracker.MemoryOf(port.Cluster)
		long := max(each[id], port.Frontends()*len(port.Cluster)) >= manyPlaces
		if long || unmet.limitsOf(port).hash(port) != layout.NoHash {
			continue // they have maps of their own
		}
		each[id] += len(port.Cluster)
		endpoints[port.ID.Protocol] += len(port.Cluster)
	}
	n := len(ports)
	if len(fr.ports) == 0 {
		fr.ports = make(map[tracker.PortID]*portState, n)
		fr.frontends = make(map[tracker.Frontend]*frontendState, n)
		fr.siblings = make(map[serviceKey]*portState, n)
		if len(fr.shared) == 0 {
			fr.shared = make(map[sharedElement]int, n)
		}
	}
	fr.Reserve(layout.ServicesMap, n)
	fr.Reserve(layout.ClusterIPsSet, n)
	for protocol, n := range endpoints {
		fr.Reserve(layout.EndpointMap{Protocol: protocol}.Name(), n)
	}
}

// manyPorts is from how many Service ports on it pays to count what they will need.
const manyPorts = 64

// byID compares Service ports.
func byID(a, b *tracker.ServicePort) int { return a.ID.Compare(b.ID) }

// SetNodePortAddresses sets the addresses at which node ports are served, in families that do not
// serve them at all addresses.
func (r *Ruleset) SetNodePortAddresses(addrs []netip.Addr) {
	for f, family := range r.families {
		keys := make(map[string]bool)
		for _, addr := range tracker.OfFamily(addrs, f) {
			keys[nft.AddrKey(addr)] = true
		}
		if !family.fillSet(layout.NodePortAddressesSet, keys) {
			continue
		}
		for _, state := range family.frontends {
			family.programHiding(state)
		}
	}
}

// ReportOverlaps sets the addresses at which node ports are reached, sorted: Conflicts reports node ports that another
// Service's load-balancer IP or external IP hides there. The caller must not change addrs.
func (r *Ruleset) ReportOverlaps(addrs []netip.Addr) {
	for f, family := range r.families {
		family.overlaps.reach(family, tracker.OfFamily(addrs, f))
	}
}

// Reserve sets addresses of the node that are there for Services alone, as those of kube-ipvs0. Nothing of the node
// answers there: ports that no Service has are rejected, as at cluster IPs. The caller must not change addrs.
func (r *Ruleset) Reserve(addrs map[netip.Addr]bool) {
	change := func(addr netip.Addr, f func(*familyRules, sharedElement)) {
		if family := r.families[tracker.FamilyOf(addr)]; family != nil {
			family.touchedClusterIPs = append(family.touchedClusterIPs, addr)
			f(family, sharedElement{layout.ClusterIPsSet, nft.AddrKey(addr)})
		}
	}
	for addr := range addrs {
		if !r.reserved[addr] {
			change(addr, (*familyRules).share)
		}
	}
	for addr := range r.reserved {
		if !addrs[addr] {
			change(addr, (*familyRules).unshare)
		}
	}
	r.reserved = addrs
}

func rangesOf(f nft.Family, prefixes []netip.Prefix) map[string]bool {
	keys := make(map[string]bool)
	for _, p := range prefixes {
		if tracker.FamilyOf(p.Addr()) == f {
			keys[nft.RangeKey("", p)] = true
		}
	}
	return keys
}

// fillSet makes a fixed set hold exactly these keys, and reports whether that changed it.
func (fr *familyRules) fillSet(set string, keys map[string]bool) (changed bool) {
	held := fr.Table.Sets[set].Map
	for key := range held {
		if !keys[key] {
			fr.Remove(set, key)
			changed = true
		}
	}
	for key := range keys {
		if _, has := held[key]; !has {
			fr.Put(set, key, nft.Element{})
			changed = true
		}
	}
	return changed
}

// Want returns the complete wanted tables. The caller must not change them. They are valid until the
// next Apply.
func (r *Ruleset) Want() nft.Tables {
	tables := make(nft.Tables, len(r.families))
	for f, family := range r.families {
		tables[f] = family.Table
	}
	return tables
}

// Found tells the ruleset what the kernel has. The next calls of Changes turn that into what is wanted: each call of
// Advance adds a part of it.
func (r *Ruleset) Found(have nft.Tables) {
	r.stray = nil
	for f, table := range have {
		if r.families[f] == nil {
			r.stray = append(r.stray, table)
		}
	}
	for f, family := range r.families {
		family.Found(have[f], layout.NewUnits(have[f], family.Table))
	}
	r.late.Clear()
	_, n := r.pending()
	r.late.Add("", change.Work{Elements: n, Walks: n}) // no namespace's
}

// mostAtOnce is how many elements a commit of changes has at most, beside a quarter of stagedFrom. Larger changes are
// divided: see Advance. Tests lower it.
var mostAtOnce = 3*tracker.CommitElements - tracker.CommitElements/4

// Advance adds about n elements of what the kernel lacks to the next Changes: see Found. If what has changed is too
// much for one commit, the next Changes have a part of it each.
func (r *Ruleset) Advance(n int) {
	next, _ := r.pending()
	if next > mostAtOnce {
		for namespace, of := range r.work.Namespaces {
			r.held[namespace] = r.held[namespace] || of.Elements > stagedFrom/10
		}
		r.work.MoveTo(&r.late, 1, 1)
		r.work.Clear()
		n = r.Room()
		for _, f := range r.config.Families {
			family := r.families[f]
			if next, _ := family.Pending(); next == 0 { // its table may have to be made anew
				continue
			}
			family.Defer(n/2, func(before *nft.Table) change.Units { return layout.NewUnits(before, family.Table) })
		}
		next, _ = r.pending()
	}
	if r.Behind() {
		if next > 0 {
			n = min(n, max(mostAtOnce-next, stagedFrom/4))
		}
		for _, f := range r.config.Families {
			n = r.families[f].Advance(n)
		}
	}
	if len(r.late.Namespaces) > 0 {
		if next, later := r.pending(); next > 0 {
			r.late.MoveTo(&r.work, next, next+later)
		}
	}
	if !r.Behind() { // it may have ended elsewhere: when the tables were read, or with a change that needs all of it
		r.late.Clear()
		clear(r.held)
	}
}

// Held returns the namespaces that had much in changes that were divided, until the ruleset is not Behind any more. If
// they added more meanwhile, it might be Behind for good.
func (r *Ruleset) Held() (namespaces []string) {
	for namespace, held := range r.held {
		if held {
			namespaces = append(namespaces, namespace)
		}
	}
	return namespaces
}

// pending is Journal.Pending of all families.
func (r *Ruleset) pending() (next, later int) {
	for _, family := range r.families {
		n, m := family.Pending()
		next, later = next+n, later+m
	}
	return next, later
}

// Behind reports whether the kernel lacks something that the next Changes does not have: see Found and Advance.
func (r *Ruleset) Behind() bool {
	for _, family := range r.families {
		if family.Behind() {
			return true
		}
	}
	return false
}

// Changes returns the batch for what has changed since Committed. Unless the ruleset is Behind, it equals the
// difference between the whole tables as they were and as they are wanted, but costs only as much as was touched.
func (r *Ruleset) Changes() nft.Batch {
	var b nft.Batch
	for _, table := range r.stray {
		b.Ops = append(b.Ops, nft.Op{Verb: nft.Delete, Family: table.Family, Table: table})
	}
	for _, f := range nft.Families {
		if family := r.families[f]; family != nil {
			b.Ops = family.Changes(b.Ops)
		}
	}
	return b
}

// Committed tells the ruleset that the kernel has the batch of Changes: all that is wanted, unless it is Behind.
func (r *Ruleset) Committed() {
	r.work.Clear()
	r.stray = nil
	behind := r.Behind()
	for _, family := range r.families {
		family.Committed()
		family.lists.Committed()
		family.adopted, family.adoptedView, family.adoptedJoints = nil, nil, nil
		for _, state := range family.touchedFrontends {
			state.touched, state.before = false, connections{}
		}
		for _, port := range family.changedPorts {
			port.committed, port.changed = nil, 0
		}
		family.changedPorts = emptied(family.changedPorts)
		family.touchedFrontends = emptied(family.touchedFrontends)
		family.touchedClusterIPs = emptied(family.touchedClusterIPs)
		if behind { // a frontend may still lead to an endpoint that has left
			continue
		}
		family.affinityGroups, family.affinityLists = cleared(family.affinityGroups), cleared(family.affinityLists)
	}
}

// verdict returns the policy's verdict. The elements of its frontends share one value.
func (fr *familyRules) verdict(p layout.Policy) *nft.Verdict {
	if use, ok := fr.chains[p.ChainName()]; ok {
		return use.verdict
	}
	return p.Verdict()
}

// acquire counts a user of a policy's chain, and for the first one makes the chains that it needs.
// release takes them away with the last user.
func (fr *familyRules) acquire(p layout.Policy) {
	if p.Kind == 0 || ownedByAffinity(p) {
		return
	}
	name := p.ChainName()
	if use, ok := fr.chains[name]; ok {
		use.users++
		return
	}
	fr.chains[name] = &chainUse{verdict: p.Verdict(), users: 1}
	for _, next := range nextPolicies(p) {
		fr.acquire(next)
	}
	for _, b := range balancesOf(p) {
		fr.acquireBalance(b)
	}
	if p.SourceRanges != 0 {
		fr.addRangesPolicy(p.SourceRanges)
		fr.PutChain(limitedChain(p))
		return
	}
	fr.PutChain(fr.config.policyChain(p, fr.Table.Family, fr.config.sharedWays(p, fr.Table.Family)))
}

func (fr *familyRules) release(p layout.Policy) {
	if p.Kind == 0 || ownedByAffinity(p) {
		return
	}
	name := p.ChainName()
	if !fr.giveUp(name) {
		return
	}
	for _, next := range nextPolicies(p) {
		fr.release(next)
	}
	for _, b := range balancesOf(p) {
		fr.releaseBalance(b)
	}
	if p.SourceRanges != 0 {
		fr.removeRangesPolicy(p.SourceRanges)
	}
}

func (fr *familyRules) acquireBalance(b lists.Balance) {
	b = b.All()
	if use, ok := fr.chains[b.Name()]; ok {
		use.users++
		return
	}
	fr.chains[b.Name()] = &chainUse{users: 1}
	for _, next := range b.Next() {
		fr.acquireBalance(next)
	}
	for _, chain := range b.Chains() {
		fr.PutChain(chain)
	}
}

func (fr *familyRules) releaseBalance(b lists.Balance) {
	b = b.All()
	if !fr.giveUp(b.Name()) {
		return
	}
	for _, chain := range b.Chains()[1:] {
		fr.RemoveChain(chain.Name)
	}
	for _, next := range b.Next() {
		fr.releaseBalance(next)
	}
}

// giveUp takes away one user of a chain and reports whether it was the last. With the last user the
// chain goes.
func (fr *familyRules) giveUp(name string) bool {
	use := fr.chains[name]
	if use.users--; use.users > 0 {
		return false
	}
	delete(fr.chains, name)
	fr.RemoveChain(name)
	return true
}

// Lengths returns how many elements the sets and maps should have, by family and name. The sets of source ranges, one
// for each prefix length, count together, and so do the maps of shared lists of one kind. Affinity maps do not count.
// Its cost does not depend on these numbers.
func (r *Ruleset) Lengths() map[nft.Family]map[string]int {
	lengths := make(map[nft.Family]map[string]int, len(r.families))
	for f, family := range r.families {
		n := make(map[string]int)
		for _, prefix := range []string{
			layout.RangesPrefix, layout.ListsPrefix, layout.SlotsPrefix, layout.AddressesPrefix, layout.PortsPrefix,
		} {
			n[strings.TrimSuffix(prefix, "-")] = 0
		}
		for name, set := range family.Table.Sets {
			if set.Set.Rank >= rangesRank {
				name, _, _ = strings.Cut(name, "-")
			}
			if !set.Set.Dynamic {
				n[name] += len(set.Map)
			}
		}
		lengths[f] = n
	}
	return lengths
}

// Record records what a foreign change did to our tables. Changes is then the repair. damaged is the
// number of chains, sets and elements that are not as they should be; a missing table counts as one.
// known is false if the notifications do not tell: then the tables must be read back.
//
// Call it when the ruleset's changes have been committed. A foreign change may be recorded after our last
// commit although the kernel made it before. That does no harm: if the two concern each other, the
// kernel has refused our commit, or has done what the repair will do again.
func (r *Ruleset) Record(foreign *change.ForeignChange) (damaged int, known bool) {
	if foreign.Lost {
		return 0, false
	}
	last := make(map[nft.Family]int) // where each family's table was deleted last
	for i := range foreign.Events {
		if e := &foreign.Events[i]; e.Table != nil && e.Verb == nft.Delete {
			last[e.Family] = i
		}
	}
	for i := range foreign.Events {
		e := &foreign.Events[i]
		family := r.families[e.Family]
		switch {
		case family == nil: // IPv6 is not served
		case i < last[e.Family]: // what went with the table
		case !family.Record(e):
			return 0, false
		}
	}
	for _, family := range r.families {
		damaged += family.Damaged()
	}
	return damaged, true
}

// cleared returns an empty map. The large one of a start's many changes is given up, because a walk over a large map
// takes long even if it holds little.
func cleared[K comparable, V any](m map[K]V) map[K]V {
	if len(m) > 1024 {
		return make(map[K]V)
	}
	clear(m)
	return m
}

// emptied returns an empty list. It reuses the memory of a list, but not that of the many changes of a
// start.
func emptied[T any](list []T) []T {
	if cap(list) > 1<<14 {
		return nil
	}
	clear(list)
	return list[:0]
}
