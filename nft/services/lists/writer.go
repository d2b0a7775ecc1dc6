package lists

import (
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
)

// Settings are what the lists of a table follow from besides the Service ports.
type Settings struct {
	// Counters makes the elements of shared and joint lists count the connections that they were chosen for.
	Counters bool
	// StagedFrom is from how many differing elements on a change of a slot table is staged.
	StagedFrom int
	// Number gives a number to an identity: always the same one, and no other identity has it until Free.
	Number func(identity string) uint32
	// Free gives a number back.
	Free func(number uint32)
}

// A Writer writes the lists of a table. Make it with NewWriter.
type Writer struct {
	journal   *change.Journal
	settings  Settings
	staged    []*Shared // with something left to write or to remove
	text      []byte    // reused, as differing is
	differing []int
}

// NewWriter returns the writer of a table without lists.
func NewWriter(j *change.Journal, s Settings) *Writer { return &Writer{journal: j, settings: s} }

// rank puts the maps of shared and joint lists after all sets that others look for. Those of ports, which several lists
// share, come before the others: the kernel goes through the sets of a table to find one.
const (
	portsRank = 1500
	rank      = 2000
)

// Write writes the elements in which two lists under one key differ, index by index. The elements get the comment.
func (w *Writer) Write(set, key, comment string, have, want Places) {
	if have.is(want) {
		return
	}
	w.differing = w.differing[:0]
	for i := range want.Len() {
		if i >= have.Len() || have.At(i) != want.At(i) {
			w.differing = append(w.differing, i)
		}
	}
	w.put(set, key, comment, want)
	for i := want.Len(); i < have.Len(); i++ {
		w.journal.Remove(set, nft.IndexedKey(key, i))
	}
}

// put writes the elements of a list whose indexes stand in w.differing. Keys and data are parts of one string: one
// allocation instead of two for each endpoint.
func (w *Writer) put(set, key, comment string, list Places) {
	w.text = w.text[:0]
	for _, i := range w.differing {
		ep := list.At(i)
		w.text = nft.AppendNumber(append(w.text, key...), uint32(i))
		if w.text = nft.AppendAddr(w.text, ep.Addr()); !list.joint {
			w.text = nft.AppendPort(w.text, ep.Port())
		}
	}
	text, indexed, port := string(w.text), len(key)+4, 4
	if list.joint {
		port = 0
	}
	for _, i := range w.differing {
		end := indexed + list.At(i).Addr().BitLen()/8 + port // of its own family: the kernel refuses another
		w.journal.Put(set, text[:indexed], nft.Element{Data: text[indexed:end], Comment: comment})
		text = text[end:]
	}
}

// removeEmpty removes a map of shared or joint lists with the last list in it.
func (w *Writer) removeEmpty(name string) {
	if set := w.journal.Table.Sets[name]; set != nil && len(set.Map) == 0 {
		w.journal.RemoveSet(name)
	}
}
