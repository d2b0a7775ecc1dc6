package services

import (
	"net/netip"

	"github.com/kube-nft/kube-nft/nft"
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

// programPing makes an address answer echo requests for one frontend more, or one less.
func (fr *familyRules) programPing(addr netip.Addr, want bool) {
	element := sharedElement{layout.PingedSet, nft.AddrKey(addr)}
	if want {
		if fr.Table.Sets[layout.PingedSet] == nil {
			fr.PutSet(&nft.Set{Name: layout.PingedSet, Rank: pingedRank, Key: []nft.Field{nft.FieldAddr}})
			for _, chain := range pingChains() {
				fr.PutChain(chain)
			}
		}
		fr.share(element)
		return
	}
	fr.unshare(element)
	if len(fr.Table.Sets[layout.PingedSet].Map) == 0 {
		for _, chain := range pingChains() {
			fr.RemoveChain(chain.Name)
		}
		fr.RemoveSet(layout.PingedSet)
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
