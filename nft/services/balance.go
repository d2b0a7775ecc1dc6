package services

import (
	"math/bits"
	"slices"
	"strconv"

	"github.com/kube-nft/kube-nft/nft"
)

// An endpointList is one of the maps that lists of endpoints are in.
type endpointList struct {
	Map  string
	Key  []nft.Part // what a list is found by; the random index follows
	name string     // what stands in the names of the choosing chains before the capacity
}

var (
	atAddress         = []nft.Part{nft.Destination, nft.Protocol, nft.Port}
	atNodePort        = []nft.Part{nft.Protocol, nft.Port}
	clusterList       = endpointList{endpointsMap, atAddress, ""}
	localList         = endpointList{localEndpointsMap, atAddress, "local-"}
	nodePortList      = endpointList{nodePortEndpointsMap, atNodePort, "node-port-"}
	nodePortLocalList = endpointList{nodePortLocalEndpointMap, atNodePort, "node-port-local-"}
)

func listOf(nodePort, local bool) *endpointList {
	switch {
	case nodePort && local:
		return &nodePortLocalList
	case nodePort:
		return &nodePortList
	case local:
		return &localList
	}
	return &clusterList
}

// A balance names the chains that choose among the endpoints of a list of some capacity.
type balance struct {
	list     *endpointList
	capacity int
}

// exactLengths is the length up to which every endpoint is exactly as likely as the others.
const exactLengths = 16

// capacity is the number of places that the choice among n endpoints reckons with: n or a
// little more. Lists of one capacity share their chains, so that a list that grows or shrinks
// by an endpoint mostly keeps its verdict. The kernel takes 10 us for a commit of plain
// elements, but walks the whole verdict map when a commit adds a verdict (measured: 4 ms at
// 30,000 Services).
//
// Capacities are 1, the multiples of 4 up to 32, and then four for every doubling. Few
// are better: for each element that comes into a map, the kernel goes through all rules
// that look something up there (measured: 20 ns for each rule).
func capacity(n int) int {
	if n <= 1 {
		return n
	}
	step := max(4, 1<<bits.Len(uint(n-1))/8)
	return (n + step - 1) / step * step
}

// name returns the name of the chain that chooses.
func (p balance) name() string { return "pick-" + p.list.name + strconv.Itoa(p.capacity) }

// drawName returns the name of the chain that draws an index below the capacity, and comes back if
// there is no endpoint of that index.
func (p balance) drawName() string { return "draw-" + p.list.name + strconv.Itoa(p.capacity) }

// maxDraws is how often an index is drawn for a long list.
const maxDraws = 5

// chains declares the chains that the choice is made of.
//
// An index that is drawn below m, where the list has n endpoints and m is no less, belongs to
// one of the n, each equally likely, or to none. Then the rule does not apply, and
// another draw follows: for short lists below m-1 and so on, of which the one below n is a
// hit. For long ones the draw is repeated; the capacity is at most a quarter above n, so that
// one in 3,000 misses all the time. Those go to the endpoints below the next lower power of
// two, which are there in any case.
//
// A commit can fall between two lookups of one packet: it came here for n endpoints and
// finds fewer, because the list has just shrunk. Then the first one, which any list has,
// takes it; and if there is no list any more, the packet must not go on untranslated. The
// first one is looked up twice: an endpoint that is replaced is an element that is deleted
// and added, and a lookup in that instant may find neither. One connection in some millions
// was lost before; this is the likely way.
func (p balance) chains() []*nft.Chain {
	chain := &nft.Chain{Name: p.name()}
	switch {
	case p.capacity == 1:
		chain.Rules = []nft.Rule{p.draw(1), p.draw(1), {nft.Drop}}
		return []*nft.Chain{chain}
	case p.capacity > exactLengths:
		again := nft.Rule{nft.Jump(p.drawName())}
		chain.Rules = append(slices.Repeat([]nft.Rule{again}, maxDraws), nft.Rule{nft.Jump(p.below())}, nft.Rule{nft.Goto(p.first().name())})
		return []*nft.Chain{chain, {Name: p.drawName(), Rules: []nft.Rule{p.draw(p.capacity)}}}
	}
	for modulus := p.capacity; modulus >= p.shortest(); modulus-- {
		chain.Rules = append(chain.Rules, p.draw(modulus))
	}
	chain.Rules = append(chain.Rules, nft.Rule{nft.Goto(p.first().name())})
	return []*nft.Chain{chain}
}

// draw translates to the endpoint whose index is drawn below modulus, if there is one.
func (p balance) draw(modulus int) nft.Rule {
	key := append(p.list.Key[:len(p.list.Key):len(p.list.Key)], nft.RandomIndex(uint32(modulus)))
	return nft.Rule{nft.DNATFrom{Key: key, Map: p.list.Map}}
}

// shortest is the length of the shortest list of the capacity, of those up to exactLengths.
func (p balance) shortest() int { return max(2, p.capacity-3) }

// first is the choice of the first endpoint, lower that among as many as the next lower
// power of two.
func (p balance) first() balance { return balance{p.list, 1} }

func (p balance) lower() balance { return balance{p.list, 1 << (bits.Len(uint(p.capacity-1)) - 1)} }

// below is the chain that draws below the next lower power of two.
func (p balance) below() string {
	if lower := p.lower(); lower.capacity > exactLengths {
		return lower.drawName()
	}
	return p.lower().name()
}

// next lists the choices whose chains the chains of p go to.
func (p balance) next() []balance {
	switch {
	case p.capacity == 1:
		return nil
	case p.capacity > exactLengths:
		return []balance{p.first(), p.lower()}
	}
	return []balance{p.first()}
}
