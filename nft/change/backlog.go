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
//
// A large change that comes before the last one is through has its turn after it, but before what goes.
type backlog struct {
	units    Units
	elements map[elementName]waiting[*nft.Element] // what the kernel has there; nil for nothing
	along    map[string]*step                      // by unit, what comes along if one of its elements changes
	queue    []*step                               // in order; elements that are in none go last
	chains   map[string]waiting[*nft.Chain]        // that change, go or come, as the kernel has them; nil for nothing
	sets     map[string]*nft.Elements              // that go, with what they hold
	turn     int                                   // of what comes to the backlog
}

// waiting is something in the backlog.
type waiting[T any] struct {
	before T     // as the kernel has it
	along  *step // that of its unit; nil if it stands alone, or goes and nothing needs it
	turn   int
}

// A step goes into one batch. It leaves out what has been in a batch since, and has another turn now.
type step struct {
	elements []elementName
	apart    bool // each element may go alone
	chains   []string
	turn     int  // 0 of those that come along
	unit     Unit // of those that come along
	left     int  // work of what is still in the backlog, of those that come along
	waited   int  // the turn after which it was put last
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
	return &backlog{elements: make(map[elementName]waiting[*nft.Element]), along: make(map[string]*step),
		chains: make(map[string]waiting[*nft.Chain]), sets: make(map[string]*nft.Elements)}
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
	changed, chains := j.differing(have), make(map[string]*nft.Chain)
	unseen := true // no base chain stands
	for name, chain := range have.Chains {
		unseen = unseen && chain.Hook == nil
		if want := j.Table.Chains[name]; want == nil || !chain.EqualRules(have.Family, want) {
			chains[name] = chain
		}
	}
	for name, chain := range j.Table.Chains {
		switch {
		case have.Chains[name] != nil:
		case chain.Hook != nil || units.OfChain(name).Name != "":
			chains[name] = nil
		default:
			j.chains[name] = nil
		}
	}
	for name, held := range have.Sets {
		if j.Table.Sets[name] == nil {
			b.sets[name] = held
		}
	}
	b.add(j, units, changed, chains)
	if len(b.elements)+len(chains)+len(b.sets) > 0 {
		j.backlog = b
	}
	for name := range maps.Clone(j.chains) {
		j.moveReached(name)
	}
	if unseen { // no packet waits for the parts of what none reaches
		j.all()
	}
}

// Pending is how many elements the next Changes adds and deletes, and about how many are left after it. next is 0 at a
// start.
func (j *Journal) Pending() (next, later int) {
	if j.backlog != nil {
		later = len(j.backlog.elements) + chainWork*len(j.backlog.chains)
	}
	if j.gone || j.found != nil {
		return 0, later
	}
	for set, touched := range j.elements {
		want := j.Table.Sets[set]
		if want == nil || want.Set.Dynamic {
			continue
		}
		for key, before := range touched {
			now, present := want.Map[key]
			if !same(before, now, present) {
				next += operations(before, present)
			}
		}
	}
	for chain := range j.chains {
		if j.Table.Chains[chain] != nil { // one that goes costs little
			next += chainWork
		}
	}
	return next, later
}

// operations is how many operations an element is that differs.
func operations(before *nft.Element, wanted bool) int {
	if before != nil && wanted {
		return 2
	}
	return 1
}

// Defer has the next calls of Changes make what the next one would, a part at a time: see Advance. The units that take
// the least work, about room in all, do not wait if they have no chains. unitsOf returns the units; before has the
// verdicts that change.
func (j *Journal) Defer(room int, unitsOf func(before *nft.Table) Units) {
	changed, before := make(map[string]map[string]*nft.Element), nft.NewTable(j.Table.Family)
	for name, touched := range j.elements {
		want := j.Table.Sets[name]
		if want == nil || want.Set.Dynamic {
			continue
		}
		verdicts := make(map[string]nft.Element)
		for key, old := range touched {
			if old != nil && old.Verdict != nil {
				verdicts[key] = *old
			}
		}
		changed[name], before.Sets[name] = touched, &nft.Elements{Set: want.Set, Map: verdicts}
		delete(j.elements, name)
	}
	units, chains := unitsOf(before), make(map[string]*nft.Chain)
	for name, old := range j.chains {
		if j.Table.Chains[name] != nil && units.OfChain(name).Name != "" {
			chains[name] = old
			delete(j.chains, name)
		}
	}
	if j.backlog == nil {
		j.backlog = newBacklog()
	}
	come := j.backlog.add(j, units, changed, chains)
	for name := range maps.Clone(j.chains) {
		j.moveReached(name)
	}
	slices.SortFunc(come, func(a, o string) int {
		return cmp.Or(cmp.Compare(j.backlog.size(a), j.backlog.size(o)), cmp.Compare(a, o))
	})
	for _, name := range come {
		r := j.reach(room)
		if r.unit(name); r.work <= room && !r.chains {
			room -= j.moveUnits(r)
		}
	}
}

// size is how much work a unit in the backlog is.
func (b *backlog) size(unit string) int {
	if with := b.along[unit]; with != nil {
		return with.left
	}
	return 0
}

// differing returns the elements that differ, by set and key, as a table has them.
func (j *Journal) differing(have *nft.Table) map[string]map[string]*nft.Element {
	changed := make(map[string]map[string]*nft.Element)
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
		differ := make(map[string]*nft.Element)
		for key := range missing(want.Map, held) {
			var old *nft.Element
			if element, ok := held[key]; ok {
				old = &element
			}
			differ[key] = old
		}
		for key, element := range held {
			if _, ok := want.Map[key]; !ok {
				differ[key] = &element
			}
		}
		changed[name] = differ
	}
	return changed
}

// add adds elements, by set and key, and chains, as the kernel has them, to the end of the queue. It returns their
// units. A rule comes to a set of low rank from one of high rank: elements of low rank come first and go last.
func (b *backlog) add(j *Journal, units Units, changed map[string]map[string]*nft.Element,
	chains map[string]*nft.Chain) (come []string) {
	want := j.Table
	b.units = units
	b.turn++
	whole := make(map[string]bool) // the units, and whether some of it is Whole
	goes := make(map[string]bool)  // units with chains that go, and none that come or change
	for _, wanted := range []bool{false, true} {
		for _, changed := range []map[string]*nft.Chain{chains, j.chains} {
			for name := range changed {
				if (want.Chains[name] != nil) == wanted {
					goes[units.OfChain(name).Name] = !wanted
				}
			}
		}
	}
	early, middle := &step{apart: true, turn: b.turn}, &step{apart: true, turn: b.turn}
	for _, name := range sortedSets(changed, want) {
		held := want.Sets[name]
		for key, before := range changed[name] {
			now, wanted := held.Map[key]
			if same(before, now, wanted) {
				continue
			}
			e, unit := elementName{name, key}, b.of(held.Set, key)
			var with *step
			if unit.Name != "" && (unit.Whole || wanted) { // nothing needs what goes
				with = b.with(unit)
				with.elements = append(with.elements, e)
				with.left++
				whole[unit.Name] = whole[unit.Name] || unit.Whole
			}
			b.elements[e] = waiting[*nft.Element]{before, with, b.turn}
			switch {
			case unit.Whole:
			case !wanted && unit.Name != "" && !goes[unit.Name]:
				middle.elements = append(middle.elements, e)
			case wanted != unit.Refuses:
				early.elements = append(early.elements, e)
			}
		}
	}
	slices.Reverse(middle.elements)
	b.queue = append(b.queue, early)
	var others []string // chains of no unit
	for name, before := range chains {
		unit := units.OfChain(name)
		b.chains[name] = waiting[*nft.Chain]{before: before, turn: b.turn}
		switch {
		case want.Chains[name] == nil:
		case unit.Name == "":
			others = append(others, name)
		default:
			with := b.with(unit)
			with.chains = append(with.chains, name)
			with.left += chainWork
			b.chains[name] = waiting[*nft.Chain]{before, with, b.turn}
			if whole[unit.Name] = whole[unit.Name] || unit.Whole; !unit.Whole {
				b.queue = append(b.queue, &step{chains: []string{name}, turn: b.turn})
			}
		}
	}
	b.queue = append(b.queue, middle)
	come = slices.Sorted(maps.Keys(whole))
	for _, name := range come {
		if whole[name] {
			b.queue = append(b.queue, &step{elements: b.along[name].elements, chains: b.along[name].chains, turn: b.turn})
		}
	}
	b.queue = append(b.queue, &step{chains: others, turn: b.turn})
	return come
}

// sortedSets returns the names of sets of a table, by rank.
func sortedSets[V any](names map[string]V, table *nft.Table) []string {
	return slices.SortedFunc(maps.Keys(names), func(a, o string) int {
		return nft.CompareSets(table.Sets[a].Set, table.Sets[o].Set)
	})
}

// rest moves what is in no step to the queue, in which there is none.
func (j *Journal) rest() {
	b, bySet := j.backlog, make(map[string][]elementName)
	for e, w := range b.elements {
		if j.Table.Sets[e.set] == nil { // it goes with its set
			j.take(e, w)
			continue
		}
		w.turn = b.turn
		b.elements[e] = w
		bySet[e.set] = append(bySet[e.set], e)
	}
	last := &step{apart: true, turn: b.turn}
	for _, name := range slices.Backward(sortedSets(bySet, j.Table)) {
		last.elements = append(last.elements, bySet[name]...)
	}
	if len(last.elements) > 0 {
		b.queue = append(b.queue, last)
	}
}

// with returns what comes along with an element of a unit.
func (b *backlog) with(unit Unit) *step {
	if with := b.along[unit.Name]; with == nil || with.left == 0 {
		b.along[unit.Name] = &step{unit: unit}
	}
	return b.along[unit.Name]
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
	b, most := j.backlog, n
	for b != nil && n > 0 {
		if len(b.queue) == 0 {
			j.rest()
		}
		if len(b.queue) == 0 { // nothing refers to the rest any more
			for name, chain := range b.chains {
				j.chains[name] = chain.before
			}
			maps.Copy(j.sets, b.sets)
			j.backlog = nil
			break
		}
		next := b.queue[0]
		if next.apart && len(next.elements) > 1 {
			next = next.first()
		} else {
			b.queue = b.queue[1:]
		}
		r := j.reach(math.MaxInt)
		if next.waited < b.turn && next.turn < b.turn {
			r.most = most
		}
		if r.step(next); r.work > r.most { // what it leads to has changed since, and has a later turn
			next.waited = b.turn
			b.queue = append(b.queue, next)
			continue
		}
		n -= j.moveStep(next) + j.moveUnits(r)
	}
	return n
}

// first takes the first element off a step.
func (s *step) first() *step {
	one := *s
	one.elements, s.elements = s.elements[:1], s.elements[1:]
	return &one
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
		if w, ok := b.elements[e]; ok && (w.turn == s.turn || w.along == s) {
			j.take(e, w)
			_, wanted := j.Table.Elements(e.set)[e.key]
			work += operations(w.before, wanted)
		}
	}
	for _, name := range s.chains {
		if w, ok := b.chains[name]; ok && (w.turn == s.turn || w.along == s) && j.Table.Chains[name] != nil {
			delete(b.chains, name)
			j.chains[name] = w.before
			work += chainWork
			if w.along != nil {
				w.along.left -= chainWork
				if w.along.unit.Walks {
					work += walkWork
				}
			}
		}
	}
	return work
}

// moveElement moves an element that changes now into the next Changes, with what belongs to it.
func (j *Journal) moveElement(e elementName) {
	b := j.backlog
	unit := b.of(j.Table.Sets[e.set].Set, e.key)
	if along := b.elements[e].along; along != nil {
		unit = along.unit
	}
	j.moveUnit(unit)
	if w, ok := b.elements[e]; ok {
		j.take(e, w)
	}
}

// take moves an element of the backlog into the next Changes.
func (j *Journal) take(e elementName, w waiting[*nft.Element]) {
	delete(j.backlog.elements, e)
	j.touchedIn(e.set)[e.key] = w.before
	if w.along != nil {
		w.along.left--
	}
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
	chains  bool // some have chains
	work    int
	most    int
}

func (j *Journal) reach(most int) *reached { return &reached{journal: j, most: most} }

func (r *reached) unit(name string) {
	s := r.journal.backlog.along[name]
	if s == nil || s.left == 0 || r.units[name] {
		return
	}
	if r.units == nil {
		r.units = make(map[string]bool)
	}
	r.units[name], r.chains = true, r.chains || len(s.chains) > 0
	if r.work += s.left; r.work <= r.most {
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
	r.unit(r.journal.backlog.ofChain(name).Name)
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
	b := j.backlog
	_, waits := b.chains[name]
	if unit := b.ofChain(name); waits || unit.Whole {
		j.moveUnit(unit)
	}
	if b.chains[name].before != nil {
		j.all()
	}
}

// ofChain returns the unit of a chain.
func (b *backlog) ofChain(name string) Unit {
	if along := b.chains[name].along; along != nil {
		return along.unit
	}
	return b.units.OfChain(name)
}
