package maglev

import (
	"cmp"
	"slices"
)

// A Budget bounds the slots of all tables together. A table is far larger than the object that asks
// for it: an EndpointSlice of 60 KB with 400 endpoints can stand for 65,521 slots, and it can have many
// ports.
//
// If tables ask for more than there is, groups share what there is, so that one of them does
// not take it from the others. Each group has its tables in an order; a table is reckoned with its own slots and those of
// all tables before it in its group, and whoever is reckoned with least comes first. So who is refused follows from what
// is asked for, and not from when it was asked for: all nodes that know the same refuse the same.
//
// A table has a rank, by which Order sorts the tables of a group.
type Budget[K comparable, R any] struct {
	Slots int
	Order func(a, b R) int

	claims  map[K]*claim[K, R]
	groups  map[string]*group[K, R]
	sum     int
	refused int  // claims
	changed bool // since Settle
}

type claim[K comparable, R any] struct {
	table   K
	rank    R
	of      string // its group
	slots   int
	refused bool
}

// A group has its claims, in order if sorted. Claims that are no more stay in the list, with 0 slots, until they
// are half of it.
type group[K comparable, R any] struct {
	claims []*claim[K, R]
	sorted bool
	gone   int // claims with 0 slots
}

// Request says how many slots a table wants, and of which group and rank it is; with 0 slots there is none. The group of
// a table does not change. Settle decides. news says that it wanted another number before.
func (b *Budget[K, R]) Request(table K, of string, rank R, slots int) (news bool) {
	c := b.claims[table]
	switch {
	case c == nil && slots == 0:
		return false
	case c == nil:
		c = &claim[K, R]{table: table, rank: rank, of: of}
		g := b.group(of)
		g.claims, g.sorted = append(g.claims, c), false
		b.claims[table] = c
	case slots == 0:
		b.drop(c)
		return true
	case b.Order(c.rank, rank) != 0:
		b.groups[of].sorted, b.changed = false, b.changed || b.refused > 0
		fallthrough
	default:
		c.rank = rank
	}
	if c.slots == slots {
		return false
	}
	b.sum += slots - c.slots
	c.slots = slots
	b.changed = b.changed || b.sum > b.Slots || b.refused > 0
	return true
}

func (b *Budget[K, R]) drop(c *claim[K, R]) {
	delete(b.claims, c.table)
	b.sum -= c.slots
	c.slots = 0
	g := b.groups[c.of]
	if g.gone++; g.gone == len(g.claims) {
		delete(b.groups, c.of)
	} else if g.gone > len(g.claims)/2 {
		g.claims = slices.DeleteFunc(g.claims, func(c *claim[K, R]) bool { return c.slots == 0 })
		g.gone = 0
	}
	if b.changed = b.changed || b.refused > 0; c.refused {
		b.refused--
	}
}

func (b *Budget[K, R]) group(name string) *group[K, R] {
	if b.claims == nil {
		b.claims, b.groups = make(map[K]*claim[K, R]), make(map[string]*group[K, R])
	}
	g := b.groups[name]
	if g == nil {
		g = new(group[K, R])
		b.groups[name] = g
	}
	return g
}

// Requested is how many slots a table wants.
func (b *Budget[K, R]) Requested(table K) int {
	if c := b.claims[table]; c != nil {
		return c.slots
	}
	return 0
}

// Refuses reports whether a table goes without its slots, as of the last Settle.
func (b *Budget[K, R]) Refuses(table K) bool {
	return b.refused > 0 && b.claims[table] != nil && b.claims[table].refused
}

// Settle decides who gets slots, and calls changed for each rank of a table for which that has changed. While
// everybody gets what he asks for, Settle does nothing.
func (b *Budget[K, R]) Settle(changed func(rank R, refused bool)) {
	if !b.changed {
		return
	}
	b.changed = false
	type reckoned struct {
		*claim[K, R]
		sum int // of its slots, and of those before it in its group
	}
	var list []reckoned
	for _, g := range b.groups {
		if !g.sorted {
			slices.SortFunc(g.claims, func(c, d *claim[K, R]) int { return b.Order(c.rank, d.rank) })
			g.sorted = true
		}
		sum := 0
		for _, c := range g.claims {
			if sum += c.slots; c.slots == 0 {
				continue
			} else if sum <= b.Slots {
				list = append(list, reckoned{c, sum})
			} else {
				b.refuse(c, true, changed)
			}
		}
	}
	slices.SortFunc(list, func(x, y reckoned) int { return cmp.Or(cmp.Compare(x.sum, y.sum), b.Order(x.rank, y.rank)) })
	left, full := b.Slots, false
	for _, r := range list {
		left -= r.slots
		full = full || left < 0 // whoever comes later asks for more: smaller ones do not slip in
		b.refuse(r.claim, full, changed)
	}
}

func (b *Budget[K, R]) refuse(c *claim[K, R], refused bool, changed func(rank R, refused bool)) {
	if c.refused == refused {
		return
	}
	if c.refused = refused; refused {
		b.refused++
	} else {
		b.refused--
	}
	changed(c.rank, refused)
}
