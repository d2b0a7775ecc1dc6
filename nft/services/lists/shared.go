package lists

import (
	"math"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Shared holds the endpoint lists of a Service port once, under a number, where other Service ports have them under
// each frontend. So a Service costs in proportion to its frontends and its endpoints, and not to their product: 2,000
// external IPs and 500 endpoints, 49 KB of objects, were 1,002,508 elements.
//
// Its chains hold the number, so they belong to the port. For each element that comes into a map the
// kernel goes through all rules that look something up there, and walks over the map for each such
// rule that comes: 2,000 Service ports with shared lists of ten endpoints took 5 s, where direct lists
// for their five frontends each are 100,000 elements, 0.2 s. So lists are shared only where the
// product is large, and each Service port has maps of its own.
type Shared struct {
	Number  uint32 // stands in the names of its chains
	id      tracker.PortID
	comment string
	halves  [2]half // cluster-wide and local
	removed bool    // no port uses it: what is left of its slot tables is being removed
}

// A half is one of the two lists.
type half struct {
	local bool
	shown Places      // what packets find
	chain sharedChain // chooses from what is shown, or goes to the chain of its slot table
	list  Places      // what stands in the map of lists without slots
	slotTables
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
	s.halves[0].found, s.halves[1].found = len(cluster), len(local)
	return s, cluster, local
}

// SetShared makes the shared lists of a Service port have these places. comment is that of the elements.
func (w *Writer) SetShared(s *Shared, comment string, cluster, local Places) {
	s.comment = comment
	w.setHalf(s, &s.halves[0], cluster)
	w.setHalf(s, &s.halves[1], local)
	if s.unfinished() && !slices.Contains(w.staged, s) {
		w.staged = append(w.staged, s)
	}
}

// RemoveShared removes shared lists that no Service port uses any more. Advance removes slot tables: until then, the
// number is in use.
func (w *Writer) RemoveShared(s *Shared) {
	w.SetShared(s, s.comment, Places{}, Places{})
	if s.removed = s.unfinished(); !s.removed {
		w.settings.Free(s.Number)
	}
}

// setHalf makes one of the lists of a Service port the wanted one, at once or in stages.
func (w *Writer) setHalf(s *Shared, h *half, want Places) {
	staged, inPlace := w.stages(h, want), h.shown.sameTable(want)
	if !staged || !h.want.is(want) {
		h.want, h.written, h.beside = Places{}, 0, false
	}
	if staged {
		h.want, inPlace = want, true
		want = meanwhile(h.shown, want, 2*w.settings.StagedFrom) // each slot is an element to remove and one to add
	}
	if !inPlace && !w.journal.Tracking() { // the kernel has nothing of it
		h.shown = Places{}
		w.removeOld(s, h, math.MaxInt)
	}
	switch {
	case want.slots == nil:
		h.switched = h.switched || h.shown.slots != nil
		w.setList(s, h, want)
	case inPlace:
		w.Write(s.slotsMap(h, h.table), layout.ListKey(s.Number, h.local, h.table), s.comment, h.shown, want)
	default:
		h.switched = w.journal.Tracking()
		h.table, h.found = h.unused(want.Len()), 0
		w.makeTable(s, h, h.table, want)
		w.Write(s.slotsMap(h, h.table), layout.ListKey(s.Number, h.local, h.table), s.comment, Places{}, want)
	}
	h.shown = want
	w.choose(s, h)
}

// setList makes the map of lists without slots hold one of them.
func (w *Writer) setList(s *Shared, h *half, want Places) {
	name := layout.ListsMap(s.Number, s.id.Protocol)
	if want.Len() > 0 {
		w.putMap(name, s.id.Protocol)
	}
	w.Write(name, layout.ListKey(s.Number, h.local, 0), s.comment, h.list, want)
	h.list = want
	w.removeEmpty(name)
}

// putMap makes a map of shared lists, unless it is there.
func (w *Writer) putMap(name string, protocol tracker.Protocol) {
	w.journal.PutSet(&nft.Set{
		Name: name, Rank: rank, Key: []nft.Field{nft.FieldIndex, nft.FieldIndex},
		Data: []nft.Field{nft.FieldAddr, nft.FieldPort}, Protocol: uint8(protocol), Counters: w.settings.Counters,
	})
}

// choose makes the chain of one of the lists choose from what is shown.
func (w *Writer) choose(s *Shared, h *half) {
	want := sharedChain{number: s.Number, local: h.local, protocol: s.id.Protocol, capacity: h.shown.Capacity()}
	if h.shown.slots != nil {
		want.table, want.goes = h.table, true
	}
	w.putChain(&h.chain, want)
}

// A sharedChain is what a chain that chooses from a shared or joint list follows from; the zero value is no chain.
type sharedChain struct {
	number   uint32
	local    bool
	protocol tracker.Protocol
	capacity int
	hash     layout.Hash // chooses among the slots of a table
	table    layout.ListTable
	goes     bool // to the chain of a slot table
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
		w.journal.RemoveChain(have.name())
	default:
		w.journal.PutChain(want.declare())
	}
	*have = want
}

func (c sharedChain) name() string {
	if c.hash != layout.NoHash {
		return layout.SlotsChain(c.number, c.local, c.table)
	}
	return layout.ListChain(c.number, c.local)
}

// declare declares the chain. It draws as Balance.Chains describes, but within one chain, and ends with the first
// endpoint, which any list has: nothing may go on untranslated.
func (c sharedChain) declare() *nft.Chain {
	draw := func(modulus int, hash layout.Hash) nft.Rule {
		dnat := nft.DNATFrom{Key: []nft.Part{nft.Constant(layout.ListTableNumber(c.number, c.local, c.table)),
			indexBelow(modulus, hash)}, Map: layout.ListsMap(c.number, c.protocol), Protocol: uint8(c.protocol)}
		switch {
		case c.joint:
			dnat.Map, dnat.Ports = layout.AddressesMap(c.number), layout.PortsMap(c.number, c.protocol)
			dnat.PortKey = []nft.Part{nft.Constant(layout.JointPortNumber(c.number)), nft.Port}
		case c.hash != layout.NoHash:
			dnat.Map = layout.SlotsMap(c.number, c.local, c.table, c.protocol)
		}
		return nft.Rule{dnat}
	}
	chain := &nft.Chain{Name: c.name()}
	if c.goes {
		chain.Rules = []nft.Rule{{nft.Goto(layout.SlotsChain(c.number, c.local, c.table))}}
		return chain
	}
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
