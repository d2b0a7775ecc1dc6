package services

import (
	"strconv"

	"github.com/kube-nft/kube-nft/nft"
)

// A policy says what happens to a new connection to a frontend. Frontends of equal policy
// share its chains, whichever Services they belong to.
type policy struct {
	kind     policyKind
	nodePort bool   // the frontend is a node port
	guard    uint32 // the number of the guard whose sources alone may connect; 0 for none
	// list is the number of the Service port's shared lists; 0 if each frontend has its own.
	list uint32
	// cluster and local are the capacities of the two lists of endpoints.
	cluster, local int
	// affinity is the number of the Service port's affinity; 0 without affinity.
	affinity uint32
}

type policyKind uint8

const (
	refused       policyKind = iota + 1 // no endpoint anywhere: reject
	dropped                             // endpoints, but none that the traffic policy allows: drop, guard or not
	internal                            // a cluster IP: cluster-wide list
	internalLocal                       // a cluster IP with internal policy Local: local list
	external                            // cluster-wide list, always masqueraded
	externalLocal                       // external policy Local
)

// verdict is the element that sends a connection to the policy's chain.
func (p policy) verdict() *nft.Verdict {
	if p.kind == dropped {
		return &nft.Drop
	}
	return gotoChain(p.chainName())
}

func gotoChain(name string) *nft.Verdict {
	v := nft.Goto(name)
	return &v
}

// noneSuffix ends the name of an external policy Local without an endpoint on this node.
const noneSuffix = "-none"

// guardedPrefix is how the names of guarded policies begin; the number of the guard follows.
const guardedPrefix = "guarded-"

// chainName names a chain after what it does: the kind of frontend and the lengths of its
// lists, or the Service port whose affinity it keeps.
func (p policy) chainName() string {
	name := p.openName()
	if p.guard != 0 {
		return guardedPrefix + strconv.FormatUint(uint64(p.guard), 10) + "-" + name
	}
	return name
}

func (p policy) openName() string {
	switch p.kind {
	case refused:
		return rejectChain
	case internal:
		return "cluster-" + p.suffix(p.cluster)
	case internalLocal:
		return "cluster-local-" + p.suffix(p.local)
	case external:
		return p.prefix() + p.suffix(p.cluster)
	default:
		return p.prefix() + "local-" + p.bothSuffix()
	}
}

func (p policy) prefix() string {
	if p.nodePort {
		return "node-port-"
	}
	return "external-"
}

func (p policy) suffix(n int) string {
	if p.affinity != 0 {
		return affinityPrefix + strconv.FormatUint(uint64(p.affinity), 10)
	}
	if p.list != 0 {
		return sharedPrefix + strconv.FormatUint(uint64(p.list), 10)
	}
	return strconv.Itoa(n)
}

func (p policy) bothSuffix() string {
	if p.affinity == 0 && p.list == 0 {
		return strconv.Itoa(p.cluster) + "-" + strconv.Itoa(p.local)
	}
	if p.local == 0 {
		return p.suffix(0) + noneSuffix
	}
	return p.suffix(0)
}

// ownedByAffinity reports whether the policy's chain comes and goes with the affinity of its Service
// port.
func (p policy) ownedByAffinity() bool { return p.affinity != 0 && p.guard == 0 }

// open is the policy behind the guard.
func (p policy) open() policy {
	p.guard = 0
	return p
}

// everywhere is the policy for clients to whom external policy Local does not apply, but
// who need masquerading: this node itself.
func (p policy) everywhere() policy {
	p.kind, p.local = external, 0
	return p
}

// chain declares the chain of a policy without a guard; guardChain is for a policy with one.
func (p policy) chain(c *Config, f nft.Family) *nft.Chain {
	chain := &nft.Chain{Name: p.chainName()}
	switch p.kind {
	case internal:
		chain.Rules = append(c.masqueradeInternal(f), nft.Rule{nft.Goto(p.choose(false))})
	case internalLocal:
		chain.Rules = append(c.masqueradeInternal(f), nft.Rule{nft.Goto(p.choose(true))})
	case external:
		chain.Rules = []nft.Rule{{nft.Jump(markChain)}, {nft.Goto(p.choose(false))}}
	case externalLocal:
		chain.Rules = p.externalLocalRules(c, f)
	}
	return chain
}

// externalLocalRules keep the source of outside clients and serve them from this node
// alone. Pods and the node itself are inside: they get the cluster-wide list.
func (p policy) externalLocalRules(c *Config, f nft.Family) []nft.Rule {
	var rules []nft.Rule
	if pods := c.Pods[f]; !pods.none() {
		rules = append(rules, nft.Rule{pods.stmt(false), nft.Goto(p.choose(false))})
	}
	rules = append(rules, nft.Rule{nft.SourceLocal{}, nft.Goto(p.everywhere().chainName())})
	if p.local == 0 {
		return append(rules, nft.Rule{nft.Drop})
	}
	return append(rules, nft.Rule{nft.Goto(p.choose(true))})
}

// masqueradeInternal marks connections to a cluster IP whose replies would not come back
// through this node by themselves.
func (c *Config) masqueradeInternal(f nft.Family) []nft.Rule {
	pods := c.Pods[f]
	switch {
	case c.MasqueradeAll:
		return []nft.Rule{{nft.Jump(markChain)}}
	case pods.none():
		return nil
	}
	return []nft.Rule{{pods.stmt(true), nft.Jump(markChain)}}
}

// choose names the chain that picks an endpoint, without session affinity.
func (p policy) choose(local bool) string {
	list := listOf(p.nodePort, local)
	if p.list != 0 {
		return sharedChainName(p.list, local)
	}
	if local {
		return balance{list, p.local}.name()
	}
	return balance{list, p.cluster}.name()
}

// next lists the policies whose chains the policy's own chain goes to.
func (p policy) next() []policy {
	switch {
	case p.guard != 0:
		return []policy{p.open()}
	case p.kind == externalLocal && p.affinity == 0:
		return []policy{p.everywhere()}
	}
	return nil
}

// balances lists the choosing chains that the policy's own chain goes to. With affinity or shared
// lists they belong to the Service port.
func (p policy) balances() []balance {
	if p.guard != 0 || p.affinity != 0 || p.list != 0 {
		return nil
	}
	cluster, local := balance{listOf(p.nodePort, false), p.cluster}, balance{listOf(p.nodePort, true), p.local}
	switch {
	case p.kind == internal, p.kind == external:
		return []balance{cluster}
	case p.kind == internalLocal:
		return []balance{local}
	case p.kind == externalLocal && p.local > 0:
		return []balance{cluster, local}
	case p.kind == externalLocal:
		return []balance{cluster}
	}
	return nil
}
