package services

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
)

// Config is what the ruleset depends on besides the cluster's objects. It is fixed for the
// life of a process.
type Config struct {
	Families []nft.Family // those that the kernel can do, in the order of Families
	// MasqueradeAll masquerades all connections to cluster IPs, not only connections from
	// outside the cluster.
	MasqueradeAll bool
	// MasqueradeBit is the bit of the packet mark that we use between the hooks, 0 to 31.
	MasqueradeBit uint8
	Pods          map[nft.Family]layout.PodMatch
	// AllNodePorts lists the families whose node ports are served at every address of the
	// node but loopback; in the others, at those given to SetNodePortAddresses.
	AllNodePorts map[nft.Family]bool
	// Localhost serves node ports at 127.0.0.1 too, for connections of this node. It takes
	// the sysctl route_localnet, with which others on the network could reach what listens
	// on loopback addresses: the ruleset keeps them out.
	Localhost bool
	// AffinitySize is how many entries one affinity map holds at most. A namespace has its
	// entries in one of them.
	AffinitySize uint32
	Lacks        nft.Lacks
	// Owned makes the tables belong to the socket that commits them. The kernel does not change that in place,
	// so a table that exists in the other way is replaced.
	Owned bool
	// Counters makes the elements of the services and node-ports maps count the connections
	// to their frontends. EndpointCounters makes the elements of lists of endpoints count the
	// connections that they were chosen for; an endpoint of an affinity entry is not chosen.
	Counters, EndpointCounters bool
}

// usualLengths and usualLocalLengths are the lengths of endpoint lists up to which the
// choosing chains, and the policies of cluster IPs and of external frontends, exist from the
// start. Making a choosing chain later costs the kernel a walk over the whole map (measured:
// 8 ms at 100,000 elements), and making any chain that new elements lead to takes a batch of
// its own (see change.Phases).
const (
	usualLengths      = 32
	usualLocalLengths = 16
)

// fixedSetDefinitions are the sets and maps that exist whatever the cluster holds. Those that
// hold most come first: the kernel finds a set by walking the table's list of them.
func (c *Config) fixedSetDefinitions() []*nft.Set {
	frontend := []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort}
	nodePort := []nft.Field{nft.FieldProtocol, nft.FieldPort}
	sets := []*nft.Set{
		{Name: layout.ServicesMap, Key: frontend, Verdicts: true, Counters: c.Counters},
		{Name: layout.NodePortsMap, Key: nodePort, Verdicts: true, Counters: c.Counters},
	}
	for _, m := range layout.EndpointMaps() {
		key := frontend
		if m.NodePort {
			key = nodePort
		}
		sets = append(sets, &nft.Set{Name: m.Name(), Key: append(slices.Clip(key), nft.FieldIndex),
			Data: []nft.Field{nft.FieldAddr, nft.FieldPort}, Protocol: uint8(m.Protocol), Counters: c.EndpointCounters})
	}
	sets = append(sets, []*nft.Set{
		{Name: layout.MembersSet, Key: []nft.Field{nft.FieldIndex, nft.FieldAddr}},
		{Name: layout.BeforeNodePortsSet, Key: frontend}, // before the addresses where it hides node ports
		{Name: layout.NodePortAddressesSet, Key: []nft.Field{nft.FieldAddr}},
		{Name: layout.ClusterIPsSet, Key: []nft.Field{nft.FieldAddr}},
		{Name: layout.ServiceCIDRsSet, Key: []nft.Field{nft.FieldAddr}, Interval: true},
		{Name: layout.HairpinSet, Key: []nft.Field{nft.FieldAddr, nft.FieldAddr}},
		{Name: layout.AffinityFrontendsMap, Key: frontend, Verdicts: true},
		{Name: layout.AffinityNodePortsMap, Key: nodePort, Verdicts: true},
	}...)
	for i, set := range sets {
		set.Rank = i
	}
	return sets
}

// rangesRank plus the prefix length is the rank of a set of source ranges.
const rangesRank = 100

// skeleton is the table before any Service: fixed sets, fixed chains and base chains.
func (c *Config) skeleton(f nft.Family) *nft.Table {
	t := nft.NewTable(f)
	t.Owned = c.Owned
	for _, set := range c.fixedSetDefinitions() {
		t.Sets[set.Name] = &nft.Elements{Set: set, Map: make(map[string]nft.Element)}
	}
	for _, chain := range c.fixedChains(f) {
		t.Chains[chain.Name] = chain
	}
	return t
}

// countedReject and countedDrop are the rules of the chains of layout.RefusalCauses. All Services share them, and
// connections that are served never come there.
var (
	countedReject = []nft.Rule{{nft.Counter{}}, {nft.RejectTCP{}}, {nft.Reject{}}}
	countedDrop   = []nft.Rule{{nft.Counter{}}, {nft.Drop}}
)

func (c *Config) fixedChains(f nft.Family) []*nft.Chain {
	bit := uint32(1) << c.MasqueradeBit
	toServices := []nft.Rule{{nft.Jump(layout.ServicesChain)}}
	arriving := toServices
	if c.localhost(f) {
		keepOut := nft.Rule{nft.InputInterface{Name: "lo", Not: true},
			nft.AddressIn{Of: nft.Destination, Prefix: loopback(f)}, nft.Drop}
		arriving = []nft.Rule{keepOut, toServices[0]}
	}
	return []*nft.Chain{
		{Name: layout.MarkChain, Rules: []nft.Rule{{nft.SetMark{Bits: bit}}}},
		{Name: layout.MasqueradeChain, Rules: []nft.Rule{{nft.FlipMark{Bits: bit}}, {nft.Masquerade{}}}},
		{Name: layout.RejectChain, Rules: countedReject},
		{Name: layout.RejectUnusedPortChain, Rules: countedReject},
		{Name: layout.DropSourceChain, Rules: countedDrop},
		{Name: layout.DropNotLocalChain, Rules: countedDrop},
		{Name: layout.DropUnusedAddressChain, Rules: countedDrop},
		{Name: layout.ServicesChain, Rules: c.servicesRules(f)},
		{Name: layout.PreroutingChain, Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: dstnatPriority},
			Rules: arriving},
		{Name: layout.OutputChain, Hook: &nft.Hook{Type: "nat", Point: "output", Priority: dstnatPriority},
			Rules: toServices},
		{Name: layout.PostroutingChain, Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: srcnatPriority},
			Rules: []nft.Rule{
				// Others may set a mark that has the bit, as wg-quick does with 51820.
				{nft.Translated{}, nft.MarkHas{Bits: bit}, nft.Goto(layout.MasqueradeChain)},
				{nft.Translated{}, nft.InSet{Key: []nft.Part{nft.Source, nft.Destination}, Set: layout.HairpinSet},
					nft.Masquerade{}},
			}},
	}
}

// Priorities. One before dstnat (NF_IP_PRI_NAT_DST, -100) we win over every other rule set
// that translates Service addresses, in whatever order they were loaded; at the same
// priority the one that registered last would win.
const (
	dstnatPriority = -101
	srcnatPriority = 100
)

// servicesRules sends a new connection to the policy of the frontend that it is addressed
// to. What is left after that is addressed to no frontend: the cluster owns its Service
// addresses, so nothing else may answer for them.
func (c *Config) servicesRules(f nft.Family) []nft.Rule {
	nodePorts := nft.VerdictFrom{Key: []nft.Part{nft.Protocol, nft.Port}, Map: layout.NodePortsMap}
	atNode := nft.Rule{nft.InSet{Key: []nft.Part{nft.Destination}, Set: layout.NodePortAddressesSet}, nodePorts}
	if c.AllNodePorts[f] {
		atNode = nft.Rule{nft.AddressLocal{Of: nft.Destination},
			nft.AddressIn{Of: nft.Destination, Prefix: loopback(f), Not: true}, nodePorts}
	}
	// A cluster IP is no address for node ports, even where it is an address of the node, as on kube-ipvs0.
	rules := []nft.Rule{{nft.VerdictFrom{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port},
		Map: layout.ServicesMap}},
		{nft.InSet{Key: []nft.Part{nft.Destination}, Set: layout.ClusterIPsSet}, nft.Goto(layout.RejectUnusedPortChain)},
		atNode}
	if c.localhost(f) {
		localhost := netip.PrefixFrom(layout.LocalhostAddress(f), 32)
		rules = append(rules, nft.Rule{nft.AddressIn{Of: nft.Destination, Prefix: localhost}, nodePorts})
	}
	return append(rules, nft.Rule{nft.InSet{Key: []nft.Part{nft.Destination}, Set: layout.ServiceCIDRsSet},
		nft.Goto(layout.DropUnusedAddressChain)})
}

// localhost reports whether node ports are served at a loopback address. The kernel does
// not route ::1 beyond the loopback interface, whatever the sysctls.
func (c *Config) localhost(f nft.Family) bool { return c.Localhost && f == nft.IP }

func loopback(f nft.Family) netip.Prefix {
	if f == nft.IP6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}
