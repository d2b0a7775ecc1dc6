package services

import "github.com/kube-nft/kube-nft/nft"

// recordChains remember where clients went. They exist while a Service port asks for session
// affinity: without them the first packet of a connection passes one base chain less.
func (c *Config) updateChains(f nft.Family) []*nft.Chain {
	record := []nft.Rule{{nft.Translated{}, nft.Jump(updateAffinityChain)}}
	return []*nft.Chain{
		{Name: updateAffinityChain, Rules: c.updateRules(f)},
		{Name: inputChain, Hook: &nft.Hook{Type: "nat", Point: "input", Priority: srcnatPriority}, Rules: record},
		{Name: affinityPostroutingChain, Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: srcnatPriority - 1}, Rules: record},
	}
}

// recordRules find the Service port that a translated connection was addressed to. Each
// protocol needs a rule of its own: nft reads the port that connection tracking remembers
// only in the context of one protocol.
func (c *Config) updateRules(f nft.Family) []nft.Rule {
	var rules []nft.Rule
	for _, protocol := range nft.TransportNumbers {
		rules = append(rules,
			nft.Rule{nft.ProtocolIs{Number: protocol}, nft.VerdictFrom{Key: []nft.Part{nft.OriginalDestination, nft.Protocol, nft.OriginalPort}, Map: affinityFrontendsMap}})
	}
	for _, protocol := range nft.TransportNumbers {
		rule := nft.Rule{nft.ProtocolIs{Number: protocol}}
		if !c.AllNodePorts[f] {
			rule = append(rule, nft.InSet{Key: []nft.Part{nft.OriginalDestination}, Set: nodePortAddressesSet})
		}
		rules = append(rules, append(rule, nft.VerdictFrom{Key: []nft.Part{nft.Protocol, nft.OriginalPort}, Map: affinityNodePortsMap}))
	}
	return rules
}

// acquireRecord makes sure that the chains exist while a Service port has affinity;
// releaseRecord gives them up.
func (r *familyRules) acquireUpdates() {
	if r.withAffinity++; r.withAffinity > 1 {
		return
	}
	for _, chain := range r.config.updateChains(r.Table.Family) {
		r.PutChain(chain)
	}
}

func (r *familyRules) releaseUpdates() {
	if r.withAffinity--; r.withAffinity > 0 {
		return
	}
	for _, chain := range r.config.updateChains(r.Table.Family) {
		r.RemoveChain(chain.Name)
	}
}
