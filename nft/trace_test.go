package nft_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

// The packet that traces begin with goes from client to frontend. A traced table knows both.
var (
	client    = pair("10.244.1.1", "fd00:244::1")
	frontend  = pair("10.96.0.1", "fd00:96::1")
	stranger  = pair("203.0.113.9", "2001:db9::9")
	endpoints = []map[nft.Family]netip.Addr{pair("10.244.9.1", "fd00:244:9::1"), pair("10.244.9.2", "fd00:244:9::2")}
)

const port, endpointPort, firstMark = 80, 8080, 0x4000

func pair(ip, ip6 string) map[nft.Family]netip.Addr {
	return map[nft.Family]netip.Addr{nft.IP: netip.MustParseAddr(ip), nft.IP6: netip.MustParseAddr(ip6)}
}

// A change makes another packet of the one that traces begin with.
type change func(*nft.Packet, nft.Family)

func same(*nft.Packet, nft.Family)      {}
func local(p *nft.Packet, _ nft.Family) { p.SourceLocal, p.DestinationLocal = true, true }
func udp(p *nft.Packet, _ nft.Family)   { p.Protocol = unix.IPPROTO_UDP }
func icmp(p *nft.Packet, _ nft.Family)  { p.Protocol = unix.IPPROTO_ICMP }

func to(port uint16) change { return func(p *nft.Packet, _ nft.Family) { p.Port = port } }

// fromPort makes the source port known; each family has its own.
func fromPort(ip, ip6 uint16) change {
	return func(p *nft.Packet, f nft.Family) { p.SourcePort = map[nft.Family]uint16{nft.IP: ip, nft.IP6: ip6}[f] }
}

func on(name string) change { return func(p *nft.Packet, _ nft.Family) { p.Interface = name } }

func from(addrs map[nft.Family]netip.Addr) change {
	return func(p *nft.Packet, f nft.Family) { p.Source = addrs[f] }
}

func toAddr(addrs map[nft.Family]netip.Addr) change {
	return func(p *nft.Packet, f nft.Family) { p.Destination = addrs[f] }
}

// A place makes rules at prerouting and postrouting of a statement.
type place func(nft.Rule) (before, after []nft.Rule)

// drops puts a verdict behind a match.
func drops(r nft.Rule) (before, after []nft.Rule) {
	return []nft.Rule{slices.Concat(r, nft.Rule{nft.Drop})}, nil
}

// echo is an echo request of the family; echoTo one to other addresses.
func echo(p *nft.Packet, f nft.Family) {
	p.Protocol, p.Port = unix.IPPROTO_ICMP, 0
	if f == nft.IP6 {
		p.Protocol = unix.IPPROTO_ICMPV6
	}
}

func echoTo(addrs map[nft.Family]netip.Addr) change {
	return func(p *nft.Packet, f nft.Family) {
		echo(p, f)
		p.Destination = addrs[f]
	}
}

// thenDrop has the next rule drop what the statement leaves to it.
func thenDrop(r nft.Rule) (before, after []nft.Rule) { return []nft.Rule{r, {nft.Drop}}, nil }

// thenDropMarked has the next rule drop what has a mark.
func thenDropMarked(bits uint32) place {
	return func(r nft.Rule) (before, after []nft.Rule) {
		return []nft.Rule{r, {nft.MarkHas{Bits: bits}, nft.Drop}}, nil
	}
}

var translate = nft.Rule{nft.DNATFrom{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port, nft.RandomIndex(2)},
	Map: "endpoints-tcp", Protocol: unix.IPPROTO_TCP}}

// atPostrouting is for statements about what has been translated.
func atPostrouting(r nft.Rule) (before, after []nft.Rule) {
	return []nft.Rule{translate}, []nft.Rule{r}
}

// atBoth has a match drop before anything is translated, and masquerade afterwards.
func atBoth(r nft.Rule) (before, after []nft.Rule) {
	return []nft.Rule{slices.Concat(r, nft.Rule{nft.Drop}), translate},
		[]nft.Rule{slices.Concat(r, nft.Rule{nft.Masquerade{}})}
}

// traces holds, for each statement, a packet that matches and one that does not, with what
// becomes of them. A statement that every packet matches has no other.
var traces = map[string]struct {
	place    place
	match    change
	want     string
	other    change
	wantElse string
}{
	"in set":                               {drops, same, "drop", from(stranger), "accept"},
	"not in set":                           {drops, same, "drop", toAddr(client), "accept"},
	"in set of four fields":                {drops, same, "drop", to(81), "accept"},
	"in no set of sources":                 {drops, from(stranger), "drop", same, "accept"},
	"numbered prefix in set":               {drops, same, "drop", from(stranger), "accept"},
	"numbered prefix of odd length in set": {drops, same, "drop", from(stranger), "accept"},
	"numbered source in set":               {drops, same, "drop", from(pair("10.244.1.2", "fd00:244::2")), "accept"},
	"source in whole bytes": {drops, from(pair("10.244.255.255", "fd00::ffff:ffff:ffff:ffff")), "drop",
		from(pair("10.245.0.0", "fd00:0:0:1::")), "accept"},
	"source not in whole bytes": {drops, from(pair("11.0.0.0", "fe00::")), "drop",
		from(pair("10.255.255.255", "fdff::")), "accept"},
	"source in bits": {drops, from(pair("10.255.255.255", "fd80::")), "drop",
		from(pair("10.239.0.0", "fd7f::")), "accept"},
	"source not in bits": {drops, from(pair("10.248.0.0", "2001:dc0::")), "drop",
		from(pair("10.247.255.255", "2001:dbf::")), "accept"},
	"source anywhere": {drops, from(stranger), "drop", nil, ""},
	"source is": {drops, from(pair("192.0.2.1", "2001:db8::1")), "drop",
		from(pair("192.0.2.2", "2001:db8::2")), "accept"},
	"destination in": {drops, toAddr(pair("10.244.255.255", "fd00::8")), "drop",
		toAddr(pair("10.245.0.0", "fd00:0:0:1::")), "accept"},
	"destination is not":              {drops, same, "drop", toAddr(pair("192.0.2.1", "2001:db8::1")), "accept"},
	"loopback":                        {drops, same, "drop", toAddr(pair("127.255.0.1", "::1")), "accept"},
	"interface":                       {drops, same, "drop", on("eth01"), "accept"},
	"not interface":                   {drops, same, "drop", on("abcdefghijklmno"), "accept"},
	"interface prefix":                {drops, on("veth12"), "drop", same, "accept"},
	"not interface prefix":            {drops, same, "drop", on("cni0"), "accept"},
	"source local":                    {drops, local, "drop", same, "accept"},
	"destination local":               {drops, local, "drop", same, "accept"},
	"protocol":                        {drops, udp, "drop", same, "accept"},
	"port":                            {drops, to(8080), "drop", same, "accept"},
	"translated":                      {atBoth, same, "dnat to 0 1 masqueraded", to(81), "accept"},
	"mark has":                        {drops, udp, "drop", same, "accept"},
	"set mark":                        {thenDropMarked(firstMark), same, "drop", nil, ""},
	"set highest mark":                {thenDropMarked(1 << 31), same, "drop", nil, ""},
	"flip mark":                       {thenDropMarked(1), same, "drop", nil, ""},
	"verdict":                         {thenDrop, same, "reject", to(81), "drop"},
	"verdict of node port":            {thenDrop, same, "reject", to(81), "drop"},
	"verdict of connection":           {thenDrop, same, "reject", udp, "drop"},
	"dnat":                            {thenDrop, same, "dnat to 0 1", to(81), "drop"},
	"dnat of node port":               {thenDrop, same, "dnat to 0", icmp, "drop"},
	"dnat by hash":                    {thenDrop, same, "dnat to 0 1", fromPort(2, 1), "dnat to 1"},
	"dnat by hash of the address":     {thenDrop, same, "dnat to 0", icmp, "drop"},
	"dnat by hash from numbered list": {thenDrop, same, "dnat to 0 1", udp, "drop"},
	"dnat by hash of the address from numbered list": {thenDrop, same, "dnat to 1", udp, "drop"},
	"dnat from numbered list":                        {thenDrop, same, "dnat to 0 1", udp, "drop"},
	"dnat from numbered addresses and ports":         {thenDrop, same, "dnat to 0 1", to(81), "drop"},
	"dnat to port":                                   {thenDrop, same, "dnat to 1", from(stranger), "drop"},
	"not a member":                                   {drops, same, "drop", toAddr(client), "accept"},
	"forget":                                         {drops, same, "drop", nil, ""},
	// changes nothing, and the next rule goes on
	"update":                        {thenDrop, same, "drop", nil, ""},
	"update for long":               {thenDrop, same, "drop", nil, ""},
	"update after matches":          {thenDrop, same, "drop", to(8080), "drop"},
	"update of a member and return": {thenDrop, toAddr(client), "accept", same, "drop"},
	"masquerade":                    {atPostrouting, same, "dnat to 0 1 masqueraded", nil, ""},
	"reject tcp":                    {thenDrop, same, "reject", udp, "drop"},
	"reject mid-flow":               {thenDrop, same, "drop", nil, ""}, // a first packet opens a connection
	"reject":                        {thenDrop, udp, "reject", nil, ""},
	"echo request":                  {drops, echo, "drop", same, "accept"},
	"redirect":                      {thenDrop, echoTo(client), "redirect", echo, "drop"},
	"counter":                       {thenDrop, same, "drop", nil, ""},
	"jump":                          {thenDrop, same, "reject", udp, "drop"},   // the chain rejects TCP; UDP comes back
	"goto":                          {thenDrop, same, "reject", udp, "accept"}, // and here it does not
	"drop": {func(r nft.Rule) (_, _ []nft.Rule) { return []nft.Rule{r, {nft.Reject{}}}, nil },
		same, "drop", nil, ""},
	"return":  {thenDrop, same, "accept", nil, ""},
	"several": {atPostrouting, same, "dnat to 0 1 masqueraded", from(stranger), "dnat to 0 1"},
}

func bigEndian() bool { return binary.NativeEndian.Uint16([]byte{0, 1}) == 1 }

// TestStatementsTrace traces a packet that a statement matches and one that it does not.
func TestStatementsTrace(t *testing.T) {
	known := maps.Clone(traces)
	for _, s := range nfttest.Statements {
		tt, ok := traces[s.Name]
		delete(known, s.Name)
		if !ok {
			t.Errorf("%s: not traced", s.Name)
			continue
		}
		for _, f := range nft.Families {
			if f == nft.IP6 && bigEndian() && strings.Contains(s.Name, "hash") {
				continue // the kernel hashes the first words in the node's byte order: other endpoints
			}
			table := tracedTable(f, tt.place, s.Rule(f))
			if got := traced(table, tt.match); got != tt.want {
				t.Errorf("%s: %s: a packet that matches: %s, want %s", f, s.Name, got, tt.want)
			}
			if tt.other == nil {
				continue
			}
			if got := traced(table, tt.other); got != tt.wantElse {
				t.Errorf("%s: %s: another packet: %s, want %s", f, s.Name, got, tt.wantElse)
			}
		}
	}
	for name := range known {
		t.Errorf("%s is no statement", name)
	}
}

// traced tells what becomes of a packet.
func traced(table *nft.Table, c change) string {
	f := table.Family
	p := nft.Packet{Source: client[f], Destination: frontend[f], Protocol: unix.IPPROTO_TCP, Port: port, Interface: "eth0"}
	c(&p, f)
	result := table.Trace(p)
	text := result.Outcome
	if len(result.Endpoints) > 0 {
		text += " to"
	}
	for _, ep := range result.Endpoints {
		number := slices.IndexFunc(endpoints, func(a map[nft.Family]netip.Addr) bool {
			return netip.AddrPortFrom(a[f], endpointPort) == ep
		})
		text += fmt.Sprintf(" %d", number)
	}
	if result.Masquerade {
		text += " masqueraded"
	}
	if result.Uneven || result.Holes > 0 || len(result.Hairpin) > 0 || len(result.Foreign) > 0 {
		text += fmt.Sprintf(", and %+v", result)
	}
	return text
}

// tracedTable is a table with the sets of the table of statements. They hold what the packet that
// traces begin with looks for; UDP gets the first mark before anything else.
func tracedTable(f nft.Family, place place, rule nft.Rule) *nft.Table {
	t := nfttest.StatementTables()[f]
	before, after := place(rule)
	t.Chains["before"].Rules = append([]nft.Rule{{nft.ProtocolIs{Number: unix.IPPROTO_UDP}, nft.SetMark{Bits: firstMark}}},
		before...)
	t.Chains["after"].Rules = after
	t.Chains["other"].Rules = []nft.Rule{{nft.RejectTCP{}}}
	source, destination := nft.AddrKey(client[f]), nft.AddrKey(frontend[f])
	portKey := string(nft.AppendPort(nft.AppendProtocol(nil, unix.IPPROTO_TCP), port))
	jump := nft.Goto("other")
	hold := func(set, key string, element nft.Element) { t.Sets[set].Map[key] = element }
	data := func(i int) nft.Element {
		return nft.Element{Data: nfttest.AddrPortData(netip.AddrPortFrom(endpoints[i][f], endpointPort))}
	}
	hold("addresses", source, nft.Element{})
	for bits, number := range map[int]uint32{24: 17, 9: 70000, client[f].BitLen(): 17} {
		prefix, _ := client[f].Prefix(bits)
		hold("numbered", string(nft.AppendAddr(nft.AppendNumber(nil, number), prefix.Addr())), nft.Element{})
	}
	hold("pairs", source+destination+portKey, nft.Element{})
	hold("sources", destination+portKey+nft.AddrKey(client[f]), nft.Element{})
	hold("frontends", destination+portKey, nft.Element{Verdict: &jump})
	hold("node-ports", portKey, nft.Element{Verdict: &jump})
	hold("list-ports", nft.NumberedPort(34, port), nft.Element{Data: nft.PortData(endpointPort)})
	for i := range endpoints {
		hold("endpoints-tcp", nft.IndexedKey(destination+portKey, i), data(i))
		hold("lists", nft.IndexedKey(string(nft.AppendNumber(nil, 34)), i), data(i))
		hold("list-addresses", nft.IndexedKey(string(nft.AppendNumber(nil, 34)), i),
			nft.Element{Data: nft.AddrKey(endpoints[i][f])})
	}
	for i := range 1000 {
		hold("node-port-endpoints-tcp", nft.IndexedKey(portKey, i), data(0))
	}
	hold("numbered", string(nft.AppendAddr(nft.AppendNumber(nil, 34), client[f])), nft.Element{})
	hold("affinity", nft.NumberedKey(f, 34, client[f]), nft.Element{Data: nft.AddrKey(endpoints[1][f])})
	hold("affinity-x-8080", source, nft.Element{Data: nft.AddrKey(endpoints[1][f])})
	return t
}

// TestTraceForeignElements follows verdicts that no kube-nft writes into a verdict map.
func TestTraceForeignElements(t *testing.T) {
	for _, tt := range []struct {
		name    string
		verdict nft.Verdict
		other   []nft.Rule // of the chain that some go to
		again   []nft.Rule // of a second base chain
		want    string
		foreign bool // the trace tells of the element
	}{
		{"accept", nft.Accept, nil, nil, "accept", true},
		{"accept, and a later base chain drops", nft.Accept, nil, []nft.Rule{{nft.Drop}}, "drop", true},
		{"jump to a chain that rejects", nft.Jump("other"), []nft.Rule{{nft.Reject{}}}, nil, "reject", false},
		{"jump to a chain that comes back", nft.Jump("other"), []nft.Rule{{nft.Return}, {nft.Reject{}}}, nil, "drop", false},
		{"jump to an empty chain", nft.Jump("other"), nil, nil, "drop", false},
		{"jump to a chain that accepts", nft.Jump("other"), []nft.Rule{{nft.Accept}}, nil, "accept", true},
		{"goto a chain that comes back", nft.Goto("other"), []nft.Rule{{nft.Return}}, nil, "accept", false},
		{"return", nft.Return, nil, nil, "accept", false},
		{"drop", nft.Drop, nil, nil, "drop", false},
		{"a verdict that is not known", nft.Verdict{Kind: 3}, nil, nil, "drop", true},
	} {
		for _, f := range nft.Families {
			table := tracedTable(f, thenDrop, nft.Rule{nft.VerdictFrom{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port},
				Map: "frontends"}})
			for key := range table.Sets["frontends"].Map {
				table.Sets["frontends"].Map[key] = nft.Element{Verdict: &tt.verdict}
			}
			table.Chains["other"].Rules = tt.other
			table.Chains["later"] = &nft.Chain{Name: "later", Hook: &nft.Hook{Type: "nat", Point: "prerouting", Priority: -100},
				Rules: tt.again}
			result := table.Trace(nft.Packet{Source: client[f], Destination: frontend[f], Protocol: unix.IPPROTO_TCP, Port: port,
				Interface: "eth0"})
			if result.Outcome != tt.want || (len(result.Foreign) > 0) != tt.foreign {
				t.Errorf("%s: %s: %s, foreign %v, want %s", f, tt.name, result.Outcome, result.Foreign, tt.want)
			}
		}
	}
}

// TestTraceNamesForeignElement: the trace tells where the verdict of a packet stands.
func TestTraceNamesForeignElement(t *testing.T) {
	table := tracedTable(nft.IP, thenDrop,
		nft.Rule{nft.VerdictFrom{Key: []nft.Part{nft.Destination, nft.Protocol, nft.Port}, Map: "frontends"}})
	for key := range table.Sets["frontends"].Map {
		table.Sets["frontends"].Map[key] = nft.Element{Verdict: &nft.Accept}
	}
	result := table.Trace(nft.Packet{Source: client[nft.IP], Destination: frontend[nft.IP], Protocol: unix.IPPROTO_TCP,
		Port: port, Interface: "eth0"})
	const rule = "ip daddr . meta l4proto . th dport vmap @frontends"
	want := []nft.Step{{Chain: "before", Index: 1, Rule: rule, Set: "frontends", Element: "10.96.0.1 . tcp . 80 : accept",
		Key: "\x0a\x60\x00\x01\x06\x00\x00\x00\x00\x50\x00\x00"}}
	if diff := cmp.Diff(want, result.Foreign); diff != "" {
		t.Errorf("foreign steps (-want +got):\n%s", diff)
	}
}

// TestTraceForeignRule: what a rule does that no statement stands for is not known. The trace
// passes it over and names it.
func TestTraceForeignRule(t *testing.T) {
	table := tracedTable(nft.IP, thenDrop, nft.Rule{nft.Raw{}})
	result := table.Trace(nft.Packet{Source: client[nft.IP], Destination: frontend[nft.IP], Protocol: unix.IPPROTO_TCP,
		Port: port, Interface: "eth0"})
	if result.Outcome != "drop" || len(result.Foreign) != 1 ||
		result.Foreign[0].String() != "rule of before: # expressions: " {
		t.Errorf("%s, foreign %v", result.Outcome, result.Foreign)
	}
}

// TestTraceDropsTranslated: a rule behind the translation drops connections to one endpoint, or to all. It finds them
// by the address that they had, too.
func TestTraceDropsTranslated(t *testing.T) {
	for _, f := range nft.Families {
		table := tracedTable(f, atPostrouting,
			nft.Rule{nft.InSet{Key: []nft.Part{nft.Destination}, Set: "addresses"}, nft.Drop})
		held := table.Sets["addresses"].Map
		held[nft.AddrKey(frontend[f])] = nft.Element{}
		check := func(want string) {
			t.Helper()
			if got := traced(table, same); got != want {
				t.Errorf("%s: %s, want %s", f, got, want)
			}
		}
		check("dnat to 0 1")
		held[nft.AddrKey(endpoints[0][f])] = nft.Element{}
		check("dnat to 1")
		table.Chains["after"].Rules[0][0] = nft.InSet{Key: []nft.Part{nft.OriginalDestination}, Set: "addresses"}
		check("drop")
	}
}
