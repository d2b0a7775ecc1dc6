package conntrack

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/tracker"
)

// cluster is a Desired of plain maps.
type cluster struct {
	endpoints  map[tracker.Frontend][]string
	clusterIPs []string
	cidr       string
	nodes      []string
	resets     []tracker.Frontend
	limited    tracker.Frontend // to clients whose last byte is less than 128
}

func (c *cluster) Endpoints(f tracker.Frontend) (func(netip.AddrPort) bool, bool) {
	list, known := c.endpoints[f]
	return func(ep netip.AddrPort) bool { return slices.Contains(list, ep.String()) }, known
}
func (c *cluster) Admits(f tracker.Frontend, client netip.Addr) bool {
	return f != c.limited || client.Is4() && client.As4()[3] < 128
}
func (c *cluster) Resets(f tracker.Frontend) bool { return slices.Contains(c.resets, f) }
func (c *cluster) AnyResets() bool                { return len(c.resets) > 0 }
func (c *cluster) ClusterIP(addr netip.Addr) bool {
	return slices.Contains(c.clusterIPs, addr.String())
}
func (c *cluster) ServiceCIDR(addr netip.Addr) bool {
	return netip.MustParsePrefix(c.cidr).Contains(addr)
}
func (c *cluster) NodePortAddress(addr netip.Addr) bool {
	return slices.Contains(c.nodes, addr.String())
}

func at(protocol tracker.Protocol, address string) tracker.Frontend {
	addr := netip.MustParseAddrPort(address)
	return tracker.Frontend{Address: addr.Addr(), Protocol: protocol, Port: addr.Port()}
}

// desired is what the cases below should be like: DNS, a Service without endpoints, a web
// Service with a node port and an external IP, one of SCTP.
var desired = &cluster{
	endpoints: map[tracker.Frontend][]string{
		at(tracker.UDP, "10.96.0.10:53"):   {"10.244.0.5:5353", "10.244.1.5:5353"},
		at(tracker.TCP, "10.96.0.10:53"):   {"10.244.0.5:5353", "10.244.1.5:5353"},
		at(tracker.UDP, "10.96.0.20:53"):   {},
		at(tracker.SCTP, "10.96.0.30:90"):  {"10.244.0.6:90"},
		at(tracker.UDP, "203.0.113.5:443"): {"10.244.0.7:8443"},
		at(tracker.UDP, "203.0.113.6:443"): {"10.244.0.7:8443"},
		at(tracker.UDP, "0.0.0.0:30053"):   {"10.244.0.5:5353", "192.0.2.1:30053"},
		at(tracker.TCP, "0.0.0.0:30080"):   {"10.244.0.5:80"},
		at(tracker.TCP, "10.96.0.40:443"):  {"10.244.0.8:8443"},
		at(tracker.SCTP, "10.96.0.40:90"):  {},
		at(tracker.TCP, "0.0.0.0:30443"):   {"10.244.0.8:8443"},
	},
	clusterIPs: []string{"10.96.0.10", "10.96.0.20", "10.96.0.30", "10.96.0.40"},
	cidr:       "10.96.0.0/16",
	nodes:      []string{"192.0.2.1"},
	resets: []tracker.Frontend{at(tracker.TCP, "10.96.0.40:443"), at(tracker.SCTP, "10.96.0.40:90"),
		at(tracker.TCP, "0.0.0.0:30443")},
	limited: at(tracker.UDP, "203.0.113.6:443"),
}

const client = "198.51.100.1:4000"

var staleCases = []struct {
	name  string
	flow  Flow
	stale bool
}{
	{"UDP to a serving endpoint", flow(tracker.UDP, client, "10.96.0.10:53", "10.244.0.5:5353", established), false},
	{"UDP to an endpoint that is gone", flow(tracker.UDP, client, "10.96.0.10:53", "10.244.9.9:5353", established), true},
	{"the same, unanswered", flow(tracker.UDP, client, "10.96.0.10:53", "10.244.9.9:5353", 0), true},
	{"UDP to another port of an endpoint", flow(tracker.UDP, client, "10.96.0.10:53", "10.244.0.5:53", established), true},
	{"TCP to an endpoint that is gone", flow(tracker.TCP, client, "10.96.0.10:53", "10.244.9.9:5353", established), false},
	{"SYN to an endpoint that is gone", flow(tracker.TCP, client, "10.96.0.10:53", "10.244.9.9:5353", 0), false},
	{"SCTP to an endpoint that is gone", flow(tracker.SCTP, client, "10.96.0.30:90", "10.244.9.9:90", established), false},
	{"UDP to a Service without endpoints", flow(tracker.UDP, client, "10.96.0.20:53", "10.244.0.5:53", established), true},
	{"UDP to a port that is no frontend", flow(tracker.UDP, client, "10.96.0.10:54", "10.244.0.5:5353", established),
		true},
	{"UDP to an address of the Service CIDR that no frontend has", flow(tracker.UDP, client, "10.96.0.99:53",
		"10.244.9.9:53", established), true},
	{"the same, TCP", flow(tracker.TCP, client, "10.96.0.99:53", "10.244.9.9:53", established), false},
	{"UDP to a foreign cluster IP", flow(tracker.UDP, client, "172.20.0.99:53", "10.244.9.9:53", established), false},
	{"UDP to a foreign address", flow(tracker.UDP, client, "203.0.113.99:53", "10.244.9.9:53", established), false},
	{"UDP to an external IP", flow(tracker.UDP, client, "203.0.113.5:443", "10.244.9.9:8443", established), true},
	{"unanswered UDP of a client in the source ranges", flow(tracker.UDP, client, "203.0.113.6:443", "10.244.0.7:8443", 0),
		false},
	{"unanswered UDP of another client", flow(tracker.UDP, "198.51.100.200:4000", "203.0.113.6:443", "10.244.0.7:8443", 0),
		true},
	{"answered UDP of another client", flow(tracker.UDP, "198.51.100.200:4000", "203.0.113.6:443", "10.244.0.7:8443",
		established), false},
	{"UDP to another port of an external IP", flow(tracker.UDP, client, "203.0.113.5:444", "10.244.9.9:8443", established),
		false},

	{"with resets: TCP to a serving endpoint", flow(tracker.TCP, client, "10.96.0.40:443", "10.244.0.8:8443", established),
		false},
	{"with resets: TCP to an endpoint that is gone", flow(tracker.TCP, client, "10.96.0.40:443", "10.244.9.9:8443",
		established), true},
	{"with resets: TCP to another port of an endpoint", flow(tracker.TCP, client, "10.96.0.40:443", "10.244.0.8:443",
		established), true},
	{"with resets: SYN to an endpoint that is gone", flow(tracker.TCP, client, "10.96.0.40:443", "10.244.9.9:8443", 0),
		true},
	{"with resets: SCTP without endpoints", flow(tracker.SCTP, client, "10.96.0.40:90", "10.244.9.9:90", established),
		true},
	{"with resets: TCP to a node port", flow(tracker.TCP, client, "192.0.2.1:30443", "10.244.9.9:8443", established),
		true},
	{"with resets: TCP to the node port's number elsewhere", flow(tracker.TCP, client, "192.0.2.99:30443",
		"10.244.9.9:8443", established), false},
	{"with resets: TCP to another port", flow(tracker.TCP, client, "10.96.0.40:444", "10.244.9.9:8443", established),
		false},
	{"with resets: untranslated TCP connection", flow(tracker.TCP, client, "10.96.0.40:443", "10.96.0.40:443",
		established), false},

	{"untranslated UDP to a frontend", flow(tracker.UDP, client, "10.96.0.10:53", "10.96.0.10:53", 0), true},
	{"untranslated, answered UDP to a frontend", flow(tracker.UDP, client, "203.0.113.5:443", "203.0.113.5:443",
		established), true},
	{"untranslated SYN to a frontend", flow(tracker.TCP, client, "10.96.0.10:53", "10.96.0.10:53", 0), true},
	{"untranslated TCP connection to a frontend", flow(tracker.TCP, client, "10.96.0.10:53", "10.96.0.10:53", established),
		false},
	{"TCP picked up in its middle", pickedUp(flow(tracker.TCP, client, "10.96.0.10:53", "10.96.0.10:53", 0)), false},
	{"untranslated SCTP to a frontend", flow(tracker.SCTP, client, "10.96.0.30:90", "10.96.0.30:90", 0), true},
	{"untranslated SCTP association", flow(tracker.SCTP, client, "10.96.0.30:90", "10.96.0.30:90", established), false},
	{"echo request to a cluster IP", flow(1, client, "10.96.0.10:0", "10.96.0.10:0", 0), false},
	{"untranslated SYN to another port of a cluster IP", flow(tracker.TCP, client, "10.96.0.10:99", "10.96.0.10:99", 0),
		true},
	{"untranslated SYN into the Service CIDR", flow(tracker.TCP, client, "10.96.7.7:80", "10.96.7.7:80", 0), true},
	{"untranslated UDP into the Service CIDR", flow(tracker.UDP, client, "10.96.7.7:80", "10.96.7.7:80", 0), true},
	{"answered UDP into the Service CIDR", flow(tracker.UDP, client, "10.96.7.7:80", "10.96.7.7:80", established), false},
	{"untranslated SYN elsewhere", flow(tracker.TCP, client, "192.0.2.99:80", "192.0.2.99:80", 0), false},
	{"untranslated UDP elsewhere", flow(tracker.UDP, client, "192.0.2.99:53", "192.0.2.99:53", 0), false},

	{"UDP to a node port", flow(tracker.UDP, client, "192.0.2.1:30053", "10.244.0.5:5353", established), false},
	{"UDP to a node port whose endpoint is gone", flow(tracker.UDP, client, "192.0.2.1:30053", "10.244.9.9:5353",
		established), true},
	{"UDP to a node port that is its own endpoint", flow(tracker.UDP, client, "192.0.2.1:30053", "192.0.2.1:30053", 0),
		false},
	{"UDP to a node port's number elsewhere", flow(tracker.UDP, client, "192.0.2.99:30053", "192.0.2.99:30053", 0), false},
	{"the same, translated", flow(tracker.UDP, client, "192.0.2.99:30053", "10.244.9.9:5353", established), false},
	{"UDP to a foreign published port", flow(tracker.UDP, client, "192.0.2.1:30099", "172.17.0.2:53", established), false},
	{"UDP to the node itself", flow(tracker.UDP, client, "192.0.2.1:68", "192.0.2.1:68", 0), false},
	{"untranslated SYN to a node port", flow(tracker.TCP, client, "192.0.2.1:30080", "192.0.2.1:30080", 0), true},
	{"untranslated SYN to the node itself", flow(tracker.TCP, client, "192.0.2.1:22", "192.0.2.1:22", 0), false},
}

// pickedUp returns f as the kernel tracks a connection whose start it has not seen.
func pickedUp(f Flow) Flow {
	f.TCPState = 3
	return f
}

func TestStale(t *testing.T) {
	for _, tt := range staleCases {
		if got := stale(&tt.flow, desired); got != tt.stale {
			t.Errorf("%s: stale is %t, want %t", tt.name, got, tt.stale)
		}
	}
}

var changeCases = []struct {
	name   string
	change tracker.FlowChange
	flow   Flow
	stale  bool
}{
	{
		"endpoint removed",
		tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353")},
		flow(tracker.UDP, client, "10.96.0.10:53", "10.244.9.9:5353", established), true,
	}, {
		"another endpoint of the same frontend",
		tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353")},
		flow(tracker.UDP, client, "10.96.0.10:53", "10.244.1.5:5353", established), false,
	}, {
		"the same endpoint at a frontend that did not change",
		tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353")},
		flow(tracker.UDP, client, "203.0.113.5:443", "10.244.9.9:5353", established), false,
	}, {
		"endpoint of TCP removed",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353")},
		flow(tracker.TCP, client, "10.96.0.10:53", "10.244.9.9:5353", established), false,
	}, {
		"with resets: endpoint of TCP removed",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.40:443"), Removed: served("10.244.9.9:8443")},
		flow(tracker.TCP, client, "10.96.0.40:443", "10.244.9.9:8443", established), true,
	}, {
		"with resets: three endpoints of TCP removed",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.40:443"),
			Removed: served("10.244.9.7:8443", "10.244.9.8:8443", "10.244.9.9:8443")},
		flow(tracker.TCP, client, "10.96.0.40:443", "10.244.9.9:8443", established), true,
	}, {
		"with resets: endpoint of a node port removed",
		tracker.FlowChange{Frontend: at(tracker.TCP, "0.0.0.0:30443"), Removed: served("10.244.9.9:8443")},
		flow(tracker.TCP, client, "192.0.2.1:30443", "10.244.9.9:8443", established), true,
	}, {
		"with resets: another endpoint",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.40:443"), Removed: served("10.244.9.9:8443")},
		flow(tracker.TCP, client, "10.96.0.40:443", "10.244.0.8:8443", established), false,
	}, {
		"resets asked for after the endpoint left",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.40:443"), Reset: true},
		flow(tracker.TCP, client, "10.96.0.40:443", "10.244.9.9:8443", established), true,
	}, {
		"the same, SCTP",
		tracker.FlowChange{Frontend: at(tracker.SCTP, "10.96.0.40:90"), Reset: true},
		flow(tracker.SCTP, client, "10.96.0.40:90", "10.244.9.9:90", established), true,
	}, {
		"resets not asked for any more when the clean-up begins",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353"), Reset: true},
		flow(tracker.TCP, client, "10.96.0.10:53", "10.244.9.9:5353", established), false,
	}, {
		"scaled to zero",
		tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.20:53"), Gone: true},
		flow(tracker.UDP, client, "10.96.0.20:53", "10.244.0.5:53", established), true,
	}, {
		"scaled up again",
		tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.10:53"), Appeared: true},
		flow(tracker.UDP, client, "10.96.0.10:53", "10.96.0.10:53", 0), true,
	}, {
		"frontend gone",
		tracker.FlowChange{Frontend: at(tracker.UDP, "203.0.113.9:53"), Gone: true},
		flow(tracker.UDP, client, "203.0.113.9:53", "10.244.0.5:53", established), true,
	}, {
		"frontend gone, flow translated by another program",
		tracker.FlowChange{Frontend: at(tracker.UDP, "203.0.113.9:53"), Gone: true, Removed: served("10.244.0.5:53")},
		flow(tracker.UDP, client, "203.0.113.9:53", "172.17.0.2:53", established), false,
	}, {
		"frontend gone, flow never translated",
		tracker.FlowChange{Frontend: at(tracker.UDP, "203.0.113.9:53"), Gone: true},
		flow(tracker.UDP, client, "203.0.113.9:53", "203.0.113.9:53", 0), false,
	}, {
		"endpoint removed, and meanwhile the frontend is gone",
		tracker.FlowChange{Frontend: at(tracker.UDP, "203.0.113.9:53"), Removed: served("10.244.0.5:53")},
		flow(tracker.UDP, client, "203.0.113.9:53", "10.244.0.5:53", established), true,
	}, {
		"the same, flow translated by another program",
		tracker.FlowChange{Frontend: at(tracker.UDP, "203.0.113.9:53"), Removed: served("10.244.0.5:53")},
		flow(tracker.UDP, client, "203.0.113.9:53", "172.17.0.2:53", established), false,
	}, {
		"endpoint removed, and meanwhile it is back",
		tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: served("10.244.1.5:5353")},
		flow(tracker.UDP, client, "10.96.0.10:53", "10.244.1.5:5353", established), false,
	}, {
		"node port gone",
		tracker.FlowChange{Frontend: at(tracker.UDP, "0.0.0.0:30099"), Gone: true, Removed: served("10.244.0.5:53")},
		flow(tracker.UDP, client, "192.0.2.1:30099", "10.244.0.5:53", established), true,
	}, {
		"node port gone, other address",
		tracker.FlowChange{Frontend: at(tracker.UDP, "0.0.0.0:30099"), Gone: true, Removed: served("10.244.0.5:53")},
		flow(tracker.UDP, client, "192.0.2.99:30099", "10.244.0.5:53", established), false,
	}, {
		"node port gone, published by another program",
		tracker.FlowChange{Frontend: at(tracker.UDP, "0.0.0.0:30099"), Gone: true},
		flow(tracker.UDP, client, "192.0.2.1:30099", "172.17.0.2:53", established), false,
	}, {
		"node port gone, a program on the node took the port",
		tracker.FlowChange{Frontend: at(tracker.UDP, "0.0.0.0:30099"), Gone: true, Removed: served("10.244.0.5:53")},
		flow(tracker.UDP, client, "192.0.2.1:30099", "192.0.2.1:30099", established), false,
	}, {
		"node port appeared",
		tracker.FlowChange{Frontend: at(tracker.TCP, "0.0.0.0:30080"), Appeared: true},
		flow(tracker.TCP, client, "192.0.2.1:30080", "192.0.2.1:30080", 0), true,
	}, {
		"frontend appeared, SYN to it",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.10:53"), Appeared: true},
		flow(tracker.TCP, client, "10.96.0.10:53", "10.96.0.10:53", 0), true,
	}, {
		"endpoint removed, SYN to it",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353")},
		flow(tracker.TCP, client, "10.96.0.10:53", "10.96.0.10:53", 0), false,
	}, {
		"frontend appeared, SYN to another port of its cluster IP",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.10:53"), Appeared: true},
		flow(tracker.TCP, client, "10.96.0.10:99", "10.96.0.10:99", 0), true,
	}, {
		"frontend appeared, SYN to another port of its external IP",
		tracker.FlowChange{Frontend: at(tracker.UDP, "203.0.113.5:443"), Appeared: true},
		flow(tracker.TCP, client, "203.0.113.5:99", "203.0.113.5:99", 0), false,
	}, {
		"frontend appeared, SYN to an unrelated cluster IP",
		tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.10:53"), Appeared: true},
		flow(tracker.TCP, client, "10.96.0.30:99", "10.96.0.30:99", 0), false,
	},
}

func endpoints(list ...string) (addrs []netip.AddrPort) {
	for _, ep := range list {
		addrs = append(addrs, netip.MustParseAddrPort(ep))
	}
	return addrs
}

func served(list ...string) []tracker.Served { return []tracker.Served{{List: endpoints(list...)}} }

// TestChange also checks that what is stale would be asked for, and that a full clean-up
// needs no change of a frontend that is there: its flows it finds by itself.
func TestChange(t *testing.T) {
	for _, tt := range changeCases {
		set := newChangeSet([]tracker.FlowChange{tt.change}, desired)
		if got := set.stale(&tt.flow); got != tt.stale {
			t.Errorf("%s: stale is %t, want %t", tt.name, got, tt.stale)
		}
		asked := slices.ContainsFunc(set.filters(), func(f Filter) bool { return f.Matches(&tt.flow) })
		if tt.stale && !asked {
			t.Errorf("%s: %v does not select the flow", tt.name, set.filters())
		}
		if _, known := desired.Endpoints(tt.change.Frontend); known && tt.stale && !stale(&tt.flow, desired) {
			t.Errorf("%s: a full clean-up leaves the flow", tt.name)
		}
	}
}

// TestFiltersOfFullCleanUp checks that nothing stale escapes the filters of a full clean-up.
func TestFiltersOfFullCleanUp(t *testing.T) {
	for _, tt := range staleCases {
		matches := func(f Filter) bool { return f.Matches(&tt.flow) }
		asked := slices.ContainsFunc(staleFilters(tracker.IPv4, true, true, true), matches)
		if tt.stale && !asked {
			t.Errorf("%s: not selected", tt.name)
		}
	}
}

// TestFiltersOfChanges: a clean-up reads only the protocols and families in which changes can have made flows stale.
func TestFiltersOfChanges(t *testing.T) {
	gone := served("10.244.9.9:5353")
	for _, tt := range []struct {
		name    string
		changes []tracker.FlowChange
		want    []Filter
	}{
		{name: "nothing"},
		{
			name:    "endpoint of UDP removed",
			changes: []tracker.FlowChange{{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: gone}},
			want:    []Filter{{Family: tracker.IPv4, Protocol: tracker.UDP}},
		}, {
			name:    "endpoint of UDP removed in IPv6",
			changes: []tracker.FlowChange{{Frontend: at(tracker.UDP, "[fd00:96::10]:53"), Removed: gone}},
			want:    []Filter{{Family: tracker.IPv6, Protocol: tracker.UDP}},
		}, {
			name:    "endpoint of TCP removed: nothing to do",
			changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "10.96.0.10:53"), Removed: gone}},
		}, {
			name:    "endpoint of TCP removed, with resets",
			changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "10.96.0.40:443"), Removed: gone}},
			want:    staleFilters(tracker.IPv4, false, false, true),
		}, {
			name:    "resets asked for",
			changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "10.96.0.40:443"), Reset: true}},
			want:    staleFilters(tracker.IPv4, false, false, true),
		}, {
			name:    "frontend of TCP appeared",
			changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "10.96.0.10:53"), Appeared: true}},
			want:    []Filter{{Family: tracker.IPv4, Lacks: SeenReply | DestinationNAT}},
		}, {
			name: "frontend of UDP appeared, another one gone",
			changes: []tracker.FlowChange{
				{Frontend: at(tracker.UDP, "10.96.0.10:53"), Appeared: true},
				{Frontend: tracker.NodePort(tracker.IPv4, tracker.UDP, 30053), Gone: true, Removed: gone},
			},
			want: []Filter{{Family: tracker.IPv4, Protocol: tracker.UDP},
				{Family: tracker.IPv4, Lacks: SeenReply | DestinationNAT}},
		}, {
			name: "both families",
			changes: []tracker.FlowChange{
				{Frontend: tracker.NodePort(tracker.IPv4, tracker.UDP, 30053), Gone: true, Removed: gone},
				{Frontend: tracker.NodePort(tracker.IPv6, tracker.TCP, 30080), Appeared: true},
			},
			want: []Filter{{Family: tracker.IPv4, Protocol: tracker.UDP},
				{Family: tracker.IPv6, Lacks: SeenReply | DestinationNAT}},
		},
	} {
		if got := newChangeSet(tt.changes, desired).filters(); !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, got, tt.want)
		}
	}
}
