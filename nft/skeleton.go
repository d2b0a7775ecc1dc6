package nft

import (
	"net/netip"
)

// A PodMatch says how a packet is recognised as coming from a pod. The zero value stands
// for no detection. Exactly one of CIDR and Interface is set otherwise.
type PodMatch struct {
	CIDR      netip.Prefix // by source address
	Interface string       // by the interface it arrived on
	Prefix    bool         // Interface is only how the name begins
}

// none reports whether there is no way to recognise pods.
func (m PodMatch) none() bool { return !m.CIDR.IsValid() && m.Interface == "" }

// stmt matches pods, or with not everybody else.
func (m PodMatch) stmt(not bool) Stmt {
	if m.Interface != "" {
		return InputInterface{Name: m.Interface, Prefix: m.Prefix, Not: not}
	}
	return SourceIn{Prefix: m.CIDR, Not: not}
}

// Config is what the ruleset depends on besides the cluster's objects. It is fixed for the
// life of a process.
type Config struct {
	Families []Family // those that the kernel can do, in the order of Families
	// MasqueradeAll masquerades all connections to cluster IPs, not only those of clients
	// outside the cluster.
	MasqueradeAll bool
	// MasqueradeBit is the bit of the packet mark that we use between the hooks, 0 to 31.
	MasqueradeBit uint8
	Pods          map[Family]PodMatch
	// AllNodePorts lists the families whose node ports are served at every address of the
	// node but loopback; in the others, at those given to SetNodePortAddresses.
	AllNodePorts map[Family]bool
	// Localhost serves node ports at 127.0.0.1 too, for connections of this node. It takes
	// the sysctl route_localnet, with which others on the network could reach what listens
	// on loopback addresses: the ruleset keeps them out.
	Localhost bool
	// AffinitySize is how many clients one affinity map remembers at most.
	AffinitySize uint32
	// Counters makes the elements of the services and node-ports maps count the connections
	// to their frontends, EndpointCounters those of lists of endpoints the connections that
	// they were chosen for. What a client is remembered with is not chosen.
	Counters, EndpointCounters bool
}

// usualLengths and usualLocalLengths are the lengths of endpoint lists up to which the
// choosing chains, and the policies of cluster IPs and of external frontends, exist from the
// start. Making a choosing chain later costs the kernel a walk over the whole map (measured:
// 8 ms at 100,000 elements), and making any chain that new elements lead to takes a batch of
// its own (see Batch.split).
const (
	usualLengths      = 32
	usualLocalLengths = 16
)

// fixedSetDefinitions are the sets and maps that exist whatever the cluster holds. Those that
// hold most come first: the kernel finds a set by walking the table's list of them.
func (c *Config) fixedSetDefinitions() []*Set {
	frontend := []Field{FieldAddr, FieldProtocol, FieldPort}
	nodePort := []Field{FieldProtocol, FieldPort}
	indexed := []Field{FieldAddr, FieldProtocol, FieldPort, FieldIndex}
	nodePortIndexed := []Field{FieldProtocol, FieldPort, FieldIndex}
	endpoint := []Field{FieldAddr, FieldPort}
	sets := []*Set{
		{Name: servicesMap, Key: frontend, Verdicts: true, Counters: c.Counters},
		{Name: endpointsMap, Key: indexed, Data: endpoint, Counters: c.EndpointCounters},
		{Name: localEndpointsMap, Key: indexed, Data: endpoint, Counters: c.EndpointCounters},
		{Name: nodePortsMap, Key: nodePort, Verdicts: true, Counters: c.Counters},
		{Name: nodePortEndpointsMap, Key: nodePortIndexed, Data: endpoint, Counters: c.EndpointCounters},
		{Name: nodePortLocalEndpointMap, Key: nodePortIndexed, Data: endpoint, Counters: c.EndpointCounters},
		{Name: nodePortAddressesSet, Key: []Field{FieldAddr}},
		{Name: allowedSourcesSet, Key: []Field{FieldAddr, FieldProtocol, FieldPort, FieldAddr}, Interval: true},
		{Name: clusterIPsSet, Key: []Field{FieldAddr}},
		{Name: serviceCIDRsSet, Key: []Field{FieldAddr}, Interval: true},
		{Name: hairpinSet, Key: []Field{FieldAddr, FieldAddr, FieldProtocol, FieldPort}},
		{Name: stickyMap, Key: frontend, Verdicts: true},
		{Name: stickyNodePortsMap, Key: nodePort, Verdicts: true},
		{Name: TransportProtocols, Key: []Field{FieldProtocol}},
	}
	for i, set := range sets {
		set.Rank = i
	}
	return sets
}

// affinityRank is that of the sets of single Service ports, which come after the fixed ones.
const affinityRank = 1000

// skeleton is the table before any Service: fixed sets, fixed chains and base chains.
func (c *Config) skeleton(f Family) *Table {
	t := NewTable(f)
	for _, set := range c.fixedSetDefinitions() {
		t.Sets[set.Name] = &Elements{Set: set, Map: make(map[string]Element)}
	}
	for _, protocol := range TransportNumbers {
		t.Sets[TransportProtocols].Map[string([]byte{protocol})] = Element{}
	}
	for _, chain := range c.fixedChains(f) {
		t.Chains[chain.Name] = chain
	}
	return t
}

func (c *Config) fixedChains(f Family) []*Chain {
	bit := uint32(1) << c.MasqueradeBit
	toServices := []Rule{{Jump(servicesChain)}}
	arriving := toServices
	if c.localhost(f) {
		keepOut := Rule{InputInterface{Name: "lo", Not: true}, DestinationIn{Prefix: loopback(f)}, Drop}
		arriving = []Rule{keepOut, toServices[0]}
	}
	return []*Chain{
		{Name: markChain, Rules: []Rule{{SetMark{bit}}}},
		{Name: masqueradeChain, Rules: []Rule{{FlipMark{bit}}, {Masquerade{}}}},
		{Name: rejectChain, Rules: []Rule{{RejectTCP{}}, {Reject{}}}},
		{Name: servicesChain, Rules: c.servicesRules(f)},
		{Name: preroutingChain, Hook: &Hook{"nat", "prerouting", dstnatPriority}, Rules: arriving},
		{Name: outputChain, Hook: &Hook{"nat", "output", dstnatPriority}, Rules: toServices},
		{Name: postroutingChain, Hook: &Hook{"nat", "postrouting", srcnatPriority}, Rules: []Rule{
			{MarkHas{bit}, Goto(masqueradeChain)},
			{Translated{}, InSet{Key: []Part{Source, Destination, Protocol, Port}, Set: hairpinSet}, Masquerade{}},
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
func (c *Config) servicesRules(f Family) []Rule {
	nodePorts := VerdictFrom{Key: []Part{Protocol, Port}, Map: nodePortsMap}
	atNode := Rule{InSet{Key: []Part{Destination}, Set: nodePortAddressesSet}, nodePorts}
	if c.AllNodePorts[f] {
		atNode = Rule{DestinationLocal{}, DestinationIn{Prefix: loopback(f), Not: true}, nodePorts}
	}
	rules := []Rule{{VerdictFrom{Key: []Part{Destination, Protocol, Port}, Map: servicesMap}}, atNode}
	if c.localhost(f) {
		rules = append(rules, Rule{DestinationIn{Prefix: localhostAddress}, nodePorts})
	}
	return append(rules, []Rule{
		{InSet{Key: []Part{Destination}, Set: clusterIPsSet}, Goto(rejectChain)},
		{InSet{Key: []Part{Destination}, Set: serviceCIDRsSet}, Drop},
	}...)
}

// localhost reports whether node ports are served at a loopback address. The kernel does
// not route ::1 beyond the loopback interface, whatever the sysctls.
func (c *Config) localhost(f Family) bool { return c.Localhost && f == IP }

var localhostAddress = netip.MustParsePrefix("127.0.0.1/32")

func loopback(f Family) netip.Prefix {
	if f == IP6 {
		return netip.PrefixFrom(netip.IPv6Loopback(), 128)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8)
}
