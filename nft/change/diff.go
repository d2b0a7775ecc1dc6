package change

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
)

// Diff returns the operations that turn have into want. It is total and pure. Diff(x, x) is empty.
// Applying Diff(a, b) to a gives b, except for the number in the marker. Both may be parts of
// tables, as long as they are the same part.
//
// Diff never compares what packets put into dynamic sets; those elements go only with their set.
//
// Within one table the operations stand in the order in which the kernel accepts them. Definitions
// of sets and chains come before the rules that name them. Rules come before the elements that lead
// to their chains, so that rules bind their maps while these are empty. Deletions of elements come
// before additions, since a changed element is deleted and added again. What nothing refers to any
// more goes last: the rules of old chains, then the chains, then their sets.
func Diff(have, want nft.Tables) nft.Batch {
	var d differ
	for _, f := range nft.Families {
		d.family = f
		d.tables(have[f], want[f])
	}
	return nft.Batch{Ops: d.ops}
}

// tables turns one table into another; either may be nil.
func (d *differ) tables(have, want *nft.Table) {
	switch {
	case want == nil && have != nil:
		d.add(nft.Op{Verb: nft.Delete, Table: have})
	case want != nil && have == nil:
		d.create(want, nil)
	case want != nil && replaces(have, want):
		d.add(nft.Op{Verb: nft.Delete, Table: have})
		d.create(want, have)
	case want != nil:
		d.table(have, want)
	}
}

// replaces reports whether a table has to be made anew, because something differs that cannot
// change in place: it carries no marker of ours, an owner is there that should not be or the
// reverse, or the definition of a set or of a hook differs. So has a table without its owner that lacks a base chain.
// The marker cannot change in place either, but its number is no reason: see "Tables that are made anew" in the package
// documentation.
func replaces(have, want *nft.Table) bool {
	if !have.Marked(want) || have.Owned != want.Owned {
		return true
	}
	for name, w := range want.Sets {
		if h, ok := have.Sets[name]; ok && !h.Set.Equal(w.Set) {
			return true
		}
	}
	for name, w := range want.Chains {
		h, ok := have.Chains[name]
		switch {
		case ok && !h.Hook.Equal(w.Hook):
			return true
		case !ok && w.Hook != nil && have.Orphaned && want.Owned:
			return true // the kernel takes no new base chain in the batch that gives the table an owner (EINVAL, since 6.9)
		}
	}
	return false
}

type differ struct {
	family nft.Family
	ops    []nft.Op
}

func (d *differ) add(op nft.Op) {
	op.Family = d.family
	d.ops = append(d.ops, op)
}

// create makes a table with all that it holds. It carries over the elements of old's dynamic maps
// of the same shape.
func (d *differ) create(want, old *nft.Table) {
	d.add(nft.Op{Verb: nft.Add, Table: want})
	empty := nft.NewTable(want.Family)
	d.table(empty, want)
	if old == nil {
		return
	}
	for _, name := range want.SetNames() {
		set := want.Sets[name].Set
		if before, ok := old.Sets[name]; ok && set.Dynamic && before.Set.Equal(set) {
			d.elements(nft.Add, set, before.Map)
		}
	}
}

func (d *differ) table(have, want *nft.Table) {
	d.around(have, want, func() { d.changedElements(have, want) })
}

// around is table with another way to find the elements in which the tables differ.
func (d *differ) around(have, want *nft.Table, elements func()) {
	if have.Orphaned && want.Owned { // the committing socket becomes the owner
		d.add(nft.Op{Verb: nft.Add, Table: want})
	}
	d.sets(nft.Add, want, have)
	changed := d.newChains(have, want)
	for _, chain := range changed {
		if _, ok := have.Chains[chain.Name]; ok {
			d.add(nft.Op{Verb: nft.Flush, Chain: chain})
		}
	}
	for _, chain := range changed {
		if len(chain.Rules) > 0 {
			d.add(nft.Op{Verb: nft.Add, Chain: chain, Rules: chain.Rules})
		}
	}
	elements()
	d.oldChains(have, want)
	d.sets(nft.Delete, have, want)
}

// sets adds an operation for each set that a table has and the other one has not.
func (d *differ) sets(verb nft.Verb, of, other *nft.Table) {
	for _, name := range of.SetNames() {
		if _, ok := other.Sets[name]; !ok {
			d.add(nft.Op{Verb: verb, Set: of.Sets[name].Set})
		}
	}
}

// newChains adds the missing chains. It returns all chains whose rules must be written, in order.
func (d *differ) newChains(have, want *nft.Table) (changed []*nft.Chain) {
	for _, chain := range slices.SortedFunc(maps.Values(want.Chains), nft.CompareChains) {
		h, ok := have.Chains[chain.Name]
		if !ok {
			d.add(nft.Op{Verb: nft.Add, Chain: chain})
		}
		if !ok || !h.EqualRules(d.family, chain) {
			changed = append(changed, chain)
		}
	}
	return changed
}

func (d *differ) changedElements(have, want *nft.Table) {
	for _, name := range want.SetNames() {
		w, h := want.Sets[name], have.Sets[name]
		if w.Set.Dynamic {
			continue
		}
		if h == nil {
			d.elements(nft.Add, w.Set, w.Map)
			continue
		}
		d.elements(nft.Delete, w.Set, missing(h.Map, w.Map))
		d.elements(nft.Add, w.Set, missing(w.Map, h.Map))
	}
}

// missing returns the elements of a that b does not hold in the same way.
func missing(a, b map[string]nft.Element) map[string]nft.Element {
	var m map[string]nft.Element
	for key, element := range a {
		if other, ok := b[key]; ok && other.Equal(element) {
			continue
		}
		if m == nil {
			m = make(map[string]nft.Element)
		}
		m[key] = element
	}
	return m
}

// elements adds one operation for all elements of m, in the order of their keys.
func (d *differ) elements(verb nft.Verb, set *nft.Set, m map[string]nft.Element) {
	if len(m) == 0 {
		return
	}
	found := make([]nft.KeyedElement, 0, len(m))
	order := make([]keyOrder, 0, len(m))
	for key, element := range m {
		order = append(order, orderOf(key, len(found)))
		found = append(found, nft.KeyedElement{Key: key, Element: element})
	}
	slices.SortFunc(order, func(a, b keyOrder) int {
		if c := a.compare(b); c != 0 {
			return c
		}
		return strings.Compare(found[a.at].Key, found[b.at].Key)
	})
	list := make([]nft.KeyedElement, len(found))
	for i := range order {
		list[i] = found[order[i].at]
	}
	d.add(nft.Op{Verb: verb, Set: set, Elements: list})
}

// A keyOrder is the beginning of an element's key as numbers, and where the element stands. A sort
// of many elements moves these instead of whole elements, and nearly all comparisons end with the
// numbers, in memory that is at hand: a third of the time.
type keyOrder struct {
	first, second uint64
	at            int
}

func orderOf(key string, at int) keyOrder {
	var begin [16]byte
	copy(begin[:], key)
	return keyOrder{binary.BigEndian.Uint64(begin[:]), binary.BigEndian.Uint64(begin[8:]), at}
}

func (k keyOrder) compare(other keyOrder) int {
	if k.first != other.first {
		return cmp.Compare(k.first, other.first)
	}
	return cmp.Compare(k.second, other.second)
}

// list adds one operation for the elements of a list.
func (d *differ) list(verb nft.Verb, set *nft.Set, list []nft.KeyedElement) {
	if len(list) > 0 {
		slices.SortFunc(list, func(a, b nft.KeyedElement) int { return strings.Compare(a.Key, b.Key) })
		d.add(nft.Op{Verb: verb, Set: set, Elements: list})
	}
}

func (d *differ) oldChains(have, want *nft.Table) {
	var old []*nft.Chain
	for name, chain := range have.Chains {
		if _, ok := want.Chains[name]; !ok {
			old = append(old, chain)
		}
	}
	slices.SortFunc(old, nft.CompareChains)
	for _, chain := range old {
		if len(chain.Rules) > 0 {
			d.add(nft.Op{Verb: nft.Flush, Chain: chain})
		}
	}
	for _, chain := range old {
		d.add(nft.Op{Verb: nft.Delete, Chain: chain})
	}
}
