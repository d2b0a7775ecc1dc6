package services

import (
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A slot table that changes its size is up to 65,521 elements, which the kernel takes a second for, and packets must
// not find half of it. So a long change is staged: the new table is written under another number, some elements with
// each commit, while packets find the old one. One commit makes the chain use the new table, and the commits after that
// remove the old one. Meanwhile changes of other Services are committed as always.
type stagedList struct {
	want    places // what is being written to the other table; zero: nothing
	written int    // of want
	// held is how many elements stand in each table: from index 0 on, whatever they are.
	held [2]int
	// switched says that the chain uses another table from the next commit on. Until then the old one stays: a packet
	// that is under way may have read the chain's old rules.
	switched bool
}

// stagedFrom is from how many differing elements on a change of a slot table is staged. Tests lower it.
var stagedFrom = tracker.CommitElements

// stages reports whether a change of a list is to be staged.
func (fr *familyRules) stages(h *sharedHalf, want places) bool {
	if !fr.Tracking() || h.shown.slots == nil && want.slots == nil || h.shown.is(want) {
		return false
	}
	differing := max(h.shown.len(), want.len()) - min(h.shown.len(), want.len())
	for i := 0; i < min(h.shown.len(), want.len()) && differing <= stagedFrom; i++ {
		if h.shown.at(i) != want.at(i) {
			differing++
		}
	}
	return differing > stagedFrom
}

// meanwhile is what packets find until want stands in the other table: what is shown, without the endpoints that have
// left. Where nothing is shown yet, endpoints are chosen by chance.
func meanwhile(shown, want places) places {
	if shown.slots == nil || want.len() == 0 {
		return places{endpoints: want.endpoints, port: want.port}
	}
	at, stay := make([]int, len(shown.endpoints)), want.all()
	for i, ep := range shown.all() {
		at[i] = slices.Index(stay, ep)
	}
	slots := make([]uint16, len(shown.slots))
	for i, slot := range shown.slots {
		if slots[i] = uint16(i % len(want.endpoints)); at[slot] >= 0 {
			slots[i] = uint16(at[slot])
		}
	}
	return places{endpoints: want.endpoints, slots: slots, port: want.port}
}

// advance writes and removes up to n elements of staged lists. It adds to work what it has done for each namespace.
func (fr *familyRules) advance(n int, work map[string]int) {
	for range len(fr.staged) {
		if n <= 0 {
			break
		}
		l, before := fr.staged[0], n
		fr.staged = fr.staged[1:]
		for i := range l.halves {
			n = fr.advanceHalf(l, i == 1, n)
		}
		work[l.id.Namespace] += before - n
		switch {
		case l.unfinished():
			fr.staged = append(fr.staged, l)
		case l.givenUp:
			fr.freeList(l)
		}
	}
}

// advanceHalf is advance for one of the two lists.
func (fr *familyRules) advanceHalf(l *sharedList, local bool, n int) int {
	h, set := l.half(local), layout.ListsMap(l.number, l.id.Protocol)
	if s := &h.staged; s.want.len() > 0 {
		other, each := h.table.Other(), 1
		if s.written < s.held[other] { // what is replaced is removed and added
			each = 2
		}
		to := min(s.want.len(), s.written+n/each)
		fr.lists.writeFrom(set, layout.ListKey(l.number, local, other), l.comment, s.want, s.written, to)
		n -= each * (to - s.written)
		s.written, s.held[other] = to, max(s.held[other], to)
		if to < s.want.len() {
			return n
		}
		h.table, h.shown, s.want, s.written = other, s.want, places{}, 0
		s.switched = true
		fr.putChoice(l, local)
	}
	if h.staged.switched {
		return n
	}
	for t := range h.staged.held {
		table, keep := layout.ListTable(t), 0
		if table == h.table {
			keep = h.shown.len()
		}
		for held := &h.staged.held[t]; *held > keep && n > 0; n-- {
			*held--
			fr.Remove(set, nft.IndexedKey(layout.ListKey(l.number, local, table), *held))
		}
	}
	fr.putChoice(l, local)
	return n
}

// unfinished reports whether something of the list is to be written or removed.
func (l *sharedList) unfinished() bool {
	return slices.ContainsFunc(l.halves[:], func(h sharedHalf) bool {
		return h.staged.want.len() > 0 || h.staged.held[h.table] > h.shown.len() || h.staged.held[h.table.Other()] > 0
	})
}

// committedStaged says that the kernel has what the last calls of advance have done.
func (fr *familyRules) committedStaged() {
	for _, l := range fr.staged {
		for i := range l.halves {
			l.halves[i].staged.switched = false
		}
	}
}

// Unfinished reports whether the next call of Apply has more to do, whatever delta it gets: a long slot table is being
// written or removed.
func (r *Ruleset) Unfinished() bool {
	for _, family := range r.families {
		if len(family.staged) > 0 {
			return true
		}
	}
	return false
}
