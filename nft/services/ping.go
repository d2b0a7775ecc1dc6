package services

import (
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// Addresses of Services answer echo requests where a Service asks for that: this node itself does, by a
// redirect. One set holds the addresses of all Services, each as long as a frontend needs it; the set and two base
// chains of their own, which bind no map, exist while there is an address. A Service that has an endpoint somewhere
// answers at each address at which it is served.

// setPing says whether the frontend's address answers echo requests: while the Service port has an endpoint on any
// node.
func (c claim) setPing(s *program) {
	p := c.port.current
	s.ping = p.Settings.Ping && !c.port.limits.withoutPing && p.HasEndpoints && c.kind != nodePort
}

// pinged counts how many frontends make an address answer.
type pinged map[netip.Addr]int

// program makes an address answer echo requests for one frontend more, or one less.
func (p pinged) program(j *change.Journal, addr netip.Addr, want bool) {
	if want {
		if len(p) == 0 {
			j.PutSet(&nft.Set{Name: layout.PingedSet, Rank: pingedRank, Key: []nft.Field{nft.FieldAddr}})
			for _, chain := range pingChains() {
				j.PutChain(chain)
			}
		}
		if p[addr]++; p[addr] == 1 {
			j.Put(layout.PingedSet, nft.AddrKey(addr), nft.Element{})
		}
		return
	}
	if p[addr]--; p[addr] > 0 {
		return
	}
	delete(p, addr)
	j.Remove(layout.PingedSet, nft.AddrKey(addr))
	if len(p) == 0 {
		for _, chain := range pingChains() {
			j.RemoveChain(chain.Name)
		}
		j.RemoveSet(layout.PingedSet)
	}
}

// pingedRank puts the set behind those of source ranges, which others look for.
const pingedRank = rangesRank + 200

// pingChains declares the base chains that answer. They come before those that reject whatever is addressed to a
// cluster IP and to no port of it.
func pingChains() []*nft.Chain {
	answer := []nft.Rule{{nft.EchoRequest{}, nft.InSet{Key: []nft.Part{nft.Destination}, Set: layout.PingedSet},
		nft.Redirect{}}}
	return []*nft.Chain{
		{Name: layout.PingPreroutingChain, Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: dstnatPriority - 1},
			Rules: answer},
		{Name: layout.PingOutputChain, Hook: &nft.Hook{Type: "nat", Point: "output", Priority: dstnatPriority - 1},
			Rules: answer},
	}
}
