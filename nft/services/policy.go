package services

import (
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services/lists"
)

// setTrafficPolicy says which endpoints serve the frontend by its traffic policy, or what happens if there is none.
func (c claim) setTrafficPolicy(s *program) {
	s.policy = layout.Policy{Kind: c.policyKind(), NodePort: c.kind == nodePort}
}

// policyKind returns what follows from the traffic policy and from the endpoints that it allows.
func (c claim) policyKind() layout.PolicyKind {
	p := c.port.current
	kind, usable := layout.External, c.port.cluster.Len()
	fallback := p.Settings.LocalFallback && c.port.local.Len() == 0
	switch {
	case c.kind == clusterIP && p.InternalLocal && !fallback:
		kind, usable = layout.InternalLocal, c.port.local.Len()
	case c.kind == clusterIP:
		kind = layout.Internal
	case p.ExternalLocal && fallback:
		kind = layout.ExternalFallback
	case p.ExternalLocal:
		kind = layout.ExternalLocal
	}
	switch {
	case usable > 0:
		return kind
	case p.HasEndpoints:
		return layout.Dropped
	}
	return layout.Refused
}

// ownedByAffinity reports whether the policy's chain comes and goes with the affinity of its Service
// port.
func ownedByAffinity(p layout.Policy) bool { return p.Affinity != 0 && p.SourceRanges == 0 }

// sharedPolicyChain declares the chain of a policy that Service ports share. sourceRangesChain is for a policy with
// source ranges, and Port.PolicyChain of the package affinity for one with session affinity.
func (c *Config) sharedPolicyChain(p layout.Policy, f nft.Family) *nft.Chain {
	chain := &nft.Chain{Name: p.ChainName()}
	switch p.Kind {
	case layout.Internal:
		chain.Rules = append(c.masqueradeInternal(f), nft.Rule{nft.Goto(choose(p, false))})
	case layout.InternalLocal:
		chain.Rules = append(c.masqueradeInternal(f), nft.Rule{nft.Goto(choose(p, true))})
	case layout.External:
		chain.Rules = []nft.Rule{{nft.Jump(layout.MarkChain)}, {nft.Goto(choose(p, false))}}
	case layout.ExternalFallback:
		if pods := c.Pods[f]; !pods.None() {
			chain.Rules = []nft.Rule{{pods.Stmt(false), nft.Goto(choose(p, false))}}
		}
		chain.Rules = append(chain.Rules, nft.Rule{nft.Jump(layout.MarkChain)}, nft.Rule{nft.Goto(choose(p, false))})
	case layout.ExternalLocal:
		chain.Rules = c.externalLocalRules(p, f)
	case layout.Dropped: // with Resets
		chain.Rules = notLocal(p)
	}
	return chain
}

// externalLocalRules keep the source of outside clients and serve them from this node
// alone. Pods and the node itself are inside: they get the cluster-wide list.
func (c *Config) externalLocalRules(p layout.Policy, f nft.Family) []nft.Rule {
	var rules []nft.Rule
	if pods := c.Pods[f]; !pods.None() {
		rules = append(rules, nft.Rule{pods.Stmt(false), nft.Goto(choose(p, false))})
	}
	rules = append(rules, nft.Rule{nft.AddressLocal{Of: nft.Source}, nft.Goto(p.Everywhere().ChainName())})
	switch {
	case p.Router:
		return rules
	case p.Local == 0:
		return append(rules, notLocal(p)...)
	}
	return append(rules, nft.Rule{nft.Goto(choose(p, true))})
}

// notLocal are the rules for whom a traffic policy Local leaves no endpoint.
func notLocal(p layout.Policy) []nft.Rule {
	drop := nft.Rule{nft.Goto(layout.DropNotLocalChain)}
	if p.Resets {
		return []nft.Rule{{nft.RejectTCP{MidFlow: true}}, drop}
	}
	return []nft.Rule{drop}
}

// masqueradeInternal marks connections to a cluster IP whose replies would not come back
// through this node by themselves.
func (c *Config) masqueradeInternal(f nft.Family) []nft.Rule {
	pods := c.Pods[f]
	switch {
	case c.MasqueradeAll:
		return []nft.Rule{{nft.Jump(layout.MarkChain)}}
	case pods.None():
		// A connection of the node has a cluster IP as its source if that is an address of the node, as on kube-ipvs0.
		return []nft.Rule{{nft.InSet{Key: []nft.Part{nft.Source}, Set: layout.ClusterIPsSet}, nft.Jump(layout.MarkChain)}}
	}
	return []nft.Rule{{pods.Stmt(true), nft.Jump(layout.MarkChain)}}
}

// choose names the chain that picks an endpoint, without session affinity.
func choose(p layout.Policy, local bool) string {
	if p.List != 0 {
		return layout.ListChain(p.List, local)
	}
	return balanceOf(p, local).Name()
}

// balanceOf returns the choice among the endpoints of one of the two lists that the policy uses.
func balanceOf(p layout.Policy, local bool) lists.Balance {
	b := lists.Balance{NodePort: p.NodePort, Local: local, Capacity: p.Cluster, Hash: p.Hash}
	if local {
		b.Capacity = p.Local
	}
	return b
}

// nextPolicies lists the policies whose chains the policy's own chain goes to.
func nextPolicies(p layout.Policy) []layout.Policy {
	switch {
	case p.SourceRanges != 0:
		return []layout.Policy{p.Open()}
	case p.Kind == layout.ExternalLocal && p.Affinity == 0:
		return []layout.Policy{p.Everywhere()}
	}
	return nil
}

// balancesOf lists the choosing chains that the policy's own chain goes to. With affinity or shared
// lists they belong to the Service port.
func balancesOf(p layout.Policy) (used []lists.Balance) {
	if p.SourceRanges != 0 || p.Affinity != 0 || p.List != 0 {
		return nil
	}
	for _, b := range []lists.Balance{balanceOf(p, false), balanceOf(p, true)} {
		if b.Capacity > 0 {
			used = append(used, b)
		}
	}
	return used
}
