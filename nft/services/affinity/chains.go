package affinity

import (
	"slices"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// Settings are what the chains of a table follow from besides the Service ports.
type Settings struct {
	Family nft.Family
	// Masquerade are the rules that mark connections to a cluster IP whose replies would not come back through
	// this node.
	Masquerade []nft.Rule
	// MarksUnlessPod says that Masquerade marks connections that do not come from pods.
	MarksUnlessPod bool
	// AllNodePorts says that node ports are served at every address of the node.
	AllNodePorts bool
	Size         uint32 // entries that one affinity map can have
}

// Maps are all affinity maps. Each exists while a Service port has entries there: the kernel makes the buckets
// for all entries of a map at once.
func (s *Settings) Maps() (sets []*nft.Set) {
	for i := range uint32(layout.AffinityMaps) {
		sets = append(sets, s.Map(layout.AffinityMap(layout.ListNumber(i, false))))
	}
	return sets
}

// Map declares the affinity map with a name.
func (s *Settings) Map(name string) *nft.Set {
	return &nft.Set{
		Name: name, Rank: mapRank, Key: nft.NumberedFields(s.Family), Data: []nft.Field{nft.FieldAddr}, Dynamic: true,
		Size: s.Size,
	}
}

// mapRank puts the affinity maps after the sets that others look for.
const mapRank = 1000

// SharedChains are the chains that all Service ports with session affinity share. They exist while there is
// one: without them, the first packet of a connection passes one base chain less.
func (s *Settings) SharedChains(priority int32) []*nft.Chain {
	record := []nft.Rule{{nft.Translated{}, nft.Jump(layout.UpdateAffinityChain)}}
	var mark []*nft.Chain
	if s.MarksUnlessPod {
		mark = []*nft.Chain{{Name: layout.MarkUnlessPodChain, Rules: s.Masquerade}}
	}
	return append(mark, []*nft.Chain{
		{Name: layout.UpdateAffinityChain, Rules: s.updateRules()},
		{Name: layout.InputChain, Hook: &nft.Hook{Type: "nat", Point: "input", Priority: priority}, Rules: record},
		{Name: layout.AffinityPostroutingChain, Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: priority - 1},
			Rules: record},
	}...)
}

// Mark does what Masquerade does, with one expression.
func (s *Settings) Mark() []nft.Rule {
	if s.MarksUnlessPod {
		return []nft.Rule{{nft.Jump(layout.MarkUnlessPodChain)}}
	}
	return s.Masquerade
}

// updateRules find the Service port to which a translated connection was addressed. Each protocol needs a
// rule of its own: nft reads the port that connection tracking keeps only in the context of one protocol.
func (s *Settings) updateRules() []nft.Rule {
	var rules []nft.Rule
	frontend := []nft.Part{nft.OriginalDestination, nft.Protocol, nft.OriginalPort}
	for _, protocol := range nft.TransportNumbers {
		rules = append(rules, nft.Rule{nft.ProtocolIs{Number: protocol},
			nft.VerdictFrom{Key: frontend, Map: layout.AffinityFrontendsMap}})
	}
	// What was addressed to another Service with the number of a node port is none of its connections.
	rules = append(rules, nft.Rule{nft.InSet{Key: []nft.Part{nft.OriginalDestination}, Set: layout.ClusterIPsSet},
		nft.Return})
	for _, protocol := range nft.TransportNumbers {
		rule := nft.Rule{nft.ProtocolIs{Number: protocol}}
		if !s.AllNodePorts {
			rule = append(rule, nft.InSet{Key: []nft.Part{nft.OriginalDestination}, Set: layout.NodePortAddressesSet})
		}
		rules = append(rules, append(rule, nft.InSet{Key: frontend, Set: layout.BeforeNodePortsSet, Not: true},
			nft.VerdictFrom{Key: []nft.Part{nft.Protocol, nft.OriginalPort}, Map: layout.AffinityNodePortsMap}))
	}
	return rules
}

// UpdateChain declares the chain that writes into the client's entry to which endpoint a connection goes, and
// drops a connection to an endpoint that has left: one that is no member. With it goes the entry that it has followed:
// the client's next packet chooses anew, whether or not kube-nft runs. If both lists have a group, the members of each
// tell whose entry it is.
func (p *Port) UpdateChain(s *Settings) *nft.Chain {
	chain := &nft.Chain{Name: layout.UpdateChain(p.Number)}
	onePort := p.onePort()
	for i := range p.Groups {
		g := &p.Groups[i]
		other := p.other(g)
		var there nft.Rule // empty if all groups have one port: then it need not match
		if !onePort {
			there = nft.Rule{nft.PortIs{Port: g.Port}}
		}
		add := func(stmts ...nft.Stmt) { chain.Rules = append(chain.Rules, slices.Concat(there, nft.Rule(stmts))) }
		member, otherMember := g.members(), other.members()
		no, neither := member, otherMember
		no.Not, neither.Not = true, true
		switch {
		case other.Number == 0:
			add(no, g.forget(s.Family), nft.Drop)
			add(g.update(s.Family))
		case g.Local: // these rules serve the other list, too
			add(no, neither, g.forget(s.Family), other.forget(s.Family), nft.Drop)
			add(member, g.update(s.Family))
			add(otherMember, other.update(s.Family))
		}
	}
	return chain
}

// members matches connections to an endpoint that entries of the group may name.
func (g *Group) members() nft.InSet {
	return nft.InSet{Key: []nft.Part{nft.Constant(g.List), nft.Destination}, Set: layout.MembersSet}
}

func (g *Group) update(f nft.Family) nft.Update {
	return nft.Update{Key: nft.Numbered(f, g.Number, nft.OriginalSource), Map: layout.AffinityMap(g.Number),
		Timeout: uint64(g.Timeout / time.Second)}
}

func (g *Group) forget(f nft.Family) nft.Forget {
	return nft.Forget{Key: nft.Numbered(f, g.Number, nft.OriginalSource), Map: layout.AffinityMap(g.Number)}
}

// A Choice says which chain chooses an endpoint of a list for a client without an entry.
type Choice struct {
	Chain string
	// NodePortChain chooses for connections to NodePort, if the policy chain serves a node port and addresses;
	// 0 if it does not.
	NodePort      uint16
	NodePortChain string
}

// Choices are those for the two lists.
type Choices struct{ Cluster, Local Choice }

// FollowChains declares the chains that look for the client's entry, if several ports of the Service have affinity. For
// each rule that looks something up in an affinity map, the kernel goes through all entries of the map. So what often
// changes for all ports at once is in other chains: which chain chooses, and whose connections are masqueraded.
func (p *Port) FollowChains(f nft.Family) (chains []*nft.Chain) {
	for _, local := range []bool{false, true} {
		if rules := p.follow(f, local); p.Several && len(rules) > 0 {
			chains = append(chains, &nft.Chain{Name: layout.FollowChain(p.Number, local), Rules: rules})
		}
	}
	return chains
}

// follow sends clients with an entry to the endpoint of a list that it names.
func (p *Port) follow(f nft.Family, local bool) (rules []nft.Rule) {
	for i := range p.Groups {
		if g := &p.Groups[i]; g.Local == local {
			rules = append(rules, nft.Rule{nft.ProtocolIs{Number: p.Protocol},
				nft.DNATFrom{Key: nft.Numbered(f, g.Number, nft.Source), Map: layout.AffinityMap(g.Number), ToPort: g.Port}})
		}
	}
	return rules
}

// Choose sends the clients that match who to an endpoint of a list: to the one in their entry, or to any.
func (p *Port) Choose(f nft.Family, choices Choices, local bool, who []nft.Stmt) (rules []nft.Rule) {
	with := func(stmts ...nft.Stmt) { rules = append(rules, slices.Concat(nft.Rule(who), nft.Rule(stmts))) }
	follow := p.follow(f, local)
	if p.Several && len(follow) > 0 {
		follow = []nft.Rule{{nft.Jump(layout.FollowChain(p.Number, local))}}
	}
	for _, rule := range follow {
		with(rule...)
	}
	choice := choices.Cluster
	if local {
		choice = choices.Local
	}
	if choice.NodePort != 0 {
		with(nft.PortIs{Port: choice.NodePort}, nft.Goto(choice.NodePortChain))
	}
	with(nft.Goto(choice.Chain))
	return rules
}
