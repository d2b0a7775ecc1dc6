package change

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// A backlog is what a reading has shown to differ between the kernel's table and the wanted one, as far as no batch has
// had it yet. Its elements go into batches a bounded number at a time, while packets use the table, in this order:
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
	b := &backlog{units: units, elements: make(map[elementName]*nft.Element), along: make(map[string]*step),
		chains: make(map[string]*nft.Chain), sets: make(map[string]*nft.Elements)}
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
		case chain.Hook != nil || units.OfChain(name).Walks:
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

// find fills the backlog with the elements that differ.
func (b *backlog) find(j *Journal, have *nft.Table) {
	whole := make(map[string]*step)
	var early, middle, late []elementName // that may go alone
	stays := make(map[string]bool)        // the units of which chains are wanted
	for name := range j.Table.Chains {
		stays[b.units.OfChain(name).Name] = true
	}
	delete(stays, "")
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
		note := func(key string, old *nft.Element, goes bool) {
			e := elementName{name, key}
			b.elements[e] = old
			unit := b.of(want.Set, key)
			switch {
			case unit.Whole:
				whole[unit.Name] = b.with(unit.Name)
			case goes && stays[unit.Name]:
				middle = append(middle, e)
			case goes != unit.Refuses:
				late = append(late, e)
			default:
				early = append(early, e)
			}
			if unit.Name != "" {
				with := b.with(unit.Name)
				with.elements = append(with.elements, e)
			}
		}
		for key := range missing(want.Map, held) {
			var old *nft.Element
			if element, ok := held[key]; ok {
				old = &element
			}
			note(key, old, false)
		}
		for key, element := range held {
			if _, ok := want.Map[key]; !ok {
				note(key, &element, true)
			}
		}
	}
	b.addEach(early, j.Table)
	for name := range b.chains {
		unit := b.units.OfChain(name)
		if unit.Name == "" || j.Table.Chains[name] == nil {
			continue
		}
		with := b.with(unit.Name)
		if with.chains = append(with.chains, name); unit.Whole {
			whole[unit.Name] = with
		} else {
			b.queue = append(b.queue, &step{chains: []string{name}})
		}
	}
	slices.Reverse(b.addEach(middle, j.Table))
	for _, name := range slices.Sorted(maps.Keys(whole)) {
		b.queue = append(b.queue, whole[name])
	}
	b.queue = append(b.queue, nil)
	slices.Reverse(b.addEach(late, j.Table))
}

// addEach appends steps of one element each to the queue, in the order of the sets' ranks, and returns them. A rule
// comes to a set of low rank from one of high rank: elements of low rank come first and go last.
func (b *backlog) addEach(list []elementName, table *nft.Table) []*step {
	slices.SortFunc(list, func(e, o elementName) int {
		return cmp.Or(cmp.Compare(table.Sets[e.set].Set.Rank, table.Sets[o.set].Set.Rank), cmp.Compare(e.set, o.set),
			cmp.Compare(e.key, o.key))
	})
	for i := range list {
		b.queue = append(b.queue, &step{elements: list[i : i+1]})
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
		n -= j.moveStep(next)
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
	s := j.backlog.along[unit.Name]
	if s == nil {
		return
	}
	delete(j.backlog.along, unit.Name)
	j.moveStep(s)
	for _, e := range s.elements {
		if v := j.Table.Elements(e.set)[e.key].Verdict; v != nil {
			j.moveReached(v.Chain)
		}
	}
	for _, name := range s.chains {
		j.moveReached(name)
	}
}

// moveReached moves the units of a wanted chain, and of those to which its rules lead, into the next Changes.
func (j *Journal) moveReached(name string) {
	chain := j.Table.Chains[name]
	if j.backlog == nil || chain == nil {
		return
	}
	j.moveUnit(j.backlog.units.OfChain(name))
	for _, rule := range chain.Rules {
		for _, stmt := range rule {
			if v, ok := stmt.(nft.Verdict); ok && v.Chain != "" {
				j.moveReached(v.Chain)
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
