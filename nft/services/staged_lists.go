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

// A stagedPort is a Service port with something left to write or to remove, or a list that has been given up.
type stagedPort struct {
	namespace string
	port      *portState
	cleared   *sharedList
}

// list is the list in question; nil if the port has given it up since.
func (s *stagedPort) list() *sharedList {
	if s.port != nil {
		return s.port.list
	}
	return s.cleared
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

// stage begins to write a list to its other table.
func (fr *familyRules) stage(port *portState, h *sharedHalf, want places) {
	if !h.staged.want.is(want) {
		h.staged.want, h.staged.written = want, 0
	}
	fr.queueStaged(port)
}

// queueStaged makes advance look at a Service port.
func (fr *familyRules) queueStaged(port *portState) {
	if !slices.ContainsFunc(fr.staged, func(s stagedPort) bool { return s.port == port }) {
		fr.staged = append(fr.staged, stagedPort{namespace: port.current.ID.Namespace, port: port})
	}
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
		s, before := fr.staged[0], n
		fr.staged = fr.staged[1:]
		l := s.list()
		if l != nil {
			for i := range l.halves {
				n = fr.advanceHalf(l, i == 1, s.port, n)
			}
		}
		work[s.namespace] += before - n
		switch {
		case l != nil && fr.unfinished(l):
			fr.staged = append(fr.staged, s)
		case s.cleared != nil:
			fr.freeList(l)
		}
	}
}

// advanceHalf is advance for one list. port is nil if the list has been given up.
func (fr *familyRules) advanceHalf(l *sharedList, local bool, port *portState, n int) int {
	h, set := l.half(local), layout.ListsMap(l.number, l.protocol)
	if s := &h.staged; s.want.len() > 0 {
		other, each := h.table.Other(), 1
		if s.written < s.held[other] { // what is replaced is removed and added
			each = 2
		}
		to := min(s.want.len(), s.written+n/each)
		fr.lists.writeFrom(set, layout.ListKey(l.number, local, other), port.comment, s.want, s.written, to)
		n -= each * (to - s.written)
		s.written, s.held[other] = to, max(s.held[other], to)
		if to < s.want.len() {
			return n
		}
		h.table, h.shown, s.want, s.written = other, s.want, places{}, 0
		s.switched = true
		fr.putChoice(port, local)
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
	if port != nil {
		fr.putChoice(port, local)
	}
	return n
}

// unfinished reports whether something of a list is to be written or removed.
func (fr *familyRules) unfinished(l *sharedList) bool {
	for i := range l.halves {
		h := &l.halves[i]
		if h.staged.want.len() > 0 || h.staged.held[h.table] > h.shown.len() || h.staged.held[h.table.Other()] > 0 {
			return true
		}
	}
	return false
}

// committedStaged says that the kernel has what the last calls of advance have done.
func (fr *familyRules) committedStaged() {
	for _, s := range fr.staged {
		if l := s.list(); l != nil {
			for i := range l.halves {
				l.halves[i].staged.switched = false
			}
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
