package nft

import "slices"

// A draft is a wanted table together with what it held before the changes that have not
// been committed yet. The cost of a change and of its commit is that of the change alone.
type draft struct {
	table *Table
	// tracking is false until the first commit: before it, everything is new.
	tracking bool
	// gone says that somebody deleted the table, so that all of it is to be made again.
	gone bool

	// What touched objects were before they were first touched; nil where nothing was.
	elements map[string]map[string]*Element
	sets     map[string]*Set
	chains   map[string]*Chain
	// spare are empty maps of elements that were used before.
	spare []map[string]*Element
}

func newDraft(table *Table) *draft { return &draft{table: table} }

// reserve makes room in a set for n elements. It does so only before the first commit: what
// comes then comes all at once.
func (d *draft) reserve(set string, n int) {
	held := d.table.Sets[set]
	if d.tracking || len(held.Map) > 0 {
		return
	}
	held.Map = make(map[string]Element, n)
}

// put makes set hold element under key.
func (d *draft) put(set, key string, element Element) {
	held := d.table.Sets[set].Map
	old, ok := held[key]
	if ok && old.Equal(element) {
		return
	}
	d.touch(set, key, old, ok)
	held[key] = element
}

// remove makes set hold nothing under key.
func (d *draft) remove(set, key string) {
	held := d.table.Sets[set].Map
	if old, ok := held[key]; ok {
		d.touch(set, key, old, true)
		delete(held, key)
	}
}

func (d *draft) touch(set, key string, old Element, present bool) {
	if !d.tracking {
		return
	}
	touched := d.touchedIn(set)
	if _, done := touched[key]; done {
		return
	}
	if !present {
		touched[key] = nil
		return
	}
	touched[key] = &old
}

// touchedIn returns what touched elements of a set were; it may be written to.
func (d *draft) touchedIn(set string) map[string]*Element {
	touched := d.elements[set]
	if touched != nil {
		return touched
	}
	if last := len(d.spare) - 1; last >= 0 {
		touched, d.spare = d.spare[last], d.spare[:last]
	} else {
		touched = make(map[string]*Element)
	}
	d.elements[set] = touched
	return touched
}

// putChain makes the table hold chain, removeChain none of that name.
func (d *draft) putChain(chain *Chain) {
	d.touchChain(chain.Name)
	d.table.Chains[chain.Name] = chain
}

func (d *draft) removeChain(name string) {
	d.touchChain(name)
	delete(d.table.Chains, name)
}

func (d *draft) touchChain(name string) {
	if _, done := d.chains[name]; !done && d.tracking {
		d.chains[name] = d.table.Chains[name]
	}
}

// putSet makes the table hold a set of this definition, empty if it is new; removeSet none
// of that name.
func (d *draft) putSet(set *Set) {
	if have, ok := d.table.Sets[set.Name]; ok && have.Set.Equal(set) {
		return
	}
	d.touchSet(set.Name)
	d.table.Sets[set.Name] = &Elements{Set: set, Map: make(map[string]Element)}
}

func (d *draft) removeSet(name string) {
	d.touchSet(name)
	delete(d.table.Sets, name)
}

// touchSet remembers a set with all that it held.
func (d *draft) touchSet(name string) {
	if !d.tracking {
		return
	}
	have, ok := d.table.Sets[name]
	if _, done := d.sets[name]; !done {
		d.sets[name] = nil
		if ok {
			d.sets[name] = have.Set
		}
	}
	if ok {
		for key, element := range have.Map {
			d.touch(name, key, element, true)
		}
	}
}

// touched reports whether anything has changed since the last commit.
func (d *draft) touched() bool { return d.gone || len(d.sets)+len(d.elements)+len(d.chains) > 0 }

// changes adds the operations for what was touched. Elements alone need no order among chains
// and sets, so nothing is made for Diff to compare.
func (d *draft) changes(to *differ) {
	if d.gone || len(d.sets)+len(d.chains) > 0 {
		to.tables(d.pending())
		return
	}
	for _, name := range d.touchedSets() {
		d.elementChanges(to, name)
	}
}

// touchedSets lists the sets of touched elements, in order.
func (d *draft) touchedSets() []string {
	names := make([]string, 0, 4)
	for name := range d.elements {
		names = append(names, name)
	}
	if len(names) > 1 {
		slices.SortFunc(names, inSetOrder)
	}
	return names
}

// elementChanges adds the operations for the touched elements of a set.
func (d *draft) elementChanges(to *differ, name string) {
	set := d.table.Sets[name]
	if set.Set.Dynamic {
		return
	}
	var gone, come []KeyedElement
	for key, before := range d.elements[name] {
		now, present := set.Map[key]
		if before != nil && present && before.Equal(now) {
			continue
		}
		if before != nil {
			gone = append(gone, KeyedElement{key, *before})
		}
		if present {
			come = append(come, KeyedElement{key, now})
		}
	}
	to.list(Delete, set.Set, gone)
	to.list(Add, set.Set, come)
}

// pending returns the touched part of the table as it was and as it is wanted: what Diff
// needs to see, and no more. A table that is gone was nothing.
func (d *draft) pending() (have, want *Table) {
	if d.gone {
		return nil, d.table
	}
	have, want = NewTable(d.table.Family), NewTable(d.table.Family)
	for name := range d.sets {
		d.pendingSet(name, have, want)
	}
	for name := range d.elements {
		d.pendingSet(name, have, want)
		d.pendingElements(name, have, want)
	}
	for name, old := range d.chains {
		if old != nil {
			have.Chains[name] = old
		}
		if chain, ok := d.table.Chains[name]; ok {
			want.Chains[name] = chain
		}
	}
	return have, want
}

func (d *draft) pendingSet(name string, have, want *Table) {
	now, present := d.table.Sets[name]
	before, touched := d.sets[name]
	if !touched {
		before = now.Set
	}
	if before != nil && have.Sets[name] == nil {
		have.Sets[name] = &Elements{Set: before, Map: make(map[string]Element)}
	}
	if present && want.Sets[name] == nil {
		want.Sets[name] = &Elements{Set: now.Set, Map: make(map[string]Element)}
	}
}

func (d *draft) pendingElements(name string, have, want *Table) {
	for key, old := range d.elements[name] {
		if old != nil {
			have.Sets[name].Map[key] = *old
		}
		if now, ok := d.table.Sets[name]; ok {
			if element, ok := now.Map[key]; ok {
				want.Sets[name].Map[key] = element
			}
		}
	}
}

// committed forgets what was before: the kernel holds the table as it is wanted now.
func (d *draft) committed() {
	if d.tracking && !d.touched() {
		return
	}
	if !d.tracking {
		d.elements, d.sets, d.chains = make(map[string]map[string]*Element), make(map[string]*Set), make(map[string]*Chain)
	}
	d.tracking, d.gone = true, false
	for _, touched := range d.elements {
		d.save(touched)
	}
	clear(d.elements)
	clear(d.sets)
	clear(d.chains)
}

// How many maps are kept for further use, and up to which length.
const (
	maxSpare    = 8
	maxSpareLen = 64
)

// save keeps a map for further use, if it is small: a cleared one takes as long to go
// through as it was long.
func (d *draft) save(touched map[string]*Element) {
	if len(d.spare) < maxSpare && len(touched) <= maxSpareLen {
		clear(touched)
		d.spare = append(d.spare, touched)
	}
}
