package services

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// A world makes up Service ports, a few names and addresses again and again, so that they
// meet: the same frontends, the same endpoints, the same lengths of lists.
type world struct {
	random *rand.Rand
	ports  map[tracker.PortID]*tracker.ServicePort
	ranges map[serviceName][]netip.Prefix // of each Service
}

// A serviceName names a Service in one family.
type serviceName struct {
	name   string
	family tracker.Family
}

// newWorld lets Service ports with short lists share them, in some worlds: random lists are short.
func newWorld(t testing.TB, seed uint64) *world {
	places := manyPlaces
	t.Cleanup(func() { manyPlaces = places })
	manyPlaces = []int{10, 600, tracker.JointFrom}[seed%3]
	return &world{random: rand.New(rand.NewPCG(seed, 7)), ports: make(map[tracker.PortID]*tracker.ServicePort),
		ranges: make(map[serviceName][]netip.Prefix),
	}
}

// change makes up a delta of one to five Service ports.
func (w *world) change() tracker.Delta {
	changed, removed := make(map[tracker.PortID]*tracker.ServicePort), make(map[tracker.PortID]bool)
	for range 1 + w.random.IntN(5) {
		id := w.id()
		if w.ports[id] != nil && w.random.IntN(4) == 0 {
			delete(w.ports, id)
			delete(changed, id)
			removed[id] = true
			continue
		}
		port := w.port(id)
		w.ports[id], changed[id] = port, port
		delete(removed, id)
		w.changeRanges(id, changed)
	}
	return tracker.Delta{Changed: slices.Collect(maps.Values(changed)), Removed: removed}
}

// changeRanges gives all ports of a Service in one family the same source ranges, now and then
// others than before.
func (w *world) changeRanges(id tracker.PortID, changed map[tracker.PortID]*tracker.ServicePort) {
	service := serviceName{id.Service, id.Family}
	if w.random.IntN(3) == 0 {
		w.ranges[service] = nil
		if w.random.IntN(2) == 0 {
			w.ranges[service] = w.sources(id.Family)
		}
	}
	for other, p := range w.ports {
		if (serviceName{other.Service, other.Family}) != service {
			continue
		}
		limited := *p
		limited.PortSpec = new(*limited.PortSpec)
		limited.RangesForNodePort = p.Settings.SourceRangesForNodePorts && p.NodePort != 0 && w.ranges[service] != nil
		limited.HasSourceRanges = len(p.LoadBalancers) > 0 && w.ranges[service] != nil || limited.RangesForNodePort
		limited.Sources = nil
		if limited.HasSourceRanges {
			limited.Sources = w.ranges[service]
		}
		if limited.HasSourceRanges != p.HasSourceRanges || limited.RangesForNodePort != p.RangesForNodePort ||
			!slices.Equal(limited.Sources, p.Sources) {
			w.ports[other], changed[other] = &limited, &limited
		}
	}
}

// everything is the delta that makes the world from nothing.
func (w *world) everything() tracker.Delta {
	return tracker.Delta{Changed: slices.Collect(maps.Values(w.ports))}
}

func (w *world) id() tracker.PortID {
	return tracker.PortID{
		Namespace: "ns", Service: fmt.Sprintf("svc-%d", w.random.IntN(8)), Port: []string{"p", "q", "r"}[w.random.IntN(3)],
		Protocol: []tracker.Protocol{tracker.TCP, tracker.UDP, tracker.SCTP}[w.random.IntN(3)],
		Family:   tracker.Families[w.random.IntN(2)],
	}
}

func (w *world) port(id tracker.PortID) *tracker.ServicePort {
	number := int(id.Service[len(id.Service)-1] - '0')
	p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID: id, UID: id.Service, Created: time.Unix(int64(w.random.IntN(3)), 0),
		Port: 80, ClusterIP: address(id.Family, 96, byte(number)),
		InternalLocal: w.random.IntN(3) == 0, ExternalLocal: w.random.IntN(3) == 0,
	},
		Lists: new(tracker.Lists),
	}
	if w.random.IntN(2) == 0 {
		p.NodePort = uint16(30000 + w.random.IntN(4))
	}
	p.ExternalIPs = w.addresses(id.Family, 2)
	p.LoadBalancers = w.addresses(id.Family, 2)
	for _, addr := range p.LoadBalancers {
		if w.random.IntN(3) == 0 {
			p.Routers = append(p.Routers, addr)
		}
	}
	if w.random.IntN(3) == 0 {
		p.Affinity, p.Several = time.Duration(1+w.random.IntN(3))*time.Hour, w.random.IntN(2) == 0
	}
	if w.random.IntN(3) == 0 {
		yes := func() bool { return w.random.IntN(2) == 0 }
		p.Settings = tracker.Settings{KeepUnreadyUDP: yes(), ResetDeparted: yes(), LocalFallback: yes(),
			SourceRangesForNodePorts: yes(), Ping: yes()}
	}
	p.Port += uint16(id.Port[0] - 'p')
	if other := w.sibling(p); other != nil && w.random.IntN(4) > 0 {
		w.share(p, other)
		return p
	}
	w.endpoints(p)
	return p
}

// sibling is another port of p's Service.
func (w *world) sibling(p *tracker.ServicePort) *tracker.ServicePort {
	for _, name := range []string{"p", "q", "r"} {
		id := p.ID
		if id.Port = name; id != p.ID && w.ports[id] != nil {
			return w.ports[id]
		}
	}
	return nil
}

// share gives p the endpoints of another port of its Service, as the tracker does.
func (w *world) share(p, other *tracker.ServicePort) {
	p.InternalLocal, p.ExternalLocal, p.Settings = other.InternalLocal, other.ExternalLocal, other.Settings
	p.Lists, p.HasEndpoints = other.Lists, other.HasEndpoints
	if p.TargetPort = other.TargetPort; p.TargetPort != 0 {
		p.TargetPort = uint16(8080 + w.random.IntN(2))
	}
}

func (w *world) endpoints(p *tracker.ServicePort) {
	uniform := w.random.IntN(2) == 0 // all endpoints have one port
	for range w.random.IntN(5) {
		ep := netip.AddrPortFrom(address(p.ID.Family, 244, byte(w.random.IntN(6))), uint16(8080+w.random.IntN(2)))
		if uniform {
			ep = netip.AddrPortFrom(ep.Addr(), 0)
		}
		if !slices.Contains(p.Cluster, ep) {
			p.Cluster = append(p.Cluster, ep)
		}
	}
	slices.SortFunc(p.Cluster, netip.AddrPort.Compare)
	p.Serving, p.HasEndpoints = p.Cluster, len(p.Cluster) > 0
	if uniform && p.HasEndpoints {
		p.TargetPort = uint16(8080 + w.random.IntN(2))
	}
	for _, ep := range p.Cluster {
		if w.random.IntN(2) == 0 {
			p.OnNode = append(p.OnNode, ep)
		}
	}
	if p.InternalLocal || p.ExternalLocal {
		p.Local = p.OnNode
	}
	if w.random.IntN(8) == 0 { // few: each frontend has 503 slots
		p.Settings.Maglev, p.Settings.HashAddress = true, w.random.IntN(2) == 0
	}
	if w.random.IntN(3) == 0 {
		weights := make(map[netip.AddrPort]uint16)
		for _, ep := range p.Cluster {
			weights[ep] = []uint16{1, 1, 2, 7, 300, 65535}[w.random.IntN(6)]
		}
		p.ClusterWeights, p.LocalWeights = weightsOf(p.Cluster, weights), weightsOf(p.Local, weights)
	}
}

// weightsOf lists weights as the tracker does: none if they are equal.
func weightsOf(list []netip.AddrPort, of map[netip.AddrPort]uint16) (weights []uint16) {
	for _, ep := range list {
		weights = append(weights, of[ep])
	}
	if len(slices.Compact(slices.Clone(weights))) < 2 {
		return nil
	}
	return weights
}

func (w *world) addresses(family tracker.Family, most int) (addrs []netip.Addr) {
	for i := range most {
		if w.random.IntN(2) == 0 {
			addrs = append(addrs, address(family, 51, byte(2*i+w.random.IntN(2))))
		}
	}
	return addrs
}

func (w *world) sources(family tracker.Family) (sources []netip.Prefix) {
	for i := range 1 + w.random.IntN(2) {
		addr := address(family, 113, byte(64*i+w.random.IntN(2)*128))
		sources = append(sources, netip.PrefixFrom(addr, addr.BitLen()-4-w.random.IntN(3)).Masked())
	}
	slices.SortFunc(sources, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return slices.Compact(sources)
}

// address makes up an address of a kind: 96 cluster IPs, 51 external ones, 244 pods, 113
// clients.
func address(family tracker.Family, kind, number byte) netip.Addr {
	if family == tracker.IPv6 {
		return netip.AddrFrom16([16]byte{0xfd, kind, 14: 1, 15: number})
	}
	return netip.AddrFrom4([4]byte{10, kind, 1, number})
}

// testConfig recognises pods by their addresses and serves node ports at one address.
func testConfig() Config {
	return Config{
		Families:      nft.Families[:],
		MasqueradeBit: 14,
		AffinitySize:  1024,
		Pods: map[nft.Family]layout.PodMatch{
			nft.IP:  {CIDR: netip.MustParsePrefix("10.244.0.0/16")},
			nft.IP6: {CIDR: netip.MustParsePrefix("fdf4::/16")},
		},
	}
}

// apply is the kernel as a model: it changes the tables as a batch says. It fails where the
// kernel would: on what exists already or does not, and on references to nothing.
func apply(tables nft.Tables, batch nft.Batch) error {
	for _, op := range batch.Ops {
		if err := applyOp(tables, op); err != nil {
			return fmt.Errorf("%s: %w", op.Text(), err)
		}
	}
	for f, table := range tables {
		if err := dangling(table); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}

func applyOp(tables nft.Tables, op nft.Op) error {
	table := tables[op.Family]
	if op.Table == nil && table == nil {
		return fmt.Errorf("no table")
	}
	switch {
	case op.Table != nil && op.Verb == nft.Add:
		if table != nil {
			return fmt.Errorf("table exists")
		}
		tables[op.Family] = &nft.Table{Family: op.Family, Comment: op.Table.Comment, Sets: make(map[string]*nft.Elements),
			Chains: make(map[string]*nft.Chain)}
	case op.Table != nil:
		delete(tables, op.Family)
	case op.Elements != nil:
		return applyElements(table, op)
	case op.Set != nil:
		return applySet(table, op)
	default:
		return applyChain(table, op)
	}
	return nil
}

func applySet(t *nft.Table, op nft.Op) error {
	_, exists := t.Sets[op.Set.Name]
	if exists != (op.Verb == nft.Delete) {
		return fmt.Errorf("set exists: %v", exists)
	}
	if op.Verb == nft.Delete {
		delete(t.Sets, op.Set.Name)
		return nil
	}
	t.Sets[op.Set.Name] = &nft.Elements{Set: op.Set, Map: make(map[string]nft.Element)}
	return nil
}

func applyElements(t *nft.Table, op nft.Op) error {
	held := t.Sets[op.Set.Name]
	if held == nil {
		return fmt.Errorf("no set %s", op.Set.Name)
	}
	for _, element := range op.Elements {
		_, exists := held.Map[element.Key]
		switch {
		case op.Verb == nft.Add && exists:
			return fmt.Errorf("element %x exists", element.Key)
		case op.Verb == nft.Delete && !exists:
			return fmt.Errorf("no element %x", element.Key)
		case op.Verb == nft.Add:
			held.Map[element.Key] = element.Element
		default:
			delete(held.Map, element.Key)
		}
	}
	return nil
}

func applyChain(t *nft.Table, op nft.Op) error {
	chain, exists := t.Chains[op.Chain.Name]
	definition := op.Verb == nft.Add && op.Rules == nil
	if exists == definition {
		return fmt.Errorf("chain %s exists: %v", op.Chain.Name, exists)
	}
	switch {
	case definition:
		t.Chains[op.Chain.Name] = &nft.Chain{Name: op.Chain.Name, Hook: op.Chain.Hook}
	case op.Verb == nft.Add:
		chain.Rules = append(chain.Rules, op.Rules...)
	case op.Verb == nft.Flush:
		chain.Rules = nil
	case len(chain.Rules) > 0:
		return fmt.Errorf("chain %s has rules", op.Chain.Name)
	default:
		delete(t.Chains, op.Chain.Name)
	}
	return nil
}

// dangling reports a reference to a chain or set that the table does not have.
func dangling(t *nft.Table) error {
	for name, chain := range t.Chains {
		for _, rule := range chain.Rules {
			if missing := missing(t, rule); missing != "" {
				return fmt.Errorf("chain %s refers to %s, which does not exist", name, missing)
			}
		}
	}
	for name, held := range t.Sets {
		for key, element := range held.Map {
			if !held.Set.Verdicts || *element.Verdict == nft.Drop {
				continue
			}
			if chain := element.Verdict.Chain; t.Chains[chain] == nil {
				return fmt.Errorf("element %x of %s goes to chain %s, which does not exist", key, name, chain)
			}
		}
	}
	return nil
}

// reference matches where the text of a rule names a set or map, or a chain.
var reference = regexp.MustCompile(`@([\w-]+)|\b(?:jump|goto) ([\w-]+)`)

func missing(t *nft.Table, rule nft.Rule) string {
	for _, m := range reference.FindAllStringSubmatch(rule.Text(t.Family), -1) {
		if set := m[1]; set != "" && t.Sets[set] == nil {
			return "set " + set
		}
		if chain := m[2]; chain != "" && t.Chains[chain] == nil {
			return "chain " + chain
		}
	}
	return ""
}

// endpoints are endpoints by the last byte of their addresses.
func endpoints(last ...byte) (list []netip.AddrPort) {
	for _, b := range last {
		list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, b}), 80))
	}
	return list
}

// clusterMap is the map of the cluster-wide lists of TCP ports at an address.
var clusterMap = layout.EndpointMap{Protocol: tracker.TCP}.Name()
