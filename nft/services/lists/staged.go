package lists

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// A slot table is up to 65,521 elements, which the kernel takes a second for. So a long change is staged: some elements
// with each commit. If the size stays, slots that differ are changed in place: each names an endpoint of want before
// and after. Otherwise packets must not find half of the new table: it has a map and a chain of its own, and packets
// find the old one until all of it is written. One commit makes the chain of the list go to the new chain, and a later
// one removes the old chain and its map as a whole. The kernel walks over a map for each new rule that looks something
// up there (60 ms for the four rules of the largest), so that these rules come while the map is empty. Meanwhile
// changes of other Services are committed as always.
type slotTables struct {
	table   layout.ListTable // in which the slots stand that packets find
	tables  [2]tableState
	want    Places // what is being written; zero: nothing
	written int    // of want
	// beside says that want is being written into the table next, and not in place.
	beside bool
	next   layout.ListTable
	// switched says that packets find another table from the next commit on. Until then the old one stays: a packet
	// that is under way may have read the chain's old rules.
	switched bool
	found    int // how long the list is that the kernel has in table, from the start until a table is chosen
}

// A tableState is what the chain of a slot table follows from; its map comes and goes with it.
type tableState struct {
	chain   sharedChain
	leaving bool // the next commit removes it
}

// unused returns a table that is free. At the start it is the one that the kernel has, if that has as many slots.
func (t *slotTables) unused(slots int) layout.ListTable {
	if t.free(t.table) && (t.found == 0 || t.found == slots) {
		return t.table
	}
	return t.table.Other()
}

// free reports whether a table can be made.
func (t *slotTables) free(table layout.ListTable) bool { return t.tables[table] == tableState{} }

// stages reports whether a change of a list is to be staged.
func (w *Writer) stages(h *half, want Places) bool {
	switch {
	case !w.journal.Tracking() || want.slots == nil || h.shown.is(want):
		return false
	case !h.shown.sameTable(want):
		return want.Len() > w.settings.StagedFrom || !h.free(h.unused(want.Len()))
	}
	differing := 0
	for i := 0; i < want.Len() && differing <= w.settings.StagedFrom; i++ {
		if h.shown.At(i) != want.At(i) {
			differing++
		}
	}
	return differing > w.settings.StagedFrom
}

// meanwhile is what packets find before want is written: what is shown, without the endpoints that have left. Where
// nothing is shown yet, endpoints are chosen by chance; so they are where more slots than most name endpoints that have
// left.
func meanwhile(shown, want Places, most int) Places {
	byChance := Places{Endpoints: want.Endpoints, target: want.target}
	if shown.slots == nil || want.Len() == 0 {
		return byChance
	}
	stay := make(map[netip.AddrPort]int, len(want.Endpoints))
	for i, ep := range want.all() {
		stay[ep] = i
	}
	at := make([]int, len(shown.Endpoints)) // by index of shown, that of want; -1: it has left
	for i, ep := range shown.all() {
		at[i] = -1
		if j, stays := stay[ep]; stays {
			at[i] = j
		}
	}
	slots := make([]uint16, len(shown.slots))
	for i, slot := range shown.slots {
		if at[slot] >= 0 {
			slots[i] = uint16(at[slot])
		} else if slots[i] = uint16(i % len(want.Endpoints)); most > 0 {
			most--
		} else {
			return byChance
		}
	}
	return Places{Endpoints: want.Endpoints, slots: slots, hash: shown.hash, target: want.target}
}

// Advance writes and removes up to n elements of slot tables whose change is staged: of one namespace after the other,
// however many tables each has. It adds to work what it has done for each namespace.
func (w *Writer) Advance(n int, work *change.Tally) {
	for range len(w.staged) {
		if n <= 0 {
			break
		}
		s, before, walks := w.staged[0], n, w.journal.Work().Walks
		waits := func(other *Shared) bool { return other.id.Namespace == s.id.Namespace }
		w.staged = append(w.staged[1:], s)
		slices.SortStableFunc(w.staged, func(a, b *Shared) int { return nft.TrueFirst(!waits(a), !waits(b)) })
		for i := range s.halves {
			h := &s.halves[i]
			if h.want.Len() > 0 {
				n = w.advance(s, h, n)
			}
			if !h.switched {
				n = w.removeOld(s, h, n)
			}
		}
		// Not by Count: the kernel removes and adds a slot that is replaced, and the journal counts it once.
		work.Add(s.id.Namespace, change.Work{Elements: before - n, Walks: w.journal.Work().Walks - walks})
	}
}

// advance writes up to n elements of a slot table. What is replaced is removed and added. It returns what is left of n.
func (w *Writer) advance(s *Shared, h *half, n int) int {
	table, inPlace := h.table, h.shown.sameTable(h.want)
	if !inPlace {
		if !h.beside {
			if h.next = h.unused(h.want.Len()); !h.free(h.next) {
				return n
			}
			h.beside = true
			w.makeTable(s, h, h.next, h.want)
		}
		table = h.next
	}
	w.differing = w.differing[:0]
	for ; h.written < h.want.Len() && n > 1; h.written++ {
		i := h.written
		if inPlace {
			if h.shown.slots[i] == h.want.slots[i] {
				continue
			}
			h.shown.slots[i] = h.want.slots[i]
			n--
		}
		n--
		w.differing = append(w.differing, i)
	}
	w.put(s.slotsMap(h, table), layout.ListKey(s.Number, h.local, table), s.comment, h.want)
	if h.written < h.want.Len() {
		return n
	}
	h.switched = h.switched || !inPlace
	h.table, h.shown = table, h.want
	h.want, h.written, h.beside = Places{}, 0, false
	w.choose(s, h)
	return n
}

// removeOld removes what no packet finds any more: tables until n is used up, and the list without slots.
func (w *Writer) removeOld(s *Shared, h *half, n int) int {
	for i := range h.tables {
		table, t := layout.ListTable(i), &h.tables[i]
		if n <= 0 || t.chain.capacity == 0 || h.shown.slots != nil && table == h.table || h.beside && table == h.next {
			continue
		}
		before := w.journal.Work().Elements
		w.putChain(&t.chain, sharedChain{})
		w.journal.RemoveSet(s.slotsMap(h, table))
		t.leaving = w.journal.Tracking()
		n -= w.journal.Work().Elements - before
	}
	if h.shown.slots != nil && h.list.Len() > 0 {
		n -= h.list.Len()
		w.setList(s, h, Places{})
	}
	return n
}

// makeTable makes the chain and the empty map of a slot table.
func (w *Writer) makeTable(s *Shared, h *half, table layout.ListTable, slots Places) {
	w.putMap(s.slotsMap(h, table), s.id.Protocol)
	w.putChain(&h.tables[table].chain, sharedChain{number: s.Number, local: h.local, protocol: s.id.Protocol,
		capacity: slots.Len(), hash: slots.hash, table: table})
}

func (s *Shared) slotsMap(h *half, table layout.ListTable) string {
	return layout.SlotsMap(s.Number, h.local, table, s.id.Protocol)
}

// unfinished reports whether something of the lists is to be written or removed.
func (s *Shared) unfinished() bool {
	return slices.ContainsFunc(s.halves[:], func(h half) bool {
		if h.shown.slots != nil {
			h.tables[h.table] = tableState{}
		}
		return h.want.Len() > 0 || h.switched || h.tables != [2]tableState{} || h.shown.slots != nil && h.list.Len() > 0
	})
}

// Unfinished reports whether the next call of Advance has something to do.
func (w *Writer) Unfinished() bool { return len(w.staged) > 0 }

// Committed says that the kernel has what the last calls of Advance have done.
func (w *Writer) Committed() {
	w.staged = slices.DeleteFunc(w.staged, func(s *Shared) bool {
		for i := range s.halves {
			h := &s.halves[i]
			h.switched = false
			for t := range h.tables {
				h.tables[t].leaving = false
			}
		}
		if s.unfinished() {
			return false
		}
		if s.removed {
			w.settings.Free(s.Number)
		}
		return true
	})
}
