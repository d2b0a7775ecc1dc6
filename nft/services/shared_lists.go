package services

import (
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A sharedList holds the endpoint lists of a Service port with many frontends once, under a
// number, where other Service ports have them under each frontend. What a Service costs is so
// in proportion to its frontends and its endpoints, and not to their product: 2,000 external IPs
// and 500 endpoints, 49 KB of objects, were 1,002,508 elements.
//
// Its chains hold the number, so they belong to the port. For each element that comes into a map the
// kernel goes through all rules that look something up there, and walks over the map for each such
// rule that comes: 2,000 Service ports with shared lists of ten endpoints took 5 s, where direct lists
// for their five frontends each are 100,000 elements, 0.2 s. So lists are shared only where the
// product is large, and are spread over many maps.
type sharedList struct {
	number  uint32
	id      tracker.PortID
	comment string
	hash    layout.Hash
	halves  [2]sharedHalf // for cluster and local
	givenUp bool          // no port uses it any more: what is left of its slot tables is being removed
}

// A sharedHalf is one of the two lists.
type sharedHalf struct {
	shown  places           // what packets find
	table  layout.ListTable // where it stands
	choice sharedChoice     // what the chain follows from
	staged stagedList
}

// A sharedChoice is what a chain that chooses from a shared list follows from; the zero value is no chain.
type sharedChoice struct {
	capacity int
	hash     layout.Hash
	table    layout.ListTable
	joint    bool
}

// shares reports whether a Service port is to have shared lists.
func (p *portState) shares() bool {
	if p.hash() != layout.NoHash && max(p.cluster.len(), p.local.len()) >= manySlots {
		return true
	}
	places := len(p.frontends) * (p.cluster.len() + p.local.len())
	return len(p.frontends) >= manyFrontends && (places >= manyPlaces || p.list != nil && places >= manyPlaces/2)
}

func listIdentity(id tracker.PortID) string { return "list " + id.String() }

// setList writes the shared lists of a Service port, or removes them.
func (fr *familyRules) setList(port *portState, shared bool) {
	l := port.list
	switch {
	case !shared && l == nil:
		return
	case !shared:
		for i := range l.halves {
			fr.setHalf(l, i == 1, places{})
		}
		if port.list = nil; slices.Contains(fr.staged, l) { // until all of it is removed, the number is in use
			l.givenUp = true
		} else {
			fr.freeList(l)
		}
		return
	case l == nil:
		l = fr.newList(port.current.ID)
		port.list = l
	}
	l.comment, l.hash = port.comment, port.hash()
	if set := fr.config.listsSet(l.number, l.id.Protocol); fr.Table.Sets[set.Name] == nil {
		fr.PutSet(set)
	}
	for i, want := range []places{port.cluster, port.local} {
		fr.setHalf(l, i == 1, want)
	}
}

// newList returns the lists of a Service port that has none: those that are still being removed, if it had some before.
func (fr *familyRules) newList(id tracker.PortID) *sharedList {
	number := fr.numberOf(listIdentity(id))
	i := slices.IndexFunc(fr.staged, func(l *sharedList) bool { return l.number == number })
	if i < 0 {
		return &sharedList{number: number, id: id}
	}
	l := fr.staged[i]
	l.givenUp = false
	return l
}

// setHalf makes one of the lists of a Service port the wanted one.
func (fr *familyRules) setHalf(l *sharedList, local bool, want places) {
	h := l.half(local)
	staged := &h.staged
	switch {
	case !fr.stages(h, want):
		staged.want = places{}
	case want.len() == 0: // no chain leads to what is left, which advance removes
		h.shown, staged.want = places{}, places{}
	default:
		if !staged.want.is(want) {
			staged.want, staged.written = want, 0
		}
		want = meanwhile(h.shown, want)
	}
	fr.lists.write(layout.ListsMap(l.number, l.id.Protocol), layout.ListKey(l.number, local, h.table), l.comment, h.shown,
		want)
	if staged.held[h.table] <= h.shown.len() {
		staged.held[h.table] = 0
	}
	h.shown, staged.held[h.table] = want, max(staged.held[h.table], want.len())
	if l.unfinished() && !slices.Contains(fr.staged, l) {
		fr.staged = append(fr.staged, l)
	}
	fr.putChoice(l, local)
}

func (l *sharedList) half(local bool) *sharedHalf {
	if local {
		return &l.halves[1]
	}
	return &l.halves[0]
}

// putChoice makes the chain of one of the lists choose from what is shown.
func (fr *familyRules) putChoice(l *sharedList, local bool) {
	h := l.half(local)
	name, choice := layout.ListChain(l.number, local), sharedChoice{table: h.table}
	if h.shown.slots != nil {
		choice.hash = l.hash
	}
	choice.capacity = capacityOf(h.shown, choice.hash)
	if h.staged.held[h.table] > h.shown.len() { // what stands behind the list must not be chosen
		choice.capacity = h.shown.len()
	}
	if choice.capacity == 0 {
		choice = sharedChoice{}
	}
	switch choice {
	case h.choice:
	case sharedChoice{}:
		fr.RemoveChain(name)
	default:
		fr.PutChain(choice.chain(name, l.number, local, l.id.Protocol))
	}
	h.choice = choice
}

// freeList frees the number of a list that is empty, and removes its map with the last list in it.
func (fr *familyRules) freeList(l *sharedList) {
	delete(fr.numbers, l.number)
	if set := layout.ListsMap(l.number, l.id.Protocol); fr.Table.Sets[set] != nil && len(fr.Table.Sets[set].Map) == 0 {
		fr.RemoveSet(set)
	}
}

// chain declares a chain that chooses from a shared list. It draws as balance.chains
// describes, but within one chain, and ends with the first endpoint, which any list has: nothing
// may go on untranslated.
func (c sharedChoice) chain(name string, number uint32, local bool, protocol tracker.Protocol) *nft.Chain {
	draw := func(modulus int) nft.Rule {
		dnat := nft.DNATFrom{Key: []nft.Part{nft.Constant(layout.ListTableNumber(number, local, c.table)),
			indexBelow(modulus, c.hash)}, Map: layout.ListsMap(number, protocol), Protocol: uint8(protocol)}
		if c.joint {
			dnat.Map, dnat.Ports = layout.AddressesMap(number), layout.PortsMap(number, protocol)
			dnat.PortKey = []nft.Part{nft.Constant(layout.JointPortNumber(number)), nft.Port}
		}
		return nft.Rule{dnat}
	}
	chain := &nft.Chain{Name: name}
	b := balance{capacity: c.capacity}
	switch {
	case c.hash != layout.NoHash:
		chain.Rules = []nft.Rule{draw(c.capacity), draw(c.capacity)}
	case c.capacity > exactLengths:
		chain.Rules = append(slices.Repeat([]nft.Rule{draw(c.capacity)}, maxDraws), draw(b.lower().capacity))
	case c.capacity > 1:
		for modulus := c.capacity; modulus >= b.shortest(); modulus-- {
			chain.Rules = append(chain.Rules, draw(modulus))
		}
	}
	c.hash = layout.NoHash
	chain.Rules = append(chain.Rules, draw(1), draw(1), nft.Rule{nft.Drop})
	return chain
}
