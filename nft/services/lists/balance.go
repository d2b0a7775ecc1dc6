package lists

import (
	"math/bits"
	"slices"
	"strconv"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/maglev"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Balance names the chains that choose among the endpoints of a list of some capacity, by chance or
// by a hash of the client. Frontends whose lists have one balance share its chains.
type Balance struct {
	NodePort, Local bool // in which of the maps of a protocol the lists are
	Capacity        int  // as Places.Capacity returns it
	Hash            layout.Hash
}

// exactLengths is the length up to which every endpoint is exactly as likely as the others.
const exactLengths = 16

// Name returns the name of the chain that chooses.
func (b Balance) Name() string {
	if b.Hash != layout.NoHash {
		return b.Hash.Infix() + b.suffix()
	}
	return "pick-" + b.suffix()
}

// suffix ends the names of the chains.
func (b Balance) suffix() string {
	suffix := layout.LocalInfix(b.Local) + strconv.Itoa(b.Capacity)
	if b.NodePort {
		suffix = "node-port-" + suffix
	}
	return suffix
}

// drawName returns the name of the chain that draws an index below the capacity, and comes back if
// there is no endpoint of that index.
func (b Balance) drawName() string { return "draw-" + b.suffix() }

// maxDraws is how often an index is drawn for a long list.
const maxDraws = 5

// All returns the choice that stands for all those whose chains come and go with the chains of b. Where a hash chooses,
// these are the choices among slot tables of all sizes: a new chain makes the kernel walk over all endpoints, and
// Services that change the sizes of their tables would make it do so again and again.
func (b Balance) All() Balance {
	if b.Hash != layout.NoHash {
		b.Capacity = maglev.Sizes()[0]
	}
	return b
}

// Chains declares the chains that the choice is made of; where a hash chooses, those for slot tables of all sizes. The
// first chain has the name of All.
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
func (b Balance) Chains() []*nft.Chain {
	chain := &nft.Chain{Name: b.Name()}
	switch {
	case b.Hash != layout.NoHash: // every slot is there, but the instants that are described above
		var chains []*nft.Chain
		for _, b.Capacity = range maglev.Sizes() {
			if b.Capacity < tracker.JointFrom {
				rules := append(b.draw(b.Capacity, b.Capacity), nft.Rule{nft.Goto(b.first().Name())})
				chains = append(chains, &nft.Chain{Name: b.Name(), Rules: rules})
			}
		}
		return chains
	case b.Capacity == 1:
		chain.Rules = append(b.draw(1, 1), nft.Rule{nft.Drop})
		return []*nft.Chain{chain}
	case b.Capacity > exactLengths:
		again := nft.Rule{nft.Jump(b.drawName())}
		chain.Rules = append(slices.Repeat([]nft.Rule{again}, maxDraws), nft.Rule{nft.Jump(b.below())},
			nft.Rule{nft.Goto(b.first().Name())})
		return []*nft.Chain{chain, {Name: b.drawName(), Rules: b.draw(b.Capacity)}}
	}
	var moduli []int
	for modulus := b.Capacity; modulus >= b.shortest(); modulus-- {
		moduli = append(moduli, modulus)
	}
	chain.Rules = append(b.draw(moduli...), nft.Rule{nft.Goto(b.first().Name())})
	return []*nft.Chain{chain}
}

// draw translates to the endpoint whose index is drawn below the first modulus, if there is one; else below the next.
func (b Balance) draw(moduli ...int) (rules []nft.Rule) {
	for _, protocol := range nft.TransportNumbers {
		m := layout.EndpointMap{NodePort: b.NodePort, Local: b.Local, Protocol: tracker.Protocol(protocol)}
		for _, modulus := range moduli {
			key := []nft.Part{nft.Destination, nft.Protocol, nft.Port, indexBelow(modulus, b.Hash)}
			if b.NodePort {
				key = key[1:]
			}
			rules = append(rules, nft.Rule{nft.DNATFrom{Key: key, Map: m.Name(), Protocol: protocol}})
		}
	}
	return rules
}

// indexBelow is the index that chance or a hash of the client chooses below modulus.
func indexBelow(modulus int, hash layout.Hash) nft.Part {
	if hash == layout.NoHash {
		return nft.RandomIndex(uint32(modulus))
	}
	return nft.HashedIndex(uint32(modulus), hash == layout.HashAddressPort)
}

// shortest is the length of the shortest list of the capacity, of those up to exactLengths.
func (b Balance) shortest() int { return max(2, b.Capacity-3) }

// first is the choice of the first endpoint, lower that among as many as the next lower
// power of two.
func (b Balance) first() Balance { return b.byChance(1) }

func (b Balance) lower() Balance { return b.byChance(1 << (bits.Len(uint(b.Capacity-1)) - 1)) }

func (b Balance) byChance(capacity int) Balance {
	b.Capacity, b.Hash = capacity, layout.NoHash
	return b
}

// below is the chain that draws below the next lower power of two.
func (b Balance) below() string {
	if lower := b.lower(); lower.Capacity > exactLengths {
		return lower.drawName()
	}
	return b.lower().Name()
}

// Next lists the choices whose chains the chains of b go to.
func (b Balance) Next() (next []Balance) {
	if b != b.first() {
		next = append(next, b.first())
	}
	if b.Hash == layout.NoHash && b.Capacity > exactLengths {
		next = append(next, b.lower())
	}
	return next
}
