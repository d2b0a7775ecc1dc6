package services

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// A ReadBack is a table that was read from the kernel, seen as Services. What it says depends
// on nothing that anybody wants.
type ReadBack struct{ *nft.Table }

// NewReadBack returns the read-back of a table, with its rules as statements.
func NewReadBack(t *nft.Table) *ReadBack { return &ReadBack{t.Typed()} }

// A PortName names a Service port as the comment of its elements does. The comment holds
// 127 bytes: of very long names the end is missing.
type PortName struct{ Namespace, Name, Port string }

// String returns "namespace/name:port", without the colon if the port has no name.
func (n PortName) String() string {
	if n == (PortName{}) { // an element of somebody else, without a comment
		return "(unknown)"
	}
	if n.Port == "" {
		return n.Namespace + "/" + n.Name
	}
	return n.Namespace + "/" + n.Name + ":" + n.Port
}

// parsePortName reads what comment wrote.
func parsePortName(comment string) (n PortName) {
	n.Namespace, n.Name, _ = strings.Cut(comment, "/")
	n.Name, n.Port, _ = strings.Cut(n.Name, ":")
	return n
}

// A Programmed is a frontend as a table holds it: what Services returns of a table that was
// read from the kernel depends on nothing that anybody wants.
type Programmed struct {
	tracker.Frontend
	Name PortName
	// Kind is KindClusterIP, KindExternalIP or KindNodePort.
	Kind string
	// Policy is what becomes of connections, in words.
	Policy string
	// Verdict is the verdict of the frontend's element.
	Verdict nft.Verdict
	// Cluster and Local are the lists of endpoints, in the order of their indexes.
	Cluster, Local []netip.AddrPort
	// HasLocal says that there is a list of local endpoints, which may be empty.
	HasLocal bool
	// Affinity is the timeout of an affinity entry; 0: no session affinity.
	Affinity time.Duration
	// AffinityGroups say where the entries of the Service port stand, which all its frontends share.
	AffinityGroups []AffinityGroup
}

// Kinds of frontends, as far as a table tells them apart: it has external IPs and load-balancer
// IPs in the same elements.
const (
	KindClusterIP  = "cluster IP"
	KindExternalIP = "external IP"
	KindNodePort   = "node port"
)

// An AffinityGroup says where the entries for the endpoints with one port stand: in a map that other
// Service ports use too, under a number.
type AffinityGroup struct {
	Map    string
	Number uint32
	Port   uint16
	Local  bool // for connections that local endpoints alone are chosen for
}

// Endpoints returns the distinct endpoints of both lists.
func (s *Programmed) Endpoints() []netip.AddrPort {
	all := slices.Clone(s.Cluster)
	for _, ep := range s.Local {
		if !slices.Contains(all, ep) {
			all = append(all, ep)
		}
	}
	return all
}

// Frontends lists the frontends by name, kind and address.
func (t ReadBack) Frontends() []Programmed {
	var list []Programmed
	for _, set := range []string{servicesMap, nodePortsMap} {
		held := t.Sets[set]
		if held == nil {
			continue
		}
		for key, element := range held.Map {
			list = append(list, t.programmed(set, key, element))
		}
	}
	slices.SortFunc(list, func(a, b Programmed) int {
		return cmp.Or(strings.Compare(a.Name.Namespace, b.Name.Namespace), strings.Compare(a.Name.Name, b.Name.Name),
			strings.Compare(a.Name.Port, b.Name.Port), strings.Compare(a.Kind, b.Kind), a.Frontend.Compare(b.Frontend))
	})
	return list
}

func (t ReadBack) programmed(set, key string, element nft.Element) Programmed {
	s := Programmed{Frontend: frontendIn(t.Family, set, key), Name: parsePortName(element.Comment), Verdict: verdictOf(element)}
	if number := t.sharedList(s.Verdict); number != 0 {
		p, _ := policyOf(s.Verdict)
		if p.kind != internalLocal {
			s.Cluster = t.list(listsMap(number), listKey(number, false))
		}
		if p.kind == internalLocal || p.kind == externalLocal {
			s.Local = t.list(listsMap(number), listKey(number, true))
		}
	} else {
		s.Cluster = t.list(listOf(s.NodePort(), false).Map, key)
		s.Local = t.list(listOf(s.NodePort(), true).Map, key)
	}
	t.findAffinity(&s, key)
	s.Kind = t.kindOf(s.Frontend)
	s.Policy = policyWords(s.Verdict, s.Affinity)
	s.HasLocal = hasLocal(s.Verdict)
	return s
}

// sharedList is the number of the shared lists that a verdict leads to; 0 if it leads to none. With
// affinity, the chain of the Service port tells.
func (t ReadBack) sharedList(v nft.Verdict) uint32 {
	p, _ := policyOf(v)
	if p.affinity == 0 {
		return p.list
	}
	chain := t.Chains[p.open().chainName()]
	if chain == nil {
		return 0
	}
	for _, rule := range chain.Rules {
		next, _ := last(rule).(nft.Verdict)
		name, shared := strings.CutPrefix(next.Chain, "pick-"+sharedPrefix)
		if n, err := strconv.ParseUint(strings.TrimPrefix(name, localInfix(true)), 10, 32); shared && err == nil {
			return uint32(n)
		}
	}
	return 0
}

func (t ReadBack) kindOf(f tracker.Frontend) string {
	switch {
	case f.NodePort():
		return KindNodePort
	case t.Sets[clusterIPsSet] != nil:
		if _, ok := t.Sets[clusterIPsSet].Map[nft.AddrKey(f.Address)]; ok {
			return KindClusterIP
		}
	}
	return KindExternalIP
}

// NodePortAddresses returns the addresses at which tables serve node ports, sorted; none of a family
// whose node ports are served at all addresses.
func NodePortAddresses(tables nft.Tables) (addrs []netip.Addr) {
	for _, table := range tables {
		if held := table.Sets[nodePortAddressesSet]; held != nil {
			for key := range held.Map {
				if addr, ok := netip.AddrFromSlice([]byte(key)); ok {
					addrs = append(addrs, addr)
				}
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// findAffinity finds the entries of the frontend's Service port: those that its chain updates.
func (t ReadBack) findAffinity(s *Programmed, key string) {
	set := affinityFrontendsMap
	if s.NodePort() {
		set = affinityNodePortsMap
	}
	held := t.Sets[set]
	if held == nil {
		return
	}
	chain := t.Chains[verdictOf(held.Map[key]).Chain]
	if chain == nil {
		return
	}
	for _, rule := range chain.Rules {
		if r, ok := last(rule).(nft.Update); ok {
			number := nft.NumberIn(r.Key)
			s.Affinity = r.Duration()
			s.AffinityGroups = append(s.AffinityGroups, AffinityGroup{
				Map: r.Map, Number: number, Port: t.portOf(strings.TrimPrefix(chain.Name, updatePrefix), number), Local: isLocalNumber(number),
			})
		}
	}
}

// portOf is the port of a group of endpoints, to which the chains of its Service port rewrite; 0 if
// none of them uses the group.
func (t ReadBack) portOf(affinity string, number uint32) uint16 {
	for _, prefix := range policyPrefixes {
		for _, suffix := range []string{"", noneSuffix} {
			chain := t.Chains[prefix.text+affinityPrefix+affinity+suffix]
			if chain == nil {
				continue
			}
			for _, rule := range chain.Rules {
				if dnat, ok := last(rule).(nft.DNATFrom); ok && nft.NumberIn(dnat.Key) == number {
					return dnat.ToPort
				}
			}
		}
	}
	return 0
}

// verdictOf is the verdict of an element; the zero Verdict if there is none.
func verdictOf(e nft.Element) (v nft.Verdict) {
	if e.Verdict != nil {
		v = *e.Verdict
	}
	return v
}

// last is the statement that ends a rule; nil if the rule is empty.
func last(rule nft.Rule) nft.Stmt {
	if len(rule) == 0 {
		return nil
	}
	return rule[len(rule)-1]
}

// hasLocal reports whether a frontend's verdict chooses among local endpoints.
func hasLocal(verdict nft.Verdict) bool {
	p, ok := policyOf(verdict)
	return ok && (p.kind == internalLocal || p.kind == externalLocal || p.kind == dropped)
}

// policyWords says in words what a frontend's verdict means.
func policyWords(verdict nft.Verdict, affinity time.Duration) string {
	p, ok := policyOf(verdict)
	if !ok {
		return "unknown: " + verdict.String()
	}
	words := p.words()
	if p.guard != 0 {
		words += ", ranges"
	}
	if affinity > 0 {
		words += ", affinity " + nft.DurationText(affinity)
	}
	return words
}

func (p policy) words() string {
	switch p.kind {
	case refused:
		return "reject: no endpoint"
	case dropped:
		return "drop: none local"
	case internalLocal:
		return "local endpoints"
	case externalLocal:
		if p.local == 0 {
			return "outside: drop, none local"
		}
		return "outside local"
	}
	return "all endpoints"
}

// policyPrefixes are how the names of policy chains begin; longer ones first.
var policyPrefixes = []struct {
	text     string
	kind     policyKind
	nodePort bool
}{
	{"cluster-local-", internalLocal, false},
	{"cluster-", internal, false},
	{"external-local-", externalLocal, false},
	{"external-", external, false},
	{"node-port-local-", externalLocal, true},
	{"node-port-", external, true},
}

// policyOf reads a policy back from its verdict.
func policyOf(verdict nft.Verdict) (p policy, ok bool) {
	switch verdict.Kind {
	case nft.VerdictDrop:
		return policy{kind: dropped}, true
	case nft.VerdictGoto:
		return policyOfChain(verdict.Chain)
	}
	return p, false
}

// policyOfChain reads a policy back from the name of its chain.
func policyOfChain(chain string) (p policy, ok bool) {
	name := chain
	if rest, guarded := strings.CutPrefix(chain, guardedPrefix); guarded {
		number, behind, _ := strings.Cut(rest, "-")
		n, err := strconv.ParseUint(number, 10, 32)
		if err != nil || n == 0 {
			return p, false
		}
		p.guard, name = uint32(n), behind
	}
	if name == rejectChain {
		p.kind = refused
		return p, p.chainName() == chain
	}
	for _, prefix := range policyPrefixes {
		if suffix, ok := strings.CutPrefix(name, prefix.text); ok {
			p.kind, p.nodePort = prefix.kind, prefix.nodePort
			p.readSuffix(suffix)
			return p, p.chainName() == chain
		}
	}
	return p, false
}

// readSuffix reads the lengths of the lists, or the number of shared lists or of the affinity.
func (p *policy) readSuffix(suffix string) {
	first, second, both := strings.Cut(suffix, "-")
	n, err := strconv.Atoi(first)
	m, secondErr := strconv.Atoi(second)
	switch {
	case err == nil && !both && p.kind == internalLocal:
		p.local = n
	case err == nil && !both:
		p.cluster = n
	case err == nil && secondErr == nil && p.kind == externalLocal:
		p.cluster, p.local = n, m
	default:
		p.local = 1
		if without, none := strings.CutSuffix(suffix, noneSuffix); none && p.kind == externalLocal {
			suffix, p.local = without, 0
		}
		if number, shared := strings.CutPrefix(suffix, sharedPrefix); shared {
			n, _ := strconv.ParseUint(number, 10, 32)
			p.list, p.cluster = uint32(n), 1
		}
		if number, found := strings.CutPrefix(suffix, affinityPrefix); found {
			n, _ := strconv.ParseUint(number, 10, 32)
			p.affinity, p.cluster = uint32(n), 1
		}
		switch p.kind {
		case internalLocal:
			p.cluster = 0
		case internal, external:
			p.local = 0
		}
	}
}

// PolicyChains counts the chains that say what a kind of frontend does.
func (t ReadBack) PolicyChains() (n int) {
	for name := range t.Chains {
		if _, ok := policyOfChain(name); ok {
			n++
		}
	}
	return n
}

// RawRules counts the rules that no kube-nft writes.
func (t ReadBack) RawRules() (n int) {
	for _, chain := range t.Chains {
		for _, rule := range chain.Rules {
			if _, raw := last(rule).(nft.Raw); raw {
				n++
			}
		}
	}
	return n
}
