package readback

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Table is a table seen as Services.
type Table struct {
	*nft.Table
	// LocalhostProxy says that the daemon serves the node ports of TCP at the loopback address. The table
	// does not show it.
	LocalhostProxy bool

	shared map[sharedList]List // as they have been read
}

// New returns the read-back of a table, with its rules as statements. It keeps what it has read: the table must not
// change.
func New(t *nft.Table) *Table { return &Table{Table: t.Typed(), shared: make(map[sharedList]List)} }

// A Frontend is a frontend of a Service port as a table holds it.
type Frontend struct {
	tracker.Frontend
	Name layout.PortName
	// Kind is KindClusterIP, KindLoadBalancerIP, KindExternalIP or KindNodePort.
	Kind string
	// Policy is what becomes of connections, in words.
	Policy string
	// Verdict is the verdict of the frontend's element.
	Verdict nft.Verdict
	// Cluster and Local are the lists of endpoints.
	Cluster, Local List
	// Hash says from what a hash chooses the endpoint; NoHash if chance chooses it.
	Hash layout.Hash
	// Options are the annotations that the Service port's comment shows, as "key: value".
	Options []string
	// Router says that a load-balancer IP has the ipMode Router.
	Router bool
	// HasLocal says that there is a list of local endpoints, which may be empty.
	HasLocal bool
	// Affinity is the timeout of an affinity entry; 0: no session affinity.
	Affinity time.Duration
	// AffinityGroups say where the affinity entries of the Service port stand. All its frontends share
	// them.
	AffinityGroups []AffinityGroup
}

// A List is a list of endpoints. Frontends that share it share its memory: there may be 10,000 of a Service, with 1,000
// endpoints.
type List struct {
	// Endpoints are in the order of their first indexes, each once. Their port is 0 if Port has it.
	Endpoints []netip.AddrPort
	Port      uint16
	// Places says how many places each endpoint has. Nil means one each. Weights and the slots of a hash give an endpoint
	// more.
	Places []int
}

// A sharedList names a list that frontends share.
type sharedList struct {
	number uint32
	local  bool
}

// Len is the number of endpoints.
func (l List) Len() int { return len(l.Endpoints) }

// All yields the endpoints with their ports.
func (l List) All() iter.Seq2[int, netip.AddrPort] {
	return func(yield func(int, netip.AddrPort) bool) {
		for i, ep := range l.Endpoints {
			if l.Port != 0 {
				ep = netip.AddrPortFrom(ep.Addr(), l.Port)
			}
			if !yield(i, ep) {
				return
			}
		}
	}
}

// Sorted returns the endpoints with their ports, sorted.
func (l List) Sorted() []netip.AddrPort {
	list := make([]netip.AddrPort, 0, l.Len())
	for _, ep := range l.All() {
		list = append(list, ep)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// AllPlaces returns how many places the list has.
func (l List) AllPlaces() (n int) {
	if l.Places == nil {
		return l.Len()
	}
	for _, places := range l.Places {
		n += places
	}
	return n
}

// Kinds of frontends. The comment of an element says that its address is a load balancer's; where the name
// of the Service port leaves no room for that, the kind is KindExternalIP.
const (
	KindClusterIP      = "cluster IP"
	KindLoadBalancerIP = "LB IP"
	KindExternalIP     = "external IP"
	KindNodePort       = "node port"
)

// kinds are in the order in which they are listed.
var kinds = []string{KindClusterIP, KindLoadBalancerIP, KindExternalIP, KindNodePort}

// An AffinityGroup says where the entries for the endpoints with one port stand: under a number, in a
// map that other Service ports use, too.
type AffinityGroup struct {
	Map    string
	Number uint32
	Port   uint16
	Local  bool // of connections that only local endpoints may serve
}

// Weighted reports whether chance or the hash prefers some endpoints to others. Without weights, the
// numbers of slots of a hash differ by one at most.
func (s *Frontend) Weighted() bool {
	for _, places := range [][]int{s.Cluster.Places, s.Local.Places} {
		if places != nil && (s.Hash == layout.NoHash || slices.Max(places)-slices.Min(places) > 1) {
			return true
		}
	}
	return false
}

// Derived are annotations that comments do not show, but chains and lists, and their words.
var Derived = [...]tracker.Option{
	{Word: "maglev", Annotation: tracker.AnnotationPrefix + "lb-algorithm: maglev"},
	{Word: "by source IP", Annotation: tracker.AnnotationPrefix + "hash: source-ip"},
	{Word: "weights", Annotation: tracker.AnnotationPrefix + "weight"},
	{Word: "ipMode Router", Annotation: tracker.AnnotationPrefix + "ip-mode: Router"},
}

// Annotations lists, as "key: value", what annotations ask of the Service port: Options, and those that are Derived.
// The weights of endpoints are listed without a value.
func (s *Frontend) Annotations() []string {
	all := slices.Clone(s.Options)
	for i, shown := range [len(Derived)]bool{
		s.Hash != layout.NoHash, s.Hash == layout.HashAddress, s.Weighted(), s.Router,
	} {
		if shown {
			all = append(all, Derived[i].Annotation)
		}
	}
	return all
}

// Endpoints returns the endpoints of both lists, without places.
func (s *Frontend) Endpoints() List {
	switch all := (List{Endpoints: s.Cluster.Endpoints, Port: s.Cluster.Port}); {
	case s.Local.Len() == 0:
		return all
	case s.Cluster.Len() == 0:
		return List{Endpoints: s.Local.Endpoints, Port: s.Local.Port}
	default: // both have the ports of their endpoints in one way
		all.Endpoints = distinct(slices.Concat(s.Cluster.Endpoints, s.Local.Endpoints)).Endpoints
		return all
	}
}

// Distinct returns how many endpoints frontends have.
func Distinct(frontends []Frontend) (n int) {
	apart, shared := make(map[netip.AddrPort]bool), make(map[uint16]map[*netip.AddrPort]List) // shared: by port
	for i := range frontends {
		for _, l := range []List{frontends[i].Cluster, frontends[i].Local} {
			switch {
			case l.Port != 0 && shared[l.Port] == nil:
				shared[l.Port] = map[*netip.AddrPort]List{&l.Endpoints[0]: l}
			case l.Port != 0:
				shared[l.Port][&l.Endpoints[0]] = l
			default:
				for _, ep := range l.Endpoints {
					apart[ep] = true
				}
			}
		}
	}
	n = len(apart)
	for _, lists := range shared {
		counted := make(map[netip.AddrPort]bool)
		for _, l := range lists {
			for _, ep := range l.All() {
				if !apart[ep] && !counted[ep] {
					counted[ep] = true
					n++
				}
			}
		}
	}
	return n
}

// Frontends lists the frontends by name, kind and address.
func (t Table) Frontends() []Frontend {
	var list []Frontend
	for _, set := range []string{layout.ServicesMap, layout.NodePortsMap} {
		for key, element := range t.Elements(set) {
			list = append(list, t.FrontendAt(set, key, element))
		}
	}
	slices.SortFunc(list, func(a, b Frontend) int {
		return cmp.Or(strings.Compare(a.Name.Namespace, b.Name.Namespace), strings.Compare(a.Name.Name, b.Name.Name),
			strings.Compare(a.Name.Port, b.Name.Port), cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)),
			a.Frontend.Compare(b.Frontend))
	})
	return list
}

// FrontendAt returns the frontend that an element of one of the table's sets stands for.
func (t Table) FrontendAt(set, key string, element nft.Element) Frontend {
	s := Frontend{Frontend: layout.FrontendIn(t.Family, set, key), Name: layout.ParsePortName(element.Comment),
		Options: layout.ParseOptions(element.Comment), Verdict: verdictOf(element)}
	p, ours := layout.PolicyOf(s.Verdict)
	if number := t.ListNumber(p); number != 0 {
		if p.Kind != layout.InternalLocal {
			s.Cluster = t.sharedList(number, false, s.Port)
		}
		if p.Kind == layout.InternalLocal || p.Kind == layout.ExternalLocal {
			s.Local = t.sharedList(number, true, s.Port)
		}
	} else {
		s.Cluster = distinct(t.Sets[layout.EndpointsMapOf(s.Frontend, false)].List(key))
		s.Local = distinct(t.Sets[layout.EndpointsMapOf(s.Frontend, true)].List(key))
	}
	t.findAffinity(&s, key)
	s.Router = layout.HasWord(element.Comment, layout.RouterWord)
	s.Kind = t.kindOf(s.Frontend, element.Comment)
	if ours {
		s.Hash = t.hash(p)
		s.HasLocal = p.Kind == layout.InternalLocal || p.Kind == layout.ExternalLocal || p.Kind == layout.Dropped
	}
	s.Policy = s.policyWords()
	if s.Router {
		s.Policy += ", ipMode Router"
	}
	return s
}

// SharedList returns the endpoints that a shared list's chain chooses from, in the order of their indexes, and the
// table in which they stand.
func (t Table) SharedList(number uint32, local bool) (list []netip.AddrPort, table layout.ListTable) {
	dnat, ok := t.listDNAT(number, local)
	if !ok {
		return nil, 0
	}
	n, _ := dnat.Key[0].Constant()
	_, _, table = layout.ListOfTable(n)
	return t.Sets[dnat.Map].List(layout.ListKey(number, local, table)), table
}

// sharedList returns the endpoints of a shared list to which connections to a port go.
func (t Table) sharedList(number uint32, local bool, port uint16) List {
	list, known := t.shared[sharedList{number, local}]
	if !known {
		endpoints, _ := t.SharedList(number, local)
		list = distinct(endpoints)
		t.shared[sharedList{number, local}] = list
	}
	if dnat, ok := t.listDNAT(number, local); ok && dnat.Ports != "" {
		if list.Port = t.Sets[dnat.Ports].Port(layout.JointPortKey(number, port)); list.Port == 0 {
			return List{} // no connection gets there
		}
	}
	return list
}

// listDNAT is the statement with which a shared list's chain chooses first.
func (t Table) listDNAT(number uint32, local bool) (dnat nft.DNATFrom, ok bool) {
	dnat, ok = t.firstDNAT(layout.ListChain(number, local))
	return dnat, ok && len(dnat.Key) == 2
}

// firstDNAT is the statement with which the first rule of a chain ends, if it translates. The chain of a shared list
// with slots goes to that of the slot table.
func (t Table) firstDNAT(chain string) (dnat nft.DNATFrom, ok bool) {
	rules := t.Rules(chain)
	if len(rules) == 1 {
		if v, goes := last(rules[0]).(nft.Verdict); goes {
			rules = t.Rules(v.Chain)
		}
	}
	if len(rules) > 0 {
		dnat, ok = last(rules[0]).(nft.DNATFrom)
	}
	return dnat, ok
}

// distinct lists each endpoint of a list once.
func distinct(list []netip.AddrPort) (l List) {
	at := make(map[netip.AddrPort]int, min(len(list), 1024))
	for _, ep := range list {
		i, known := at[ep]
		if !known {
			i = l.Len()
			at[ep] = i
			l.Endpoints, l.Places = append(l.Endpoints, ep), append(l.Places, 0)
		}
		l.Places[i]++
	}
	if l.Len() == len(list) {
		l.Places = nil
	}
	return l
}

// hash says from what a hash chooses the endpoints to which a policy leads. With shared lists and with
// affinity, the chains of the Service port tell.
func (t Table) hash(p layout.Policy) layout.Hash {
	switch {
	case p.List != 0:
		return t.chainHash(layout.ListChain(p.List, p.Kind == layout.InternalLocal))
	case p.Affinity == 0:
		return p.Hash
	}
	for next := range t.affinityVerdicts(p) {
		if hash := t.chainHash(next.Chain); hash != layout.NoHash {
			return hash
		}
	}
	return layout.NoHash
}

// chainHash says what a chain hashes to choose an endpoint.
func (t Table) chainHash(name string) layout.Hash {
	dnat, ok := t.firstDNAT(name)
	if !ok {
		return layout.NoHash
	}
	ports, hashed := dnat.Key[len(dnat.Key)-1].HashesPorts()
	switch {
	case !hashed:
		return layout.NoHash
	case ports:
		return layout.HashAddressPort
	}
	return layout.HashAddress
}

// ListNumber returns the number of the shared lists to which a policy leads; 0 if it leads to none.
// With affinity, the chain of the Service port tells.
func (t Table) ListNumber(p layout.Policy) uint32 {
	if p.Affinity == 0 {
		return p.List
	}
	for next := range t.affinityVerdicts(p) {
		if number, ok := layout.ListOfChain(next.Chain); ok {
			return number
		}
	}
	return 0
}

// affinityVerdicts yields the verdicts that end the rules of a policy with affinity: of the policy's
// own chain, and of the chain of the cluster IP, which may serve other frontends, too.
func (t Table) affinityVerdicts(p layout.Policy) iter.Seq[nft.Verdict] {
	return func(yield func(nft.Verdict) bool) {
		for _, name := range []string{p.Open().ChainName(),
			layout.Policy{Kind: layout.Internal, Affinity: p.Affinity}.ChainName()} {
			for _, rule := range t.Rules(name) {
				if next, ok := last(rule).(nft.Verdict); ok && !yield(next) {
					return
				}
			}
		}
	}
}

// kindOf returns the kind of a frontend whose element has a comment.
func (t Table) kindOf(f tracker.Frontend, comment string) string {
	switch {
	case f.NodePort():
		return KindNodePort
	case layout.HasWord(comment, layout.LoadBalancerWord), layout.HasWord(comment, layout.RouterWord):
		return KindLoadBalancerIP
	case t.has(layout.ClusterIPsSet, nft.AddrKey(f.Address)): // or, for a while, an external IP on kube-ipvs0
		return KindClusterIP
	}
	return KindExternalIP
}

// has reports whether a set of the table has an element.
func (t Table) has(set, key string) bool {
	_, ok := t.Elements(set)[key]
	return ok
}

// NodePortAddresses returns the addresses at which tables serve node ports, sorted. A family that
// serves node ports at all addresses adds none.
func NodePortAddresses(tables nft.Tables) (addrs []netip.Addr) {
	for _, table := range tables {
		for key := range table.Elements(layout.NodePortAddressesSet) {
			if addr, ok := netip.AddrFromSlice([]byte(key)); ok {
				addrs = append(addrs, addr)
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// findAffinity finds where the entries of the frontend's Service port stand: where its chain updates
// them.
func (t Table) findAffinity(s *Frontend, key string) {
	set := layout.AffinityFrontendsMap
	if s.NodePort() {
		set = layout.AffinityNodePortsMap
	}
	chain := verdictOf(t.Elements(set)[key]).Chain
	for _, rule := range t.Rules(chain) {
		for _, stmt := range rule {
			r, ok := stmt.(nft.Update)
			if !ok {
				continue
			}
			number := nft.NumberIn(r.Key)
			s.Affinity = r.Duration()
			s.AffinityGroups = append(s.AffinityGroups, AffinityGroup{
				Map: r.Map, Number: number, Port: t.portOf(strings.TrimPrefix(chain, layout.UpdatePrefix), number),
				Local: layout.IsLocalNumber(number),
			})
		}
	}
}

// AffinityMaps returns the maps that may hold the affinity entry of a client that connects to a Service. What they
// hold is not read with the table.
func (t Table) AffinityMaps(p nft.Packet) (sets []*nft.Set) {
	family, protocol := t.Family, tracker.Protocol(p.Protocol)
	for _, f := range []tracker.Frontend{{Address: p.Destination, Protocol: protocol, Port: p.Port},
		tracker.NodePort(family, protocol, p.Port)} {
		s := Frontend{Frontend: f}
		t.findAffinity(&s, layout.FrontendKeyOf(f))
		for _, group := range s.AffinityGroups {
			if held := t.Sets[group.Map]; held != nil && !slices.Contains(sets, held.Set) {
				sets = append(sets, held.Set)
			}
		}
	}
	return sets
}

// portOf returns the port to which the chains of a Service port rewrite for a group of endpoints; 0 if
// none of them uses the group.
func (t Table) portOf(affinity string, number uint32) uint16 {
	for _, name := range layout.AffinityChains(affinity) {
		for _, rule := range t.Rules(name) {
			if dnat, ok := last(rule).(nft.DNATFrom); ok && nft.NumberIn(dnat.Key) == number {
				return dnat.ToPort
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

// policyWords says in words what the frontend does.
func (s *Frontend) policyWords() string {
	p, ok := layout.PolicyOf(s.Verdict)
	if !ok {
		return "unknown: " + s.Verdict.String()
	}
	words := cmp.Or(kindWords[p.Kind], "all endpoints")
	if p.Kind == layout.ExternalLocal && p.Router {
		words = "external: pass (no local endpoint)"
	} else if p.Kind == layout.ExternalLocal && p.Local == 0 {
		words = "external: drop (no local endpoint)"
	}
	switch {
	case s.Hash == layout.HashAddressPort:
		words += ", maglev"
	case s.Hash == layout.HashAddress:
		words += ", maglev by source IP"
	}
	if s.Weighted() {
		words += ", weighted"
	}
	if p.SourceRanges != 0 {
		words += ", ranges"
	}
	if s.Affinity > 0 {
		words += ", affinity " + nft.DurationText(s.Affinity)
	}
	return words
}

// kindWords are what kinds of policies do, except with all endpoints.
var kindWords = map[layout.PolicyKind]string{
	layout.Refused: "reject (no endpoint)", layout.Passed: "pass (no endpoint)",
	layout.Dropped: "drop (no local endpoint)", layout.InternalLocal: "local endpoints",
	layout.ExternalFallback: "all endpoints (none local)", layout.ExternalLocal: "external local",
}

// PolicyChains counts the chains that say what a kind of frontend does.
func (t Table) PolicyChains() (n int) {
	for name := range t.Chains {
		if _, ok := layout.PolicyOfChain(name); ok {
			n++
		}
	}
	return n
}

// RawRules counts the rules of which kube-nft knows no statements: it never writes such rules.
func (t Table) RawRules() (n int) {
	for _, chain := range t.Chains {
		for _, rule := range chain.Rules {
			if _, raw := last(rule).(nft.Raw); raw {
				n++
			}
		}
	}
	return n
}
