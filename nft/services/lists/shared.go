package lists

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Shared holds the endpoint lists of a Service port with many frontends once, under a
// number, where other Service ports have them under each frontend. What a Service costs is so
// in proportion to its frontends and its endpoints, and not to their product: 2,000 external IPs
// and 500 endpoints, 49 KB of objects, were 1,002,508 elements.
//
// Its chains hold the number, so they belong to the port. For each element that comes into a map the
// kernel goes through all rules that look something up there, and walks over the map for each such
// rule that comes: 2,000 Service ports with shared lists of ten endpoints took 5 s, where direct lists
// for their five frontends each are 100,000 elements, 0.2 s. So lists are shared only where the
// product is large, and each Service port has a map for its own.
type Shared struct {
	Number  uint32 // stands in the names of its chains
	id      tracker.PortID
	comment string
	hash    layout.Hash
	halves  [2]half // cluster-wide and local
	removed bool    // no port uses it: what is left of its slot tables is being removed
}

// A half is one of the two lists.
type half struct {
	local  bool
	shown  Places           // what packets find
	table  layout.ListTable // where it stands
	chain  sharedChain      // what the chain follows from
	staged staged
}

// NewShared returns the lists of a Service port that has none: those that are still being removed, if it had some
// before.
func (w *Writer) NewShared(id tracker.PortID) *Shared {
	number := w.settings.Number("list " + id.String())
	i := slices.IndexFunc(w.staged, func(s *Shared) bool { return s.Number == number })
	if i < 0 {
		return &Shared{Number: number, id: id, halves: [2]half{1: {local: true}}}
	}
	s := w.staged[i]
	s.removed = false
	return s
}

// AdoptShared returns the shared lists that a Service port has in a table of the kernel, with their endpoints by index;
// nil if it has none.
func (w *Writer) AdoptShared(id tracker.PortID, table readback.Table) (s *Shared, cluster, local []netip.AddrPort) {
	s = w.NewShared(id)
	cluster, s.halves[0].table = table.SharedList(s.Number, false)
	local, s.halves[1].table = table.SharedList(s.Number, true)
	if len(cluster)+len(local) == 0 {
		w.RemoveShared(s)
		return nil, nil, nil
	}
	return s, cluster, local
}

// SetShared makes the shared lists of a Service port have these places. comment is that of the elements, and hash
// chooses among places that are slots.
func (w *Writer) SetShared(s *Shared, comment string, hash layout.Hash, cluster, local Places) {
	s.comment, s.hash = comment, hash
	w.journal.PutSet(&nft.Set{
		Name: layout.ListsMap(s.Number, s.id.Protocol), Rank: rank, Key: []nft.Field{nft.FieldIndex, nft.FieldIndex},
		Data: []nft.Field{nft.FieldAddr, nft.FieldPort}, Protocol: uint8(s.id.Protocol), Counters: w.settings.Counters,
	})
	w.setHalf(s, &s.halves[0], cluster)
	w.setHalf(s, &s.halves[1], local)
}

// RemoveShared removes shared lists that no Service port uses any more. Advance removes long slot tables: until then,
// the number is in use.
func (w *Writer) RemoveShared(s *Shared) {
	w.setHalf(s, &s.halves[0], Places{})
	w.setHalf(s, &s.halves[1], Places{})
	if s.removed = slices.Contains(w.staged, s); !s.removed {
		w.free(s)
	}
}

// setHalf makes one of the lists of a Service port the wanted one.
func (w *Writer) setHalf(s *Shared, h *half, want Places) {
	st := &h.staged
	switch {
	case !w.stages(h, want):
		st.want = Places{}
	case want.Len() == 0: // no chain leads to what is left, which Advance removes
		h.shown, st.want = Places{}, Places{}
	default:
		if !st.want.is(want) {
			st.want, st.written = want, 0
		}
		want = meanwhile(h.shown, want, 8*w.settings.StagedFrom) // a commit of so many slots takes the kernel some 40 ms
		if h.shown.slots != nil && want.slots == nil {
			h.shown.slots = h.shown.slots[:want.Len()] // Advance removes what stands behind
		}
	}
	w.Write(layout.ListsMap(s.Number, s.id.Protocol), layout.ListKey(s.Number, h.local, h.table), s.comment, h.shown, want)
	if st.held[h.table] <= h.shown.Len() {
		st.held[h.table] = 0
	}
	h.shown, st.held[h.table] = want, max(st.held[h.table], want.Len())
	if s.unfinished() && !slices.Contains(w.staged, s) {
		w.staged = append(w.staged, s)
	}
	w.choose(s, h)
}

// choose makes the chain of one of the lists choose from what is shown.
func (w *Writer) choose(s *Shared, h *half) {
	want := sharedChain{number: s.Number, local: h.local, protocol: s.id.Protocol, table: h.table,
		capacity: h.shown.Capacity()}
	if h.shown.slots != nil {
		want.hash = s.hash
	}
	if h.staged.held[h.table] > h.shown.Len() { // what stands behind the list must not be chosen
		want.capacity = h.shown.Len()
	}
	w.putChain(&h.chain, want)
}

// free frees the number of a list that is empty, and removes its map with the last list in it.
func (w *Writer) free(s *Shared) {
	w.settings.Free(s.Number)
	w.removeEmpty(layout.ListsMap(s.Number, s.id.Protocol))
}

// A sharedChain is what a chain that chooses from a shared or joint list follows from; the zero value is no chain.
type sharedChain struct {
	number   uint32
	local    bool
	protocol tracker.Protocol
	capacity int
	hash     layout.Hash
	table    layout.ListTable
	joint    bool
}

// putChain makes the chain of a list choose as wanted.
func (w *Writer) putChain(have *sharedChain, want sharedChain) {
	if want.capacity == 0 {
		want = sharedChain{}
	}
	switch want {
	case *have:
	case sharedChain{}:
		w.journal.RemoveChain(layout.ListChain(have.number, have.local))
	default:
		w.journal.PutChain(want.declare())
	}
	*have = want
}

// declare declares the chain. It draws as Balance.Chains describes, but within one chain, and ends with the first
// endpoint, which any list has: nothing may go on untranslated.
func (c sharedChain) declare() *nft.Chain {
	draw := func(modulus int, hash layout.Hash) nft.Rule {
		dnat := nft.DNATFrom{Key: []nft.Part{nft.Constant(layout.ListTableNumber(c.number, c.local, c.table)),
			indexBelow(modulus, hash)}, Map: layout.ListsMap(c.number, c.protocol), Protocol: uint8(c.protocol)}
		if c.joint {
			dnat.Map, dnat.Ports = layout.AddressesMap(c.number), layout.PortsMap(c.number, c.protocol)
			dnat.PortKey = []nft.Part{nft.Constant(layout.JointPortNumber(c.number)), nft.Port}
		}
		return nft.Rule{dnat}
	}
	chain := &nft.Chain{Name: layout.ListChain(c.number, c.local)}
	among, some := Balance{Capacity: c.capacity}, draw(c.capacity, c.hash)
	switch {
	case c.hash != layout.NoHash:
		chain.Rules = []nft.Rule{some, some}
	case c.capacity > exactLengths:
		chain.Rules = append(slices.Repeat([]nft.Rule{some}, maxDraws), draw(among.lower().Capacity, layout.NoHash))
	case c.capacity > 1:
		for modulus := c.capacity; modulus >= among.shortest(); modulus-- {
			chain.Rules = append(chain.Rules, draw(modulus, layout.NoHash))
		}
	}
	first := draw(1, layout.NoHash)
	chain.Rules = append(chain.Rules, first, first, nft.Rule{nft.Drop})
	return chain
}
