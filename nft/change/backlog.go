package change

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// A backlog is what differs between the kernel's table and the wanted one, as far as no batch has had it yet: because
// a reading has shown it, or because a change was too large for one batch. Its elements go into batches a bounded
// number at a time, while packets use the table, in this order:
//
//   - elements that come, change, or let packets be refused and go; then the chains of their units, and what goes from
//     units that stay; then whole units;
//   - other chains whose rules change, and new base chains: all that their old and their new rules need is there;
//   - elements that go, or let packets be refused and come; with the last of them, chains and sets that nothing refers
//     to any more.
//
// What changes meanwhile does not wait: its batch takes what belongs together from the backlog. Only chains and sets
// are not deleted before the backlog ends, since elements in it may lead there.
type backlog struct {
	units    Units
	elements map[elementName]*nft.Element // what the kernel has there; nil for nothing
	along    map[string]*step             // by unit, what comes along if one of its elements changes
	queue    []*step                      // in order; nil stands for all chains that change and belong to no unit
	chains   map[string]*nft.Chain        // that change, go or come later, as the kernel has them; nil for nothing
	sets     map[string]*nft.Elements     // that go, with what they hold
}

// A step goes into one batch.
type step struct {
	elements []elementName
	chains   []string
}

type elementName struct{ set, key string }

// A Unit says what an element belongs to.
type Unit struct {
	// Name is the same for elements that belong together, and empty for one that stands alone.
	Name string
	// Whole says that packets must not find some of them changed and others not. If it is false, the chains of the unit
	// need all of those that come.
	Whole bool
	// Refuses says that packets are refused because of the element, unless another element comes first.
	Refuses bool
	// Walks says that for each chain of the unit the kernel goes through a map that packets fill. It needs Whole.
	Walks bool
}

// walkWork is how many elements cost the kernel about as much as a walk through a map that packets have filled.
const walkWork = 1000

// Units says what belongs together.
type Units interface {
	OfElement(set, key string) Unit
	OfChain(name string) Unit
}

func newBacklog() *backlog {
	return &backlog{elements: make(map[elementName]*nft.Element), chains: make(map[string]*nft.Chain),
		sets: make(map[string]*nft.Elements)}
}

// Found tells the journal what the kernel has: nil if there is no table. From then on Changes is about what differs
// from that, a part at a time: see Advance. A table that is to be made, or made anew, is one part.
func (j *Journal) Found(have *nft.Table, units Units) {
	j.tracking, j.backlog, j.found = true, nil, have
	clear(j.elements)
	clear(j.sets)
	clear(j.chains)
	if j.gone = have == nil || replaces(have, j.Table); j.gone {
		return
	}
	b := newBacklog()
	unseen := true // no base chain stands
	for name, chain := range have.Chains {
		unseen = unseen && chain.Hook == nil
		if want := j.Table.Chains[name]; want == nil || !chain.EqualRules(have.Family, want) {
			b.chains[name] = chain
		}
	}
	for name, chain := range j.Table.Chains {
		switch {
		case have.Chains[name] != nil:
		case chain.Hook != nil || units.OfChain(name).Name != "":
			b.chains[name] = nil
		default:
			j.chains[name] = nil
		}
	}
	for name, held := range have.Sets {
		if j.Table.Sets[name] == nil {
			b.sets[name] = held
		}
	}
	b.find(j, have)
	b.arrange(j, units)
	if len(b.elements)+len(b.chains)+len(b.sets) > 0 {
		j.backlog = b
	}
	for name := range maps.Clone(j.chains) {
		j.moveReached(name)
	}
	if unseen { // no packet waits for the parts of what none reaches
		j.all()
	}
}

// Pending is about how many elements the next Changes has, and how many those after it have. next is 0 at a start.
func (j *Journal) Pending() (next, later int) {
	if j.backlog != nil {
		later = len(j.backlog.elements) + chainWork*len(j.backlog.chains)
	}
	if j.gone || j.found != nil {
		return 0, later
	}
	for set, touched := range j.elements {
		if !j.waits(j.Table.Sets[set] != nil) {
			next += len(touched)
		}
	}
	for chain := range j.chains {
		if j.Table.Chains[chain] != nil { // one that goes costs little
			next += chainWork
		}
	}
	return next, later
}

// Defer has the next calls of Changes make what the next one would, a part at a time: see Advance. The units that take
// the least work, about room in all, do not wait. unitsOf returns the units; before has the verdicts that change.
func (j *Journal) Defer(room int, unitsOf func(before *nft.Table) Units) {
	b := j.backlog
	if b == nil {
		b = newBacklog()
	}
	for set, touched := range j.elements {
		want := j.Table.Sets[set]
		if want == nil || want.Set.Dynamic {
			continue
		}
		for key, before := range touched {
			if now, present := want.Map[key]; !same(before, now, present) {
				b.elements[elementName{set, key}] = before
			}
		}
		delete(j.elements, set)
	}
	before := nft.NewTable(j.Table.Family)
	for e, old := range b.elements {
		switch {
		case j.Table.Sets[e.set] == nil: // it goes with its set
			delete(b.elements, e)
			j.touchedIn(e.set)[e.key] = old
			continue
		case old == nil || old.Verdict == nil:
			continue
		}
		if before.Sets[e.set] == nil {
			before.Sets[e.set] = &nft.Elements{Set: j.Table.Sets[e.set].Set, Map: make(map[string]nft.Element)}
		}
		before.Sets[e.set].Map[e.key] = *old
	}
	units := unitsOf(before)
	for name, old := range j.chains {
		if j.Table.Chains[name] != nil && units.OfChain(name).Name != "" {
			b.chains[name] = old
			delete(j.chains, name)
		}
	}
	j.backlog = b
	b.arrange(j, units)
	for name := range maps.Clone(j.chains) {
		j.moveReached(name)
	}
	names := slices.SortedFunc(maps.Keys(b.along), func(a, o string) int {
		return cmp.Or(cmp.Compare(len(b.along[a].elements), len(b.along[o].elements)), cmp.Compare(a, o))
	})
	for _, name := range names {
		r := j.reach(room)
		if r.unit(name); r.work <= room {
			room -= j.moveUnits(r)
		}
	}
}

// find fills the backlog with the elements that differ.
func (b *backlog) find(j *Journal, have *nft.Table) {
	for name, want := range j.Table.Sets {
		var held map[string]nft.Element
		if h := have.Sets[name]; h != nil {
			held = h.Map
		} else {
			j.sets[name] = nil
		}
		if want.Set.Dynamic {
			continue
		}
		for key := range missing(want.Map, held) {
			var old *nft.Element
			if element, ok := held[key]; ok {
				old = &element
			}
			b.elements[elementName{name, key}] = old
		}
		for key, element := range held {
			if _, ok := want.Map[key]; !ok {
				b.elements[elementName{name, key}] = &element
			}
		}
	}
}

// arrange makes the queue.
func (b *backlog) arrange(j *Journal, units Units) {
	want := j.Table
	b.units, b.along, b.queue = units, make(map[string]*step), nil
	whole := make(map[string]*step)
	var early, middle, late []elementName // that may go alone
	goes := make(map[string]bool)         // units with chains that go, and none that come or change
	for _, wanted := range []bool{false, true} {
		for _, chains := range []map[string]*nft.Chain{b.chains, j.chains} {
			for name := range chains {
				if (want.Chains[name] != nil) == wanted {
					goes[units.OfChain(name).Name] = !wanted
				}
			}
		}
	}
	for e := range b.elements {
		held := want.Sets[e.set]
		_, wanted := held.Map[e.key]
		unit := b.of(held.Set, e.key)
		switch {
		case unit.Whole:
			whole[unit.Name] = b.with(unit.Name)
		case !wanted && unit.Name != "" && !goes[unit.Name]:
			middle = append(middle, e)
		case wanted == unit.Refuses:
			late = append(late, e)
		default:
			early = append(early, e)
		}
		if unit.Name != "" {
			with := b.with(unit.Name)
			with.elements = append(with.elements, e)
		}
	}
	b.addEach(early, want)
	for name := range b.chains {
		unit := b.units.OfChain(name)
		if unit.Name == "" || want.Chains[name] == nil {
			continue
		}
		with := b.with(unit.Name)
		if with.chains = append(with.chains, name); unit.Whole {
			whole[unit.Name] = with
		} else {
			b.queue = append(b.queue, &step{chains: []string{name}})
		}
	}
	slices.Reverse(b.addEach(middle, want))
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		b.queue = append(b.queue, whole[name])
	}
	b.queue = append(b.queue, nil)
	slices.Reverse(b.addEach(late, want))
}

// addEach appends steps of one element each to the queue, in the order of the sets' ranks, and returns them. A rule
// comes to a set of low rank from one of high rank: elements of low rank come first and go last.
func (b *backlog) addEach(list []elementName, table *nft.Table) []*step {
	keys := make(map[string][]string)
	for _, e := range list {
		keys[e.set] = append(keys[e.set], e.key)
	}
	names := slices.SortedFunc(maps.Keys(keys), func(a, o string) int {
		return nft.CompareSets(table.Sets[a].Set, table.Sets[o].Set)
	})
	steps := make([]step, 0, len(list))
	for _, name := range names {
		slices.Sort(keys[name])
		for _, key := range keys[name] {
			list[len(steps)] = elementName{name, key}
			steps = append(steps, step{elements: list[len(steps) : len(steps)+1]})
			b.queue = append(b.queue, &steps[len(steps)-1])
		}
	}
	return b.queue[len(b.queue)-len(list):]
}

// with returns what comes along with an element of a unit.
func (b *backlog) with(unit string) *step {
	if b.along[unit] == nil {
		b.along[unit] = new(step)
	}
	return b.along[unit]
}

// of is units. All ranges of a set are one: some of the old ones may overlap some of the new ones.
func (b *backlog) of(set *nft.Set, key string) Unit {
	if set.Interval {
		return Unit{Name: set.Name, Whole: true}
	}
	return b.units.OfElement(set.Name, key)
}

// Behind reports whether the kernel lacks more of the wanted table than the next Changes.
func (j *Journal) Behind() bool { return j.backlog != nil }

// Advance moves about n elements of the backlog into the next Changes, and returns what is left of n.
func (j *Journal) Advance(n int) int {
	b := j.backlog
	for b != nil && n > 0 {
		if len(b.queue) == 0 { // nothing refers to the rest any more
			maps.Copy(j.chains, b.chains)
			maps.Copy(j.sets, b.sets)
			j.backlog = nil
			break
		}
		next := b.queue[0]
		b.queue = b.queue[1:]
		if next == nil {
			next = &step{chains: slices.Collect(maps.Keys(b.chains))}
		}
		r := j.reach(math.MaxInt)
		r.step(next)
		n -= j.moveStep(next) + j.moveUnits(r)
	}
	return n
}

// all moves all of the backlog into the next Changes.
func (j *Journal) all() {
	for j.backlog != nil {
		j.Advance(1 << 20)
	}
}

// moveStep moves what is left of a step into the next Changes, and returns how much work that is.
func (j *Journal) moveStep(s *step) (work int) {
	b := j.backlog
	for _, e := range s.elements {
		if old, ok := b.elements[e]; ok {
			delete(b.elements, e)
			j.touchedIn(e.set)[e.key] = old
			work++
		}
	}
	for _, name := range s.chains {
		if old, ok := b.chains[name]; ok && j.Table.Chains[name] != nil {
			delete(b.chains, name)
			j.chains[name] = old
			if work += chainWork; b.units.OfChain(name).Walks {
				work += walkWork
			}
		}
	}
	return work
}

// moveElement moves an element that changes now into the next Changes, with what belongs to it.
func (j *Journal) moveElement(e elementName) {
	b := j.backlog
	j.moveUnit(b.of(j.Table.Sets[e.set].Set, e.key))
	j.moveStep(&step{elements: []elementName{e}})
}

// moveUnit moves a unit into the next Changes, with what its chains need.
func (j *Journal) moveUnit(unit Unit) {
	r := j.reach(math.MaxInt)
	r.unit(unit.Name)
	j.moveUnits(r)
}

// moveReached moves the units of a wanted chain, and of those to which its rules lead, into the next Changes.
func (j *Journal) moveReached(name string) {
	if j.backlog != nil {
		r := j.reach(math.MaxInt)
		r.chain(name)
		j.moveUnits(r)
	}
}

// moveUnits moves units into the next Changes, and returns how much work that is.
func (j *Journal) moveUnits(r *reached) (work int) {
	for name := range r.units {
		s := j.backlog.along[name]
		delete(j.backlog.along, name)
		work += j.moveStep(s)
	}
	return work
}

// reached are the units of a backlog to which something leads, up to about so much work.
type reached struct {
	journal *Journal
	units   map[string]bool
	work    int
	most    int
}

func (j *Journal) reach(most int) *reached { return &reached{journal: j, most: most} }

func (r *reached) unit(name string) {
	s := r.journal.backlog.along[name]
	if s == nil || r.units[name] {
		return
	}
	if r.units == nil {
		r.units = make(map[string]bool)
	}
	r.units[name] = true
	if r.work += len(s.elements) + chainWork*len(s.chains); r.work <= r.most {
		r.step(s)
	}
}

func (r *reached) step(s *step) {
	for _, e := range s.elements {
		if v := r.journal.Table.Elements(e.set)[e.key].Verdict; v != nil {
			r.chain(v.Chain)
		}
	}
	for _, name := range s.chains {
		r.chain(name)
	}
}

func (r *reached) chain(name string) {
	chain := r.journal.Table.Chains[name]
	if chain == nil {
		return
	}
	r.unit(r.journal.backlog.units.OfChain(name).Name)
	for _, rule := range chain.Rules {
		for _, stmt := range rule {
			if v, ok := stmt.(nft.Verdict); ok && v.Chain != "" {
				r.chain(v.Chain)
			}
		}
	}
}

// moveChain is moveElement for a chain. The rules of one that belongs to no unit may need anything.
func (j *Journal) moveChain(name string) {
	if _, behind := j.backlog.chains[name]; !behind {
		return
	}
	if j.moveUnit(j.backlog.units.OfChain(name)); j.backlog.chains[name] != nil {
		j.all()
	}
}
