package packets

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// oracleRules stand in for a proxy that is right about every one of oracleFlows.
const oracleRules = `table inet proxy {
	chain services {
		ip daddr 10.96.0.10 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip to numgen random mod 2 map {
			0 : 10.244.0.5 . 8080, 1 : 10.244.1.5 . 8080 }
		ip6 daddr fd00:10:96::10 meta l4proto { tcp, udp, sctp } th dport 80 dnat ip6 to [fd00:10:244::5]:8080
		ip daddr 192.168.0.2 meta l4proto { tcp, udp, sctp } th dport 30080 dnat ip to 192.168.0.2:9100
		ip daddr 10.96.0.98 meta l4proto tcp reject with tcp reset
		ip daddr { 10.96.0.98, 10.96.0.99 } reject
		ip6 daddr fd00:10:96::99 reject
		ip daddr 10.96.0.77 drop
	}
	chain prerouting {
		type nat hook prerouting priority -100
		jump services
	}
	chain output {
		type nat hook output priority -100
		jump services
	}
	chain postrouting {
		type nat hook postrouting priority 100
		ct status dnat ip saddr { 203.0.113.2, 192.168.0.2 } masquerade fully-random
		ct status dnat ip6 saddr 2001:db8:113::2 masquerade fully-random
	}
}
`

// oracleNode are the addresses of the node in the oracle's own tests.
var oracleNode = []netip.Addr{netip.MustParseAddr("192.168.0.2"), netip.MustParseAddr("fd00:192:168::2")}

// oracleFlow makes a flow from text; the expectation is YAML as in the cases.
func oracleFlow(t *testing.T, via, from, proto, to, expect string) flow {
	t.Helper()
	c, err := parseCase([]byte("name: c\nnodeIPs: [192.168.0.2]\nflows:\n- {name: f, from: '" + from +
		"', via: " + via + ", proto: " + proto + ", to: '" + to + "', expect: " + expect + "}\n"))
	if err != nil {
		t.Fatal(err)
	}
	return c.Flows[0]
}

// oracleBench returns a bench on which rules are loaded, with listeners for some flows.
func oracleBench(t *testing.T, rules string, flows ...flow) *bench {
	t.Helper()
	pods, err := (&proxySettings{}).podRanges()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, oracleNode, pods)
	if err := b.listenFor(flows); err != nil {
		t.Fatal(err)
	}
	if rules != "" {
		lab.Run(t, rules, "nft", "-f", "-")
	}
	return b
}

// Expectations of the oracle's own tests.
const (
	toPods    = "{dnat: ['10.244.0.5:8080', '10.244.1.5:8080'], masquerade: false}"
	toPodsOut = "{dnat: ['10.244.0.5:8080', '10.244.1.5:8080'], masquerade: true}"
	toPod6    = "{dnat: ['[fd00:10:244::5]:8080'], masquerade: false}"
	toPod6Out = "{dnat: ['[fd00:10:244::5]:8080'], masquerade: true}"
	toNode    = "{dnat: ['192.168.0.2:9100'], masquerade: false}"
	toNodeOwn = "{dnat: ['192.168.0.2:9100'], masquerade: true}"
	isReject  = "{reject: true}"
	isDrop    = "{drop: true}"
	passes    = "{passthrough: true}"
)

// oracleFlows are flows of every kind, way and protocol, by their outcome under oracleRules.
var oracleFlows = []struct{ name, via, from, proto, to, expect string }{
	{"pod to pods", "pod", "10.244.0.7", "tcp", "10.96.0.10:80", toPods},
	{"pod to pods, udp", "pod", "10.244.0.7", "udp", "10.96.0.10:80", toPods},
	{"pod to pods, sctp", "pod", "10.244.0.7", "sctp", "10.96.0.10:80", toPods},
	{"client to pods", "external", "203.0.113.2", "tcp", "10.96.0.10:80", toPodsOut},
	{"client to pods, udp", "external", "203.0.113.2", "udp", "10.96.0.10:80", toPodsOut},
	{"client to pods, sctp", "external", "203.0.113.2", "sctp", "10.96.0.10:80", toPodsOut},
	{"node to pods", "local", "192.168.0.2", "tcp", "10.96.0.10:80", toPodsOut},
	{"node to pods, udp", "local", "192.168.0.2", "udp", "10.96.0.10:80", toPodsOut},
	{"node to pods, sctp", "local", "192.168.0.2", "sctp", "10.96.0.10:80", toPodsOut},
	{"pod to pod, IPv6", "pod", "fd00:10:244::7", "tcp", "[fd00:10:96::10]:80", toPod6},
	{"pod to pod, IPv6 udp", "pod", "fd00:10:244::7", "udp", "[fd00:10:96::10]:80", toPod6},
	{"client to pod, IPv6", "external", "2001:db8:113::2", "tcp", "[fd00:10:96::10]:80", toPod6Out},
	{"client to pod, IPv6 sctp", "external", "2001:db8:113::2", "sctp", "[fd00:10:96::10]:80", toPod6Out},
	{"node to pod, IPv6", "local", "fd00:192:168::2", "tcp", "[fd00:10:96::10]:80", toPod6Out},
	{"node to pod, IPv6 sctp", "local", "fd00:192:168::2", "sctp", "[fd00:10:96::10]:80", toPod6Out},
	{"pod to the node", "pod", "10.244.0.7", "tcp", "192.168.0.2:30080", toNode},
	{"pod to the node, udp", "pod", "10.244.0.7", "udp", "192.168.0.2:30080", toNode},
	{"pod to the node, sctp", "pod", "10.244.0.7", "sctp", "192.168.0.2:30080", toNode},
	{"node to itself", "local", "192.168.0.2", "tcp", "192.168.0.2:30080", toNodeOwn},
	{"pod refused", "pod", "10.244.0.7", "tcp", "10.96.0.99:80", isReject},
	{"pod refused, udp", "pod", "10.244.0.7", "udp", "10.96.0.99:80", isReject},
	{"pod refused, sctp", "pod", "10.244.0.7", "sctp", "10.96.0.99:80", isReject},
	{"pod reset", "pod", "10.244.0.7", "tcp", "10.96.0.98:80", isReject},
	{"client refused", "external", "203.0.113.2", "tcp", "10.96.0.99:80", isReject},
	{"client refused, IPv6", "external", "2001:db8:113::2", "udp", "[fd00:10:96::99]:80", isReject},
	{"node refused", "local", "192.168.0.2", "tcp", "10.96.0.99:80", isReject},
	{"node refused, udp", "local", "192.168.0.2", "udp", "10.96.0.99:80", isReject},
	{"node reset", "local", "192.168.0.2", "tcp", "10.96.0.98:80", isReject},
	{"node refused, IPv6", "local", "fd00:192:168::2", "tcp", "[fd00:10:96::99]:80", isReject},
	{"pod dropped", "pod", "10.244.0.7", "tcp", "10.96.0.77:80", isDrop},
	{"client dropped", "external", "203.0.113.2", "udp", "10.96.0.77:80", isDrop},
	{"node dropped", "local", "192.168.0.2", "tcp", "10.96.0.77:80", isDrop},
	{"node dropped, udp", "local", "192.168.0.2", "udp", "10.96.0.77:80", isDrop},
	{"client through the node", "external", "203.0.113.2", "tcp", "198.51.100.1:80", passes},
	{"pod to the world, IPv6", "pod", "fd00:10:244::7", "udp", "[2001:db8:51::1]:80", passes},
	{"client to a listener", "external", "203.0.113.2", "tcp", "192.168.0.2:30081", passes},
	{"client to a listener, udp", "external", "203.0.113.2", "udp", "192.168.0.2:30081", passes},
	{"client to a listener, sctp", "external", "203.0.113.2", "sctp", "192.168.0.2:30081", passes},
	{"client to a listener, IPv6 sctp", "external", "2001:db8:113::2", "sctp", "[fd00:192:168::2]:30081", passes},
	{"node to a listener", "local", "192.168.0.2", "tcp", "192.168.0.2:30081", passes},
	{"node to loopback", "local", "192.168.0.2", "tcp", "127.0.0.1:30081", passes},
	{"node to the world", "local", "192.168.0.2", "tcp", "198.51.100.1:80", passes},
}

func TestOracleAcceptsWhatIsRight(t *testing.T) {
	var flows []flow
	for _, f := range oracleFlows {
		flows = append(flows, oracleFlow(t, f.via, f.from, f.proto, f.to, f.expect))
	}
	b := oracleBench(t, oracleRules, flows...)
	for i, f := range flows {
		if complaint := b.complaint(f); complaint != "" {
			t.Errorf("%s: %s", oracleFlows[i].name, complaint)
		}
	}
}

// TestOracleWithoutRules has no connection tracking to lean on.
func TestOracleWithoutRules(t *testing.T) {
	var flows []flow
	for _, f := range oracleFlows {
		if f.expect == passes {
			flows = append(flows, oracleFlow(t, f.via, f.from, f.proto, f.to, f.expect))
		}
	}
	b := oracleBench(t, "", flows...)
	for _, f := range flows {
		if complaint := b.complaint(f); complaint != "" {
			t.Errorf("%s via %s: %s", f.To, f.Via, complaint)
		}
	}
}

// TestOracleCatchesWhatIsWrong breaks one rule at a time.
func TestOracleCatchesWhatIsWrong(t *testing.T) {
	const forged = "chain forward { type filter hook forward priority 200; "
	for _, tt := range []struct {
		name     string
		from, to string // what is replaced in oracleRules
		flow     flow
		want     string
	}{
		{"wrong backend", "1 : 10.244.1.5", "1 : 10.244.1.6", oracleFlow(t, "pod", "10.244.0.7", "tcp", "10.96.0.10:80",
			toPods), "delivered to 10.244.1.6:8080 from 10.244.0.7"},
		{"wrong port", "1 : 10.244.1.5 . 8080", "1 : 10.244.1.5 . 8081", oracleFlow(t, "pod", "10.244.0.7", "udp",
			"10.96.0.10:80", toPods), "delivered to 10.244.1.5:8081 from 10.244.0.7"},
		{"backend never reached", "mod 2", "mod 1", oracleFlow(t, "pod", "10.244.0.7", "tcp", "10.96.0.10:80", toPods),
			"  80 x delivered to 10.244.0.5:8080 from 10.244.0.7"},
		{"missing masquerade", "203.0.113.2", "203.0.113.3", oracleFlow(t, "external", "203.0.113.2", "tcp", "10.96.0.10:80",
			toPodsOut), "delivered to 10.244.1.5:8080 from 203.0.113.2"},
		{"needless masquerade", "ip saddr { 203.0.113.2, 192.168.0.2 }", "", oracleFlow(t, "pod", "10.244.0.7", "tcp",
			"10.96.0.10:80", toPods), "delivered to 10.244.1.5:8080 from 192.168.0.2"},
		{"reject for drop", "10.96.0.77 drop", "10.96.0.77 reject", oracleFlow(t, "pod", "10.244.0.7", "tcp", "10.96.0.77:80",
			isDrop), "  40 x rejected"},
		{"reject for drop on the node", "10.96.0.77 drop", "10.96.0.77 reject", oracleFlow(t, "local", "192.168.0.2", "tcp",
			"10.96.0.77:80", isDrop), "  40 x rejected"},
		{"drop for reject", "{ 10.96.0.98, 10.96.0.99 } reject", "10.96.0.99 drop", oracleFlow(t, "pod", "10.244.0.7", "tcp",
			"10.96.0.99:80", isReject), "  40 x dropped"},
		{"drop for reject on the node", "{ 10.96.0.98, 10.96.0.99 } reject", "10.96.0.99 drop",
			oracleFlow(t, "local", "192.168.0.2", "udp", "10.96.0.99:80", isReject), "  40 x dropped"},
		{"pass for drop", "ip daddr 10.96.0.77 drop", "", oracleFlow(t, "pod", "10.244.0.7", "udp", "10.96.0.77:80", isDrop),
			"  40 x delivered to 10.96.0.77:80 from 10.244.0.7"},
		{"pass for reject, node", "{ 10.96.0.98, 10.96.0.99 } reject", "10.96.0.98 reject",
			oracleFlow(t, "local", "192.168.0.2", "tcp", "10.96.0.99:80", isReject),
			"  40 x delivered to 10.96.0.99:80 from 192.168.0.2"},
		{"reject for pass", "10.96.0.77 drop", "192.168.0.2 reject", oracleFlow(t, "external", "203.0.113.2", "tcp",
			"192.168.0.2:30081", passes), "  40 x rejected"},
		{"redirect for pass", "10.96.0.77 drop", "192.168.0.2 tcp dport 30081 redirect to :9100",
			oracleFlow(t, "external", "203.0.113.2", "tcp", "192.168.0.2:30081", passes),
			"  40 x delivered to 192.168.0.2:9100 from 203.0.113.2"},
		{"masquerade for pass", "ct status dnat ip saddr { 203.0.113.2, 192.168.0.2 }", "",
			oracleFlow(t, "external", "203.0.113.2", "tcp", "198.51.100.1:80", passes),
			"  40 x delivered to 198.51.100.1:80 from 192.168.0.2"},
		{"some are lost", "chain prerouting",
			"chain early { type filter hook prerouting priority -200; ip daddr 10.96.0.10 numgen inc mod 8 0 drop; }\nchain " +
				"prerouting", oracleFlow(t, "pod", "10.244.0.7", "tcp", "10.96.0.10:80", toPods), "  10 x dropped"},
		{"answers are lost", "chain prerouting", forged + "tcp flags & (syn | ack) == syn | ack drop; }\nchain prerouting",
			oracleFlow(t, "pod", "10.244.0.7", "tcp", "10.96.0.10:80", toPods),
			"the endpoint's answer did not come back as tcp 10.96.0.10:80 -> 10.244.0.7:"},
		{"node loses answers", "chain prerouting",
			"chain in { type filter hook input priority 0; tcp flags & (syn | ack) == syn | ack drop; }\nchain prerouting",
			oracleFlow(t, "local", "192.168.0.2", "tcp", "10.96.0.10:80", toPodsOut),
			"the node's socket does not take the answer to tcp 192.168.0.2:"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rules := strings.Replace(oracleRules, tt.from, tt.to, 1)
			if rules == oracleRules {
				t.Fatal("the replacement changes nothing")
			}
			b := oracleBench(t, rules, tt.flow, oracleFlow(t, "pod", "10.244.0.7", "tcp", "192.168.0.2:9100", passes))
			if complaint := b.complaint(tt.flow); !strings.Contains(complaint, tt.want) {
				t.Errorf("want a complaint with %q, got %q", tt.want, complaint)
			}
		})
	}
}
