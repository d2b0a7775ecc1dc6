// Package nfttest holds values that the tests of several packages share: every statement with its
// text, tables that use them all, and elements in any number.
package nfttest

import (
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// A Statement is a rule of one statement, or of statements that belong together, with its text.
type Statement struct {
	Name string
	Rule func(nft.Family) nft.Rule
	ip   string
	ip6  string // empty if it is the same as ip
}

// Text is what nft lists for the rule in a table of family f.
func (s Statement) Text(f nft.Family) string {
	if f == nft.IP6 && s.ip6 != "" {
		return s.ip6
	}
	return s.ip
}

// Statements holds every statement that a rule of ours may have.
var Statements = []Statement{
	{"in set", always(nft.InSet{Key: []nft.Part{nft.Source}, Set: "addresses"}), "ip saddr @addresses",
		"ip6 saddr @addresses"},
	{"not in set", always(nft.InSet{Key: []nft.Part{nft.Destination}, Set: "addresses", Not: true}),
		"ip daddr != @addresses", "ip6 daddr != @addresses"},
	{"in set of four fields", always(nft.InSet{Key: []nft.Part{nft.Source, nft.Destination, nft.Protocol, nft.Port},
		Set: "pairs"}),
		"ip saddr . ip daddr . meta l4proto . th dport @pairs", "ip6 saddr . ip6 daddr . meta l4proto . th dport @pairs"},
	{"in no set of sources", always(nft.InSet{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port, nft.Source},
		Set: "sources", Not: true}),
		"ip daddr . meta l4proto . th dport . ip saddr != @sources",
		"ip6 daddr . meta l4proto . th dport . ip6 saddr != @sources"},
	{"numbered prefix in set", always(nft.InSet{Key: []nft.Part{nft.Constant(17), nft.SourcePrefix(24)}, Set: "numbered"}),
		"numgen random mod 1 offset 17 . ip saddr & 255.255.255.0 @numbered",
		"numgen random mod 1 offset 17 . ip6 saddr & ffff:ff00:: @numbered"},
	{"numbered prefix of odd length in set", always(nft.InSet{Key: []nft.Part{nft.Constant(70000), nft.SourcePrefix(9)},
		Set: "numbered"}),
		"numgen random mod 1 offset 70000 . ip saddr & 255.128.0.0 @numbered",
		"numgen random mod 1 offset 70000 . ip6 saddr & ff80:: @numbered"},
	{"numbered source in set", always(nft.InSet{Key: []nft.Part{nft.Constant(17), nft.Source}, Set: "numbered"}),
		"numgen random mod 1 offset 17 . ip saddr @numbered", "numgen random mod 1 offset 17 . ip6 saddr @numbered"},
	{"source in whole bytes", prefix(false, false, "10.244.0.0/16", "fd00::/64"), "ip saddr 10.244.0.0/16",
		"ip6 saddr fd00::/64"},
	{"source not in whole bytes", prefix(false, true, "10.0.0.0/8", "fd00::/8"), "ip saddr != 10.0.0.0/8",
		"ip6 saddr != fd00::/8"},
	{"source in bits", prefix(false, false, "10.240.0.0/12", "fd80::/9"), "ip saddr 10.240.0.0/12", "ip6 saddr fd80::/9"},
	{"source not in bits", prefix(false, true, "10.240.0.0/13", "2001:db8::/29"), "ip saddr != 10.240.0.0/13",
		"ip6 saddr != 2001:db8::/29"},
	{"source anywhere", prefix(false, false, "0.0.0.0/0", "::/0"), "ip saddr 0.0.0.0/0", "ip6 saddr ::/0"},
	{"source is", prefix(false, false, "192.0.2.1/32", "2001:db8::1/128"), "ip saddr 192.0.2.1", "ip6 saddr 2001:db8::1"},
	{"destination in", prefix(true, false, "10.244.1.7/16", "fd00::7/64"), "ip daddr 10.244.0.0/16",
		"ip6 daddr fd00::/64"},
	{"destination is not", prefix(true, true, "192.0.2.1/32", "2001:db8::1/128"), "ip daddr != 192.0.2.1",
		"ip6 daddr != 2001:db8::1"},
	{"loopback", prefix(true, true, "127.0.0.0/8", "::1/128"), "ip daddr != 127.0.0.0/8", "ip6 daddr != ::1"},
	{"interface", always(nft.InputInterface{Name: "eth0"}), `iifname "eth0"`, ""},
	{"not interface", always(nft.InputInterface{Name: "abcdefghijklmno", Not: true}), `iifname != "abcdefghijklmno"`, ""},
	{"interface prefix", always(nft.InputInterface{Name: "veth", Prefix: true}), `iifname "veth*"`, ""},
	{"not interface prefix", always(nft.InputInterface{Name: "c", Prefix: true, Not: true}), `iifname != "c*"`, ""},
	{"source local", always(nft.AddressLocal{Of: nft.Source}), "fib saddr type local", ""},
	{"destination local", always(nft.AddressLocal{Of: nft.Destination}), "fib daddr type local", ""},
	{"protocol", always(nft.ProtocolIs{Number: 17}), "meta l4proto udp", ""},
	{"port", always(nft.PortIs{Port: 8080}), "th dport 8080", ""},
	{"translated", always(nft.Translated{}), "ct status dnat", ""},
	{"mark has", always(nft.MarkHas{Bits: 0x4000}), "meta mark & 0x00004000 != 0x00000000", ""},
	{"set mark", always(nft.SetMark{Bits: 0x4000}), "meta mark set meta mark | 0x00004000", ""},
	{"set highest mark", always(nft.SetMark{Bits: 1 << 31}), "meta mark set meta mark | 0x80000000", ""},
	{"flip mark", always(nft.FlipMark{Bits: 1}), "meta mark set meta mark ^ 0x00000001", ""},
	{"verdict", always(nft.VerdictFrom{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port}, Map: "frontends"}),
		"ip daddr . meta l4proto . th dport vmap @frontends", "ip6 daddr . meta l4proto . th dport vmap @frontends"},
	{"verdict of node port", always(nft.VerdictFrom{Key: []nft.Part{nft.Protocol, nft.Port}, Map: "node-ports"}),
		"meta l4proto . th dport vmap @node-ports", ""},
	{"verdict of connection", always(nft.ProtocolIs{Number: 6},
		nft.VerdictFrom{Key: []nft.Part{nft.OriginalDestination, nft.Protocol, nft.OriginalPort}, Map: "frontends"}),
		"meta l4proto tcp ct original ip daddr . meta l4proto . ct original proto-dst vmap @frontends",
		"meta l4proto tcp ct original ip6 daddr . meta l4proto . ct original proto-dst vmap @frontends"},
	{"dnat", always(nft.DNATFrom{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port, nft.RandomIndex(2)},
		Map: "endpoints-tcp", Protocol: 6}),
		"dnat ip to ip daddr . meta l4proto . tcp dport . numgen random mod 2 map @endpoints-tcp",
		"dnat ip6 to ip6 daddr . meta l4proto . tcp dport . numgen random mod 2 map @endpoints-tcp"},
	{"dnat of node port", always(nft.DNATFrom{Key: []nft.Part{nft.Protocol, nft.Port, nft.RandomIndex(1000)},
		Map: "node-port-endpoints-tcp", Protocol: 6}),
		"dnat ip to meta l4proto . tcp dport . numgen random mod 1000 map @node-port-endpoints-tcp",
		"dnat ip6 to meta l4proto . tcp dport . numgen random mod 1000 map @node-port-endpoints-tcp"},
	{"dnat by hash",
		always(nft.DNATFrom{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port, nft.HashedIndex(2, true)},
			Map: "endpoints-tcp", Protocol: 6}),
		"dnat ip to ip daddr . meta l4proto . tcp dport . jhash ip saddr . tcp sport mod 2 seed 0x6b6e6674 map " +
			"@endpoints-tcp",
		"dnat ip6 to ip6 daddr . meta l4proto . tcp dport . jhash ip6 saddr . tcp sport mod 2 seed 0x6b6e6674 map " +
			"@endpoints-tcp"},
	{"dnat by hash of the address",
		always(nft.DNATFrom{Key: []nft.Part{nft.Protocol, nft.Port, nft.HashedIndex(1, false)},
			Map: "node-port-endpoints-tcp", Protocol: 6}),
		"dnat ip to meta l4proto . tcp dport . jhash ip saddr mod 1 seed 0x6b6e6674 map @node-port-endpoints-tcp",
		"dnat ip6 to meta l4proto . tcp dport . jhash ip6 saddr mod 1 seed 0x6b6e6674 map @node-port-endpoints-tcp"},
	{"dnat by hash from numbered list", always(nft.DNATFrom{Key: []nft.Part{nft.Constant(34), nft.HashedIndex(2, true)},
		Map: "lists", Protocol: 6}),
		"dnat ip to numgen random mod 1 offset 34 . jhash ip saddr . tcp sport mod 2 seed 0x6b6e6674 map @lists",
		"dnat ip6 to numgen random mod 1 offset 34 . jhash ip6 saddr . tcp sport mod 2 seed 0x6b6e6674 map @lists"},
	{"dnat by hash of the address from numbered list",
		always(nft.DNATFrom{Key: []nft.Part{nft.Constant(34), nft.HashedIndex(2, false)}, Map: "lists", Protocol: 6}),
		"meta l4proto tcp dnat ip to numgen random mod 1 offset 34 . jhash ip saddr mod 2 seed 0x6b6e6674 map @lists",
		"meta l4proto tcp dnat ip6 to numgen random mod 1 offset 34 . jhash ip6 saddr mod 2 seed 0x6b6e6674 map @lists"},
	{"dnat from numbered list",
		always(nft.DNATFrom{Key: []nft.Part{nft.Constant(34), nft.RandomIndex(2)}, Map: "lists", Protocol: 6}),
		"meta l4proto tcp dnat ip to numgen random mod 1 offset 34 . numgen random mod 2 map @lists",
		"meta l4proto tcp dnat ip6 to numgen random mod 1 offset 34 . numgen random mod 2 map @lists"},
	{"dnat from numbered addresses and ports", always(nft.DNATFrom{Key: []nft.Part{nft.Constant(34), nft.RandomIndex(2)},
		Map: "list-addresses", Protocol: 6, PortKey: []nft.Part{nft.Constant(34), nft.Port}, Ports: "list-ports"}),
		"meta l4proto tcp dnat to numgen random mod 1 offset 34 . numgen random mod 2 map @list-addresses:" +
			"numgen random mod 1 offset 34 . tcp dport map @list-ports", ""},
	{"dnat to port", numbered(func(key func(nft.Part) []nft.Part) nft.Rule {
		return nft.Rule{nft.ProtocolIs{Number: 6}, nft.DNATFrom{Key: key(nft.Source), Map: "affinity", ToPort: 8080}}
	}),
		"meta l4proto tcp dnat to numgen random mod 1 offset 34 . ip saddr map @affinity:8080",
		"meta l4proto tcp dnat to ip6 saddr & ffff:ffff:ffff:ffff:0:22:ffff:ffff | ::22:0:0 map @affinity:8080"},
	{"not a member", always(nft.InSet{Key: []nft.Part{nft.Constant(34), nft.Destination}, Set: "numbered", Not: true}),
		"numgen random mod 1 offset 34 . ip daddr != @numbered", "numgen random mod 1 offset 34 . ip6 daddr != @numbered"},
	{"update", numbered(func(key func(nft.Part) []nft.Part) nft.Rule {
		return nft.Rule{nft.Update{Key: key(nft.OriginalSource), Map: "affinity", Timeout: 10800}}
	}),
		"update @affinity { numgen random mod 1 offset 34 . ct original ip saddr timeout 3h : ip daddr }",
		"update @affinity { ct original ip6 saddr & ffff:ffff:ffff:ffff:0:22:ffff:ffff | ::22:0:0 timeout 3h : ip6 daddr }"},
	{"forget", numbered(func(key func(nft.Part) []nft.Part) nft.Rule {
		return nft.Rule{nft.Forget{Key: key(nft.OriginalSource), Map: "affinity"}, nft.Drop}
	}),
		"delete @affinity { numgen random mod 1 offset 34 . ct original ip saddr : ip daddr } drop",
		"delete @affinity { ct original ip6 saddr & ffff:ffff:ffff:ffff:0:22:ffff:ffff | ::22:0:0 : ip6 daddr } drop"},
	{"update for long", always(nft.Update{Key: []nft.Part{nft.OriginalSource}, Map: "affinity-x-8080", Timeout: 90061}),
		"update @affinity-x-8080 { ct original ip saddr timeout 1d1h1m1s : ip daddr }",
		"update @affinity-x-8080 { ct original ip6 saddr timeout 1d1h1m1s : ip6 daddr }"},
	{"update after matches", always(nft.PortIs{Port: 8080}, nft.InSet{Key: []nft.Part{nft.Destination}, Set: "addresses"},
		nft.Update{Key: []nft.Part{nft.OriginalSource}, Map: "affinity-x-8080", Timeout: 1}),
		"th dport 8080 ip daddr @addresses update @affinity-x-8080 { ct original ip saddr timeout 1s : ip daddr }",
		"th dport 8080 ip6 daddr @addresses update @affinity-x-8080 { ct original ip6 saddr timeout 1s : ip6 daddr }"},
	{"update of a member and return", always(nft.InSet{Key: []nft.Part{nft.Destination}, Set: "addresses"},
		nft.Update{Key: []nft.Part{nft.OriginalSource}, Map: "affinity-x-8080", Timeout: 1}, nft.Return),
		"ip daddr @addresses update @affinity-x-8080 { ct original ip saddr timeout 1s : ip daddr } return",
		"ip6 daddr @addresses update @affinity-x-8080 { ct original ip6 saddr timeout 1s : ip6 daddr } return"},
	{"masquerade", always(nft.Masquerade{}), "masquerade fully-random", ""},
	{"reject tcp", always(nft.RejectTCP{}), "reject with tcp reset", ""},
	{"reject mid-flow", always(nft.RejectTCP{MidFlow: true}), "tcp flags ! syn reject with tcp reset", ""},
	{"reject", always(nft.Reject{}), "reject", ""},
	{"echo request", always(nft.EchoRequest{}), "icmp type echo-request", "icmpv6 type echo-request"},
	{"redirect", always(nft.EchoRequest{}, nft.InSet{Key: []nft.Part{nft.Destination}, Set: "addresses"}, nft.Redirect{}),
		"icmp type echo-request ip daddr @addresses redirect", "icmpv6 type echo-request ip6 daddr @addresses redirect"},
	{"counter", always(nft.Counter{}), "counter packets 0 bytes 0", ""},
	{"jump", always(nft.Jump("other")), "jump other", ""},
	{"goto", always(nft.Goto("other")), "goto other", ""},
	{"drop", always(nft.Drop), "drop", ""},
	{"return", always(nft.Return), "return", ""},
	{"several", always(nft.Translated{}, nft.InSet{Key: []nft.Part{nft.Source}, Set: "addresses"}, nft.Masquerade{}),
		"ct status dnat ip saddr @addresses masquerade fully-random",
		"ct status dnat ip6 saddr @addresses masquerade fully-random"},
}

func always(r ...nft.Stmt) func(nft.Family) nft.Rule { return func(nft.Family) nft.Rule { return r } }

// numbered makes a rule with the key of a numbered source.
func numbered(rule func(key func(nft.Part) []nft.Part) nft.Rule) func(nft.Family) nft.Rule {
	return func(f nft.Family) nft.Rule {
		return rule(func(source nft.Part) []nft.Part { return nft.Numbered(f, 34, source) })
	}
}

func prefix(destination, not bool, ip, ip6 string) func(nft.Family) nft.Rule {
	return func(f nft.Family) nft.Rule {
		p := netip.MustParsePrefix(ip)
		if f == nft.IP6 {
			p = netip.MustParsePrefix(ip6)
		}
		if destination {
			return nft.Rule{nft.AddressIn{Of: nft.Destination, Prefix: p, Not: not}}
		}
		return nft.Rule{nft.AddressIn{Of: nft.Source, Prefix: p, Not: not}}
	}
}

// StatementTables returns tables with all statements, a rule each, in base chains of the hook
// in which the kernel takes them.
func StatementTables() nft.Tables {
	tables := make(nft.Tables)
	for _, f := range nft.Families {
		t := nft.NewTable(f)
		for _, s := range StatementSets(f) {
			t.Sets[s.Name] = &nft.Elements{Set: s, Map: map[string]nft.Element{}}
		}
		before := &nft.Chain{Name: "before", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -101}}
		after := &nft.Chain{Name: "after", Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: 100}}
		for _, s := range Statements {
			rule, chain := s.Rule(f), before
			if slices.Contains(rule, nft.Stmt(nft.Masquerade{})) {
				chain = after
			}
			chain.Rules = append(chain.Rules, rule)
		}
		for _, c := range []*nft.Chain{before, after, {Name: "other"}} {
			t.Chains[c.Name] = c
		}
		tables[f] = t
	}
	return tables
}

// StatementSets returns the sets and maps that the statements in a table of family f refer to.
func StatementSets(f nft.Family) []*nft.Set {
	frontend := []nft.Field{nft.FieldAddr, nft.FieldProtocol, nft.FieldPort}
	endpoint := []nft.Field{nft.FieldAddr, nft.FieldPort}
	indexed := append(frontend, nft.FieldIndex)
	return []*nft.Set{
		{Name: "addresses", Key: []nft.Field{nft.FieldAddr}},
		{Name: "pairs", Key: []nft.Field{nft.FieldAddr, nft.FieldAddr, nft.FieldProtocol, nft.FieldPort}, Size: 1000},
		{Name: "sources", Key: append(frontend, nft.FieldAddr)},
		{Name: "numbered", Key: []nft.Field{nft.FieldIndex, nft.FieldAddr}},
		{Name: "prefixes", Key: []nft.Field{nft.FieldAddr}, Interval: true},
		{Name: "frontends", Key: frontend, Verdicts: true},
		{Name: "counted", Key: frontend, Verdicts: true, Counters: true},
		{Name: "node-ports", Key: frontend[1:], Verdicts: true},
		{Name: "endpoints-tcp", Key: indexed, Data: endpoint, Protocol: 6},
		{Name: "lists", Key: []nft.Field{nft.FieldIndex, nft.FieldIndex}, Data: endpoint, Protocol: 6},
		{Name: "list-addresses", Key: []nft.Field{nft.FieldIndex, nft.FieldIndex}, Data: endpoint[:1]},
		{Name: "list-ports", Key: []nft.Field{nft.FieldIndex, nft.FieldPort}, Data: endpoint[1:], Protocol: 6},
		{Name: "node-port-endpoints-tcp", Key: indexed[1:], Data: endpoint, Counters: true, Protocol: 6},
		{Name: "affinity", Key: nft.NumberedFields(f), Data: []nft.Field{nft.FieldAddr}, Dynamic: true, Size: 65536},
		{Name: "affinity-x-8080", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr}, Dynamic: true,
			Size: 65536},
		{Name: "ports", Key: []nft.Field{nft.FieldPort}},
	}
}
