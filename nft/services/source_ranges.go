package services

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// sourceRanges are those of one Service in one family. All ports and load-balancer IPs of the Service share
// them. They are elements (number . first address) of one set without intervals for each prefix length. The kernel
// takes longer for each element that it adds to an interval set, and copies the whole set in each commit that changes
// it: 100,000 elements took 151 s, in which no other program could change nf_tables.
type sourceRanges struct {
	service  string // "namespace/name"
	number   uint32
	ranges   []netip.Prefix // sorted, none overlaps another
	ports    int            // Service ports that have it
	policies int            // with these source ranges; without one, there are no elements and no chain
}

// numberOf returns a number for an identity, which no other identity has at this time. It
// follows from the identity, so that a restart finds the same one. On a hash collision the first
// identity keeps the number.
func (fr *familyRules) numberOf(identity string) uint32 {
	return fr.freeNumber(identity, max(1, hashOf(identity)), 1)
}

// freeNumber returns the first number of n, n+step, n+2*step, ... that no other identity has.
func (fr *familyRules) freeNumber(identity string, n, step uint32) uint32 {
	for ; ; n += step {
		if holder, taken := fr.numbers[n]; !taken || holder == identity {
			fr.numbers[n] = identity
			return n
		}
	}
}

// hashOf returns a hash of 30 bits.
func hashOf(text string) uint32 {
	sum := sha256.Sum256([]byte(text))
	return binary.BigEndian.Uint32(sum[:]) >> 2
}

// rangesIdentity begins what the number of source ranges follows from. Another text would change all numbers, and the
// names of chains with them.
const rangesIdentity = "guard "

// setPortRanges gives a Service port the source ranges that its Service has now; nil stands for a port that is removed.
func (fr *familyRules) setPortRanges(port *portState, p *tracker.ServicePort) {
	have := port.sourceRanges
	port.sourceRanges = nil
	if p != nil && p.HasSourceRanges {
		service := p.ID.Namespace + "/" + p.ID.Service
		number := fr.numberOf(rangesIdentity + service)
		g := fr.sourceRanges[number]
		if g == nil {
			g = &sourceRanges{service: service, number: number}
			fr.sourceRanges[number] = g
		}
		g.ports++
		port.sourceRanges = g
		if !tracker.SameMemory(g.ranges, p.Sources) && !slices.Equal(g.ranges, p.Sources) {
			fr.setRanges(g, p.Sources)
		}
	}
	if have != nil {
		have.ports--
		fr.forgetRanges(have)
	}
}

// setSourceRanges says which clients may connect. Source ranges apply at load-balancer addresses, and at node ports if
// the Service asks for that; this node may always connect to its node ports. Where every client is dropped, they change
// nothing.
func (c claim) setSourceRanges(s *program) {
	switch {
	case s.policy.Kind == layout.Dropped && !s.policy.Resets:
	case c.kind == loadBalancerIP && c.port.sourceRanges != nil:
		s.policy.SourceRanges, s.sources = c.port.sourceRanges.number, c.port.current.Sources
	case c.kind == nodePort && c.port.current.RangesForNodePort:
		s.policy.SourceRanges, s.policy.NodePasses = c.port.sourceRanges.number, true
		s.sources = c.port.current.Sources
	}
}

// setRanges changes the source ranges of a Service. Their chain is written again only if the prefix lengths change.
func (fr *familyRules) setRanges(g *sourceRanges, ranges []netip.Prefix) {
	before := g.ranges
	g.ranges = ranges
	if g.policies == 0 {
		return
	}
	fr.changeRanges(g, before, ranges)
	if !slices.Equal(lengthsOf(before), lengthsOf(ranges)) {
		fr.PutChain(fr.sourceRangesChain(g))
	}
}

// addRangesPolicy counts a policy with source ranges. The first one makes their chain. removeRangesPolicy removes it
// with the last.
func (fr *familyRules) addRangesPolicy(number uint32) {
	g := fr.sourceRanges[number]
	if g.policies++; g.policies == 1 {
		fr.changeRanges(g, nil, g.ranges)
		fr.PutChain(fr.sourceRangesChain(g))
	}
}

func (fr *familyRules) removeRangesPolicy(number uint32) {
	g := fr.sourceRanges[number]
	if g.policies--; g.policies == 0 {
		fr.RemoveChain(layout.SourceRangesChain(number))
		fr.changeRanges(g, g.ranges, nil)
	}
	fr.forgetRanges(g)
}

// forgetRanges forgets source ranges that no Service port has and no chain uses.
func (fr *familyRules) forgetRanges(g *sourceRanges) {
	if g.ports == 0 && g.policies == 0 {
		delete(fr.sourceRanges, g.number)
		delete(fr.numbers, g.number)
	}
}

// changeRanges writes the elements in which two lists of ranges differ. Both are sorted.
func (fr *familyRules) changeRanges(g *sourceRanges, have, want []netip.Prefix) {
	gone, come := tracker.Difference(have, want, netip.Prefix.Compare)
	for _, p := range gone {
		set := layout.RangesSet(p.Bits())
		fr.Remove(set, layout.NumberedAddr(g.number, p.Addr()))
		if len(fr.Table.Sets[set].Map) == 0 {
			fr.RemoveSet(set)
		}
	}
	for _, p := range come {
		set := layout.RangesSet(p.Bits())
		if fr.Table.Sets[set] == nil {
			fr.PutSet(&nft.Set{Name: set, Rank: rangesRank + p.Bits(), Key: []nft.Field{nft.FieldIndex, nft.FieldAddr}})
		}
		fr.Put(set, layout.NumberedAddr(g.number, p.Addr()), nft.Element{})
	}
}

// rangesIn returns the source ranges to which an element belongs; nil if the set is another one.
func (fr *familyRules) rangesIn(set, key string) *sourceRanges {
	if !strings.HasPrefix(set, layout.RangesPrefix) || len(key) < 4 {
		return nil
	}
	return fr.sourceRanges[binary.NativeEndian.Uint32([]byte(key))]
}

// lengthsOf lists the prefix lengths in use, the longest first.
func lengthsOf(ranges []netip.Prefix) (lengths []int) {
	for _, p := range ranges {
		if !slices.Contains(lengths, p.Bits()) {
			lengths = append(lengths, p.Bits())
		}
	}
	slices.SortFunc(lengths, func(a, b int) int { return b - a })
	return lengths
}

// sourceRangesChain declares the chain of source ranges: a source in one of them comes back. It costs a lookup for each
// prefix length in use. The chains of all policies with these ranges jump there: a Service may have thousands of them.
func (fr *familyRules) sourceRangesChain(g *sourceRanges) *nft.Chain {
	chain := &nft.Chain{Name: layout.SourceRangesChain(g.number)}
	for _, bits := range lengthsOf(g.ranges) {
		source := nft.SourcePrefix(bits)
		if bits == 8*nft.AddrLen(fr.Table.Family) {
			source = nft.Source
		}
		chain.Rules = append(chain.Rules, nft.Rule{nft.InSet{Key: []nft.Part{nft.Constant(g.number), source},
			Set: layout.RangesSet(bits)}, nft.Return})
	}
	chain.Rules = append(chain.Rules, nft.Rule{nft.Goto(layout.DropSourceChain)})
	return chain
}

// limitedChain declares the chain of a policy with source ranges: a source in one of them goes on to the chain of the
// policy without them.
func limitedChain(p layout.Policy) *nft.Chain {
	chain, behind := &nft.Chain{Name: p.ChainName()}, nft.Goto(p.Open().ChainName())
	if p.NodePasses {
		chain.Rules = append(chain.Rules, nft.Rule{nft.AddressLocal{Of: nft.Source}, behind})
	}
	chain.Rules = append(chain.Rules, nft.Rule{nft.Jump(layout.SourceRangesChain(p.SourceRanges))}, nft.Rule{behind})
	return chain
}
