package nft

import "strconv"

// A policy says what happens to a new connection to a frontend. Frontends of equal policy
// share its chains, whichever Services they belong to.
type policy struct {
	kind     policyKind
	nodePort bool // the frontend is a node port
	guarded  bool // only the sources in allowedSourcesSet may connect
	// cluster and local are the capacities of the two lists of endpoints.
	cluster, local int
	// sticky is the name of the Service port's affinity objects; empty without affinity.
	sticky string
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
func (p policy) verdict() *Verdict {
	if p.kind == dropped {
		return &Drop
	}
	return gotoChain(p.chainName())
}

func gotoChain(name string) *Verdict {
	v := Goto(name)
	return &v
}

// chainName names a chain after what it does: the kind of frontend and the lengths of its
// lists, or the Service port whose affinity it keeps.
func (p policy) chainName() string {
	name := p.openName()
	if p.guarded {
		return "guarded-" + name
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
	if p.sticky != "" {
		return p.sticky
	}
	return strconv.Itoa(n)
}

func (p policy) bothSuffix() string {
	if p.sticky == "" {
		return strconv.Itoa(p.cluster) + "-" + strconv.Itoa(p.local)
	}
	if p.local == 0 {
		return p.sticky + "-none"
	}
	return p.sticky
}

// open is the policy behind the guard.
func (p policy) open() policy {
	p.guarded = false
	return p
}

// everywhere is the policy for clients to whom external policy Local does not apply, but
// who need masquerading: this node itself.
func (p policy) everywhere() policy {
	p.kind, p.local = external, 0
	return p
}

// chain declares the policy's chain.
func (p policy) chain(c *Config, f Family) *Chain {
	chain := &Chain{Name: p.chainName()}
	if p.guarded {
		guard := Rule{InSet{Key: []Part{Destination, Protocol, Port, Source}, Set: allowedSourcesSet, Not: true}, Drop}
		chain.Rules = []Rule{guard, {Goto(p.open().chainName())}}
		return chain
	}
	switch p.kind {
	case internal:
		chain.Rules = append(c.masqueradeInternal(f), Rule{Goto(p.choose(false))})
	case internalLocal:
		chain.Rules = append(c.masqueradeInternal(f), Rule{Goto(p.choose(true))})
	case external:
		chain.Rules = []Rule{{Jump(markChain)}, {Goto(p.choose(false))}}
	case externalLocal:
		chain.Rules = p.externalLocalRules(c, f)
	}
	return chain
}

// externalLocalRules keep the source of outside clients and serve them from this node
// alone. Pods and the node itself are inside: they get the cluster-wide list.
func (p policy) externalLocalRules(c *Config, f Family) []Rule {
	var rules []Rule
	if pods := c.Pods[f]; !pods.none() {
		rules = append(rules, Rule{pods.stmt(false), Goto(p.choose(false))})
	}
	rules = append(rules, Rule{SourceLocal{}, Goto(p.everywhere().chainName())})
	if p.local == 0 {
		return append(rules, Rule{Drop})
	}
	return append(rules, Rule{Goto(p.choose(true))})
}

// masqueradeInternal marks connections to a cluster IP whose replies would not come back
// through this node by themselves.
func (c *Config) masqueradeInternal(f Family) []Rule {
	pods := c.Pods[f]
	switch {
	case c.MasqueradeAll:
		return []Rule{{Jump(markChain)}}
	case pods.none():
		return nil
	}
	return []Rule{{pods.stmt(true), Jump(markChain)}}
}

// choose names the chain that picks an endpoint: the shared one for the list's length, or
// the Service port's own when it remembers clients.
func (p policy) choose(local bool) string {
	list := listOf(p.nodePort, local)
	if p.sticky != "" {
		return stickName(p.nodePort, local, p.sticky)
	}
	if local {
		return pick{list, p.local}.name()
	}
	return pick{list, p.cluster}.name()
}

// stickName names the chain that sends a client to the endpoint it is remembered with.
func stickName(nodePort, local bool, sticky string) string {
	name := "stick-"
	if nodePort {
		name += "node-port-"
	}
	return name + localInfix(local) + sticky
}

// next lists the policies whose chains the policy's own chain goes to.
func (p policy) next() []policy {
	switch {
	case p.guarded:
		return []policy{p.open()}
	case p.kind == externalLocal:
		return []policy{p.everywhere()}
	}
	return nil
}

// picks lists the choosing chains that the policy's own chain goes to. With affinity they
// belong to the Service port.
func (p policy) picks() []pick {
	if p.guarded || p.sticky != "" {
		return nil
	}
	cluster, local := pick{listOf(p.nodePort, false), p.cluster}, pick{listOf(p.nodePort, true), p.local}
	switch {
	case p.kind == internal, p.kind == external:
		return []pick{cluster}
	case p.kind == internalLocal:
		return []pick{local}
	case p.kind == externalLocal && p.local > 0:
		return []pick{cluster, local}
	case p.kind == externalLocal:
		return []pick{cluster}
	}
	return nil
}
