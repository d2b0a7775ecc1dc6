package lists

import (
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// A slot table is up to 65,521 elements, which the kernel takes a second for. So a long change is staged: some elements
// with each commit. If the table changes its size, packets must not find half of the new one: it is written under
// another number, while packets find the old one. One commit makes the chain use the new table, and the commits after
// that remove the old one. If the size stays, slots that differ are changed in place: each names an endpoint of want
// before and after. Meanwhile changes of other Services are committed as always.
type staged struct {
	want    Places // what is being written; zero: nothing
	written int    // of want
	// held is how many elements stand in each table: from index 0 on, whatever they are.
	held [2]int
	// switched says that the chain uses another table from the next commit on. Until then the old one stays: a packet
	// that is under way may have read the chain's old rules.
	switched bool
}

// stages reports whether a change of a list is to be staged.
func (w *Writer) stages(h *half, want Places) bool {
	if !w.journal.Tracking() || h.shown.slots == nil && want.slots == nil || h.shown.is(want) {
		return false
	}
	differing := max(h.shown.Len(), want.Len()) - min(h.shown.Len(), want.Len())
	for i := 0; i < min(h.shown.Len(), want.Len()) && differing <= w.settings.StagedFrom; i++ {
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
	at, stay := make([]int, len(shown.Endpoints)), want.all()
	for i, ep := range shown.all() {
		at[i] = slices.Index(stay, ep)
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
	return Places{Endpoints: want.Endpoints, slots: slots, target: want.target}
}

// Advance writes and removes up to n elements of slot tables whose change is staged. It adds to work what it has done
// for each namespace.
func (w *Writer) Advance(n int, work map[string]int) {
	for range len(w.staged) {
		if n <= 0 {
			break
		}
		s, before := w.staged[0], n
		w.staged = w.staged[1:]
		for i := range s.halves {
			n = w.advanceHalf(s, &s.halves[i], n)
		}
		work[s.id.Namespace] += before - n
		switch {
		case s.unfinished():
			w.staged = append(w.staged, s)
		case s.removed:
			w.free(s)
		}
	}
}

// advanceHalf is Advance for one of the two lists.
func (w *Writer) advanceHalf(s *Shared, h *half, n int) int {
	set, st := layout.ListsMap(s.Number, s.id.Protocol), &h.staged
	if st.want.Len() > 0 {
		table, inPlace := h.table.Other(), len(st.want.slots) == len(h.shown.slots)
		if inPlace {
			table = h.table
		}
		w.differing = w.differing[:0]
		for ; st.written < st.want.Len() && n > 1; st.written++ { // what is replaced is removed and added
			i := st.written
			if inPlace {
				if h.shown.slots[i] == st.want.slots[i] {
					continue
				}
				h.shown.slots[i] = st.want.slots[i]
			}
			if n--; i < st.held[table] {
				n--
			}
			w.differing = append(w.differing, i)
		}
		w.put(set, layout.ListKey(s.Number, h.local, table), s.comment, st.want)
		st.held[table] = max(st.held[table], st.written)
		if st.written < st.want.Len() {
			return n
		}
		st.switched = st.switched || table != h.table
		h.table, h.shown, st.want, st.written = table, st.want, Places{}, 0
		w.choose(s, h)
	}
	if h.staged.switched {
		return n
	}
	for t := range h.staged.held {
		table, keep := layout.ListTable(t), 0
		if table == h.table {
			keep = h.shown.Len()
		}
		for held := &h.staged.held[t]; *held > keep && n > 0; n-- {
			*held--
			w.journal.Remove(set, nft.IndexedKey(layout.ListKey(s.Number, h.local, table), *held))
		}
	}
	w.choose(s, h)
	return n
}

// unfinished reports whether something of the lists is to be written or removed.
func (s *Shared) unfinished() bool {
	return slices.ContainsFunc(s.halves[:], func(h half) bool {
		return h.staged.want.Len() > 0 || h.staged.held[h.table] > h.shown.Len() || h.staged.held[h.table.Other()] > 0
	})
}

// Unfinished reports whether the next call of Advance has something to do.
func (w *Writer) Unfinished() bool { return len(w.staged) > 0 }

// Committed says that the kernel has what the last calls of Advance have done.
func (w *Writer) Committed() {
	for _, s := range w.staged {
		for i := range s.halves {
			s.halves[i].staged.switched = false
		}
	}
}
