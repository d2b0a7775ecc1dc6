package layout

import (
	"strconv"
	"strings"

	"github.com/kube-nft/kube-nft/nft"
)

// A Policy says what happens to a new connection to a frontend. Frontends of equal policy
// share its chains, whichever Services they belong to.
type Policy struct {
	Kind     PolicyKind
	NodePort bool // the frontend is a node port
	// Router says of an external policy Local without an endpoint on this node that packets from outside
	// pass; otherwise they are dropped.
	Router bool
	// Resets says of a policy Local without an endpoint on this node that segments of connections under way are
	// answered with a reset; otherwise they are dropped as new connections are.
	Resets bool
	// SourceRanges is the number of the source ranges from which clients may connect; 0 if every client may.
	SourceRanges uint32
	// NodePasses says that this node may connect, too, whatever the source ranges: as it may to its node ports.
	NodePasses bool
	// List is the number of the Service port's shared lists; 0 if each frontend has its own.
	List uint32
	// Cluster and Local are the capacities of the two lists of endpoints: their lengths, or a little more.
	Cluster, Local int
	// Affinity is the number of the Service port's affinity; 0 without affinity.
	Affinity uint32
	// Hash says what the endpoint follows from. With shared lists or affinity, chains of the Service port
	// say it instead.
	Hash Hash
}

// A Hash says what of a client's the endpoint follows from.
type Hash uint8

// The hashes.
const (
	NoHash          Hash = iota // the endpoint is chosen by chance
	HashAddressPort             // address and source port
	HashAddress                 // address alone
)

// String names what is hashed as the annotation kube-nft.io/hash does; empty for NoHash.
func (h Hash) String() string {
	switch h {
	case HashAddressPort:
		return nft.HashAddressPort
	case HashAddress:
		return nft.HashAddress
	}
	return ""
}

// Infix stands in the names of chains before the number of slots; it is empty for NoHash.
func (h Hash) Infix() string {
	switch h {
	case HashAddressPort:
		return "maglev-"
	case HashAddress:
		return "maglev-ip-"
	}
	return ""
}

// A PolicyKind is what a Policy does, as far as it follows from traffic policies and endpoints.
type PolicyKind uint8

// The kinds.
const (
	Refused       PolicyKind = iota + 1 // no endpoint on any node: reject
	Dropped                             // endpoints, but none that the traffic policy allows: drop
	Internal                            // a cluster IP: cluster-wide list
	InternalLocal                       // a cluster IP with internal policy Local: local list
	External                            // cluster-wide list, always masqueraded
	ExternalLocal                       // external policy Local
	// external policy Local without local endpoints: cluster-wide list, pods are not masqueraded
	ExternalFallback
	Passed // no endpoint on any node, at an address of ipMode Router: packets pass on
)

// Verdict is the verdict that sends a connection to the policy's chain.
func (p Policy) Verdict() *nft.Verdict { return new(nft.Goto(p.ChainName())) }

// noneSuffix ends the name of an external policy Local without an endpoint on this node.
const noneSuffix = "-none"

// routerPrefix is how the names of policies Local begin at addresses of ipMode Router, without an
// endpoint on this node.
const routerPrefix = "router-local-"

// resetInfix stands in the names of external policies Local with Resets.
const resetInfix = "reset-local-"

// sourceRangesPrefix begins the names of policies with source ranges; the number of the ranges follows.
const sourceRangesPrefix = "source-ranges-"

// sourceRangesNodePortPrefix begins those with NodePasses.
const sourceRangesNodePortPrefix = "source-ranges-node-port-"

// SourceRangesChain names the chain of the source ranges with a number.
func SourceRangesChain(number uint32) string {
	return sourceRangesPrefix + strconv.FormatUint(uint64(number), 10)
}

// ChainName names a chain after what it does: the kind of frontend and the lengths of its
// lists, or the Service port whose affinity it keeps.
func (p Policy) ChainName() string {
	name := p.openName()
	if p.SourceRanges != 0 {
		prefix := sourceRangesPrefix
		if p.NodePasses {
			prefix = sourceRangesNodePortPrefix
		}
		return prefix + strconv.FormatUint(uint64(p.SourceRanges), 10) + "-" + name
	}
	return name
}

func (p Policy) openName() string {
	switch p.Kind {
	case Refused:
		return RejectChain
	case Dropped:
		if p.Resets {
			return ResetNotLocalChain
		}
		return DropNotLocalChain
	case Passed:
		return PassChain
	case Internal:
		return "cluster-" + p.suffix(p.Cluster)
	case InternalLocal:
		return "cluster-local-" + p.suffix(p.Local)
	case External:
		return p.prefix() + p.suffix(p.Cluster)
	case ExternalFallback:
		return p.prefix() + "fallback-" + p.suffix(p.Cluster)
	default:
		if p.Router {
			return routerPrefix + p.bothSuffix()
		}
		if p.Resets {
			return p.prefix() + resetInfix + p.bothSuffix()
		}
		return p.prefix() + "local-" + p.bothSuffix()
	}
}

func (p Policy) prefix() string {
	if p.NodePort {
		return "node-port-"
	}
	return "external-"
}

func (p Policy) suffix(n int) string {
	if p.Affinity != 0 {
		return AffinityPrefix + strconv.FormatUint(uint64(p.Affinity), 10)
	}
	if p.List != 0 {
		return sharedPrefix + strconv.FormatUint(uint64(p.List), 10)
	}
	return p.Hash.Infix() + strconv.Itoa(n)
}

func (p Policy) bothSuffix() string {
	if p.Affinity == 0 && p.List == 0 {
		return p.Hash.Infix() + strconv.Itoa(p.Cluster) + "-" + strconv.Itoa(p.Local)
	}
	if p.Local == 0 {
		return p.suffix(0) + noneSuffix
	}
	return p.suffix(0)
}

// Open is the policy for a client in the source ranges.
func (p Policy) Open() Policy {
	p.SourceRanges, p.NodePasses = 0, false
	return p
}

// Everywhere is the policy for clients to whom external policy Local does not apply, but
// who need masquerading: this node itself.
func (p Policy) Everywhere() Policy {
	p.Kind, p.Local, p.Router, p.Resets = External, 0, false, false
	return p
}

// policyPrefixes are how the names of policy chains begin; longer ones first.
var policyPrefixes = []struct {
	text     string
	kind     PolicyKind
	nodePort bool
}{
	{"cluster-local-", InternalLocal, false},
	{"cluster-", Internal, false},
	{"external-local-", ExternalLocal, false},
	{"external-fallback-", ExternalFallback, false},
	{routerPrefix, ExternalLocal, false},
	{"external-" + resetInfix, ExternalLocal, false},
	{"external-", External, false},
	{"node-port-" + resetInfix, ExternalLocal, true},
	{"node-port-local-", ExternalLocal, true},
	{"node-port-fallback-", ExternalFallback, true},
	{"node-port-", External, true},
}

// PolicyOf reads a policy back from its verdict.
func PolicyOf(verdict nft.Verdict) (p Policy, ok bool) {
	if verdict.Kind != nft.VerdictGoto {
		return p, false
	}
	return PolicyOfChain(verdict.Chain)
}

// PolicyOfChain reads a policy back from the name of its chain.
func PolicyOfChain(chain string) (p Policy, ok bool) {
	name := chain
	rest, limited := strings.CutPrefix(chain, sourceRangesNodePortPrefix)
	if p.NodePasses = limited; !limited {
		rest, limited = strings.CutPrefix(chain, sourceRangesPrefix)
	}
	if limited {
		number, behind, _ := strings.Cut(rest, "-")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || n == 0 {
			return p, false
		}
		p.SourceRanges, name = uint32(n), behind
	}
	for _, fixed := range []Policy{{Kind: Refused}, {Kind: Dropped}, {Kind: Dropped, Resets: true}, {Kind: Passed}} {
		if p.Kind, p.Resets = fixed.Kind, fixed.Resets; name == p.openName() {
			return p, p.ChainName() == chain
		}
	}
	p.Kind = 0
	for _, prefix := range policyPrefixes {
		if suffix, ok := strings.CutPrefix(name, prefix.text); ok {
			p.Kind, p.NodePort, p.Router = prefix.kind, prefix.nodePort, prefix.text == routerPrefix
			p.Resets = strings.HasSuffix(prefix.text, resetInfix)
			p.readSuffix(suffix)
			return p, p.ChainName() == chain
		}
	}
	return p, false
}

// AffinityChains lists the names that the chains of a Service port with affinity may have that look for entries; number
// is that of the affinity, in decimal digits.
func AffinityChains(number string) (names []string) {
	for _, prefix := range policyPrefixes {
		names = append(names, prefix.text+AffinityPrefix+number, prefix.text+AffinityPrefix+number+noneSuffix)
	}
	return append(names, followPrefix+number, followPrefix+LocalInfix(true)+number)
}

// readSuffix reads the lengths of the lists, or the number of shared lists or of the affinity.
func (p *Policy) readSuffix(suffix string) {
	for _, hash := range []Hash{HashAddress, HashAddressPort} { // the longer infix first
		if rest, ok := strings.CutPrefix(suffix, hash.Infix()); ok {
			p.Hash, suffix = hash, rest
			break
		}
	}
	first, second, both := strings.Cut(suffix, "-")
	n, err := strconv.Atoi(first)
	m, secondErr := strconv.Atoi(second)
	switch {
	case err == nil && !both && p.Kind == InternalLocal:
		p.Local = n
	case err == nil && !both:
		p.Cluster = n
	case err == nil && secondErr == nil && p.Kind == ExternalLocal:
		p.Cluster, p.Local = n, m
	default:
		p.Local = 1
		if without, none := strings.CutSuffix(suffix, noneSuffix); none && p.Kind == ExternalLocal {
			suffix, p.Local = without, 0
		}
		if number, shared := strings.CutPrefix(suffix, sharedPrefix); shared {
			n, _ := strconv.ParseUint(number, 10, 32)
			p.List, p.Cluster = uint32(n), 1
		}
		if number, found := strings.CutPrefix(suffix, AffinityPrefix); found {
			n, _ := strconv.ParseUint(number, 10, 32)
			p.Affinity, p.Cluster = uint32(n), 1
		}
		switch p.Kind {
		case InternalLocal:
			p.Cluster = 0
		case Internal, External, ExternalFallback:
			p.Local = 0
		}
	}
}
