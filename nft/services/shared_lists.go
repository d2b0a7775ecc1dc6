package services

import (
	"net/netip"
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
	cluster, local []netip.AddrPort
	chains         [2]int // the capacities of the chains for cluster and local; 0: no chain
}

// A Service port with manyFrontends frontends, which a cluster IP, a node port, an address of a load
// balancer and an external IP are not, has shared lists if its direct lists would have manyPlaces
// elements; it has them until they would have half of that, so that an endpoint that comes and goes
// does not move them each time.
const (
	manyFrontends = 5
	usualPlaces   = 1024
)

// manyPlaces is described with manyFrontends. Random tests lower it.
var manyPlaces = usualPlaces

// shares reports whether a Service port is to have shared lists.
func (p *portState) shares() bool {
	places := len(p.frontends) * (len(p.cluster) + len(p.local))
	return len(p.frontends) >= manyFrontends && (places >= manyPlaces || p.list.number != 0 && places >= manyPlaces/2)
}

func listIdentity(id tracker.PortID) string { return "list " + id.String() }

// setList writes the shared lists of a Service port, or removes them.
func (r *familyRules) setList(port *portState, shared bool) {
	l := &port.list
	var cluster, local []netip.AddrPort
	if shared {
		cluster, local = port.cluster, port.local
		l.number = r.numberOf(listIdentity(port.current.ID))
	}
	set := layout.ListsMap(l.number)
	r.writeList(set, layout.ListKey(l.number, false), port.comment, l.cluster, cluster)
	r.writeList(set, layout.ListKey(l.number, true), port.comment, l.local, local)
	for i, list := range [][]netip.AddrPort{cluster, local} {
		name := layout.ListChain(l.number, i == 1)
		switch c := capacity(len(list)); {
		case c == l.chains[i]:
		case c == 0:
			r.RemoveChain(name)
		default:
			r.PutChain(sharedChain(name, l.number, i == 1, port.current.ID.Protocol, c))
		}
		l.chains[i] = capacity(len(list))
	}
	l.cluster, l.local = cluster, local
	if !shared {
		delete(r.numbers, l.number)
		l.number = 0
	}
}

// sharedChain declares a chain that chooses from a shared list. It draws as balance.chains
// describes, but within one chain, and ends with the first endpoint, which any list has: nothing
// may go on untranslated.
func sharedChain(name string, number uint32, local bool, protocol tracker.Protocol, capacity int) *nft.Chain {
	draw := func(modulus int) nft.Rule {
		key := []nft.Part{nft.Constant(layout.ListNumber(number, local)), nft.RandomIndex(uint32(modulus))}
		return nft.Rule{nft.ProtocolIs{Number: uint8(protocol)}, nft.DNATFrom{Key: key, Map: layout.ListsMap(number)}}
	}
	chain := &nft.Chain{Name: name}
	b := balance{capacity: capacity}
	switch {
	case capacity > exactLengths:
		chain.Rules = append(slices.Repeat([]nft.Rule{draw(capacity)}, maxDraws), draw(b.lower().capacity))
	case capacity > 1:
		for modulus := capacity; modulus >= b.shortest(); modulus-- {
			chain.Rules = append(chain.Rules, draw(modulus))
		}
	}
	chain.Rules = append(chain.Rules, draw(1), draw(1), nft.Rule{nft.Drop})
	return chain
}
