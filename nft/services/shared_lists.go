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
// product is large, and stand in one of listMaps maps.
type sharedList struct {
	number         uint32 // 0: the port has direct lists
	cluster, local places
	chains         [2]sharedChoice // for cluster and local
}

// A sharedChoice is what a chain that chooses from a shared list follows from; the zero value is no chain.
type sharedChoice struct {
	capacity int
	hash     layout.Hash
}

// shares reports whether a Service port is to have shared lists.
func (p *portState) shares() bool {
	places, many, frontends := len(p.frontends)*(p.cluster.len()+p.local.len()), manyPlaces, manyFrontends
	if p.hash() != layout.NoHash {
		many, frontends = manySlots, 2
	}
	return len(p.frontends) >= frontends && (places >= many || p.list.number != 0 && places >= many/2)
}

func listIdentity(id tracker.PortID) string { return "list " + id.String() }

// setList writes the shared lists of a Service port, or removes them.
func (r *familyRules) setList(port *portState, shared bool) {
	l := &port.list
	if !shared && l.number == 0 {
		return
	}
	var cluster, local places
	if shared {
		cluster, local = port.cluster, port.local
		l.number = r.numberOf(listIdentity(port.current.ID))
	}
	set := layout.ListsMap(l.number)
	r.lists.write(set, layout.ListKey(l.number, false), port.comment, l.cluster, cluster)
	r.lists.write(set, layout.ListKey(l.number, true), port.comment, l.local, local)
	hash := port.hash()
	for i, list := range []places{cluster, local} {
		name, choice := layout.ListChain(l.number, i == 1), sharedChoice{capacityOf(list, hash), hash}
		if choice.capacity == 0 {
			choice = sharedChoice{}
		}
		switch choice {
		case l.chains[i]:
		case sharedChoice{}:
			r.RemoveChain(name)
		default:
			r.PutChain(choice.chain(name, l.number, i == 1, port.current.ID.Protocol))
		}
		l.chains[i] = choice
	}
	l.cluster, l.local = cluster, local
	if !shared {
		delete(r.numbers, l.number)
		l.number = 0
	}
}

// chain declares a chain that chooses from a shared list. It draws as balance.chains
// describes, but within one chain, and ends with the first endpoint, which any list has: nothing
// may go on untranslated.
func (c sharedChoice) chain(name string, number uint32, local bool, protocol tracker.Protocol) *nft.Chain {
	dnat := func(index nft.Part) nft.DNATFrom {
		return nft.DNATFrom{Key: []nft.Part{nft.Constant(layout.ListNumber(number, local)), index}, Map: layout.ListsMap(number)}
	}
	draw := func(modulus int) nft.Rule {
		return nft.Rule{nft.ProtocolIs{Number: uint8(protocol)}, dnat(nft.RandomIndex(uint32(modulus)))}
	}
	chain := &nft.Chain{Name: name}
	b := balance{capacity: c.capacity}
	switch {
	case c.hash != layout.NoHash:
		hashed := dnat(indexBelow(c.capacity, c.hash))
		hashed.Protocol = uint8(protocol)
		chain.Rules = []nft.Rule{{hashed}, {hashed}}
	case c.capacity > exactLengths:
		chain.Rules = append(slices.Repeat([]nft.Rule{draw(c.capacity)}, maxDraws), draw(b.lower().capacity))
	case c.capacity > 1:
		for modulus := c.capacity; modulus >= b.shortest(); modulus-- {
			chain.Rules = append(chain.Rules, draw(modulus))
		}
	}
	chain.Rules = append(chain.Rules, draw(1), draw(1), nft.Rule{nft.Drop})
	return chain
}
