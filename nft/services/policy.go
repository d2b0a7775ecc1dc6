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

// ways are where the clients of a policy go. Those of sharedWays are for chains that Service ports share, those of
// affinityWays look for the client's entry first.
type ways struct {
	masquerade []nft.Rule // marks connections to a cluster IP whose replies would not come back through this node
	// choose sends clients that match who to an endpoint of a list.
	choose func(local bool, who ...nft.Stmt) []nft.Rule
	// everywhere sends clients to any endpoint that are marked for masquerading or must not be; pods sends pods.
	everywhere, pods func(who ...nft.Stmt) []nft.Rule
	node             func() []nft.Rule // marks connections of this node, and sends them to any endpoint
}

// policyChain declares the chain of a policy; limitedChain is for one with source ranges. An external policy Local
// keeps the source of outside clients and serves them from this node alone. Pods and the node itself are inside: they
// get the cluster-wide list.
func (c *Config) policyChain(p layout.Policy, f nft.Family, w ways) *nft.Chain {
	chain := &nft.Chain{Name: p.ChainName()}
	add := func(rules ...nft.Rule) { chain.Rules = append(chain.Rules, rules...) }
	if pods := c.Pods[f]; !pods.None() && (p.Kind == layout.ExternalFallback || p.Kind == layout.ExternalLocal) {
		add(w.pods(pods.Stmt(false))...)
	}
	switch p.Kind {
	case layout.Internal, layout.InternalLocal:
		add(w.masquerade...)
		add(w.choose(p.Kind == layout.InternalLocal)...)
	case layout.External, layout.ExternalFallback:
		add(nft.Rule{nft.Jump(layout.MarkChain)})
		add(w.everywhere()...)
	case layout.ExternalLocal:
		add(w.node()...)
		switch {
		case p.Router:
		case p.Local == 0:
			add(notLocal(p)...)
		default:
			add(w.choose(true)...)
		}
	case layout.Dropped: // with Resets
		add(notLocal(p)...)
	}
	return chain
}

// sharedWays are those of a policy without session affinity.
func (c *Config) sharedWays(p layout.Policy, f nft.Family) ways {
	choose := func(local bool, who ...nft.Stmt) []nft.Rule {
		chain := balanceOf(p, local).Name()
		if p.List != 0 {
			chain = layout.ListChain(p.List, local)
		}
		return []nft.Rule{append(nft.Rule(who), nft.Goto(chain))}
	}
	everywhere := func(who ...nft.Stmt) []nft.Rule { return choose(false, who...) }
	node := func() []nft.Rule {
		return []nft.Rule{{nft.AddressLocal{Of: nft.Source}, nft.Goto(p.Everywhere().ChainName())}}
	}
	return ways{masquerade: c.masqueradeInternal(f), choose: choose, everywhere: everywhere, pods: everywhere, node: node}
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
