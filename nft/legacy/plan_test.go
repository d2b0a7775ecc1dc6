package legacy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft"
)

// planText returns the lines of a part's plan.
func planText(p Part) string {
	p.finish()
	inv := Inventory{Parts: []Part{p}}
	var lines []string
	for _, a := range inv.Plan() {
		lines = append(lines, a.String())
	}
	return strings.Join(lines, "\n") + "\n"
}

// sampleRuleset has a chain for every chainAction.
func sampleRuleset() ruleset {
	return ruleset{table: "nat", chains: []chain{
		{name: "OUTPUT", base: true, rules: []rule{{target: "KUBE-SERVICES", plain: true, comment: "portals"}, {}}},
		{name: "KUBE-SERVICES", rules: []rule{{target: svc}}},
		{name: svc, rules: []rule{{}}},
		{name: "KUBE-SEP-AAAAAAAAAAAAAAAA"}, {name: "KUBE-SEP-BBBBBBBBBBBBBBBB"},
		{name: "KUBE-NODEPORTS", rules: []rule{{}}},
		{name: "KUBE-POSTROUTING"}, {name: "KUBE-PROXY-CANARY"}, {name: "KUBE-KUBELET-CANARY"},
		{name: "ADMIN", rules: []rule{{target: "KUBE-NODEPORTS"}}},
	}}
}

func TestPlanOfTable(t *testing.T) {
	p := Part{Backend: Xtables, Family: "ip", Table: "nat"}
	rs := sampleRuleset()
	p.fill(rs, nft.IP, scope{})
	want := `legacy ip nat: OUTPUT rule 1 to KUBE-SERVICES ("portals") (sends packets to kube-proxy's rules): removed
legacy ip nat: chain KUBE-POSTROUTING (masquerading): removed
legacy ip nat: chain KUBE-PROXY-CANARY (kube-proxy uses it to notice flushed rules): removed
legacy ip nat: 2 chains KUBE-SEP-* (an endpoint each): removed
legacy ip nat: chain KUBE-SERVICES (Services): removed
legacy ip nat: 1 chain KUBE-SVC-* (a Service port each): removed
legacy ip nat: chain KUBE-NODEPORTS (kube-proxy's, but a foreign rule jumps to it): kept without its rules
legacy ip nat: ADMIN rule 1 to KUBE-NODEPORTS (a foreign rule that relies on kube-proxy): kept; remove or replace it yourself
legacy ip nat: chain KUBE-KUBELET-CANARY (the kubelet uses it to notice flushed rules): kept
legacy ip nat: 2 rules (foreign or the kubelet's): kept
`
	if diff := cmp.Diff(want, planText(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPlanOfFilter(t *testing.T) {
	p := Part{Backend: Compat, Family: "ip6", Table: "filter"}
	rs := ruleset{table: "filter", chains: []chain{{name: "KUBE-FORWARD"}, {name: "KUBE-FIREWALL"}}}
	p.fill(rs, nft.IP, scope{})
	want := `nft-compat ip6 filter: chain KUBE-FORWARD (may reject or drop packets of Services): removed
nft-compat ip6 filter: chain KUBE-FIREWALL (the kubelet's protection of loopback addresses): kept
`
	if diff := cmp.Diff(want, planText(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPlanOfProxyTable(t *testing.T) {
	p := Part{Backend: ProxyTables, Family: "ip", Table: ProxyTable, Chains: []string{"a", "b"}, Rules: 1,
		Sets: []Set{{Name: "service-ips", Elements: 2}, {Name: "cluster-ips", Elements: 3}}}
	want := "kube-proxy-nftables ip kube-proxy: 2 chains, 1 rule, 2 sets, 5 elements (all of kube-proxy's nftables " +
		"mode): removed with the table\n"
	if diff := cmp.Diff(want, planText(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPlanOfIPVS(t *testing.T) {
	p := Part{Backend: IPVS, Device: Device,
		Servers:      []Server{{Protocol: "tcp", Frontend: netip.MustParseAddrPort("10.96.0.1:443"), Connections: 2}},
		OtherServers: slices.Repeat([]Server{{Protocol: "udp", Frontend: netip.MustParseAddrPort("192.0.2.1:53")}}, 12),
		Sets:         []Set{{Name: "KUBE-CLUSTER-IP", Elements: 1}, {Name: "KUBE-IPVS-IPS", References: 1}}}
	const other = `ipvs: virtual server udp 192.0.2.1:53 (neither at an address of kube-ipvs0 nor a node port of ` +
		`kube-proxy's): kept; if nothing needs it, remove it with ipvsadm -D -u 192.0.2.1:53
`
	want := `ipvs: virtual server tcp 10.96.0.1:443 (answers for a Service, has 2 connections): removed when none ` +
		`of kube-proxy's has a connection
` + strings.Repeat(other, 10) + `ipvs: 2 further virtual servers (as the last one): kept
ipvs: device kube-ipvs0 (holds the addresses of Services): removed with the virtual servers
ipvs: ipset KUBE-CLUSTER-IP, 1 element (kube-proxy's IPVS mode): removed
ipvs: ipset KUBE-IPVS-IPS, 0 elements (kube-proxy's IPVS mode): removed as soon as no rule uses it
`
	if diff := cmp.Diff(want, planText(p)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestInventoryJSON pins the names that scripts rely on.
func TestInventoryJSON(t *testing.T) {
	p := Part{Backend: Xtables, Family: "ip", Table: "filter", Chains: []string{"KUBE-FORWARD"},
		Jumps: []Jump{{"FORWARD", 1, "KUBE-FORWARD", "forwarding"}}, Rules: 2, Foreign: 3}
	p.finish()
	p.Actions = p.Actions[:1]
	got, err := json.Marshal(Inventory{Parts: []Part{p}, Processes: []Process{{PID: 9, Command: "kube-proxy"}}})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"parts":[{"backend":"legacy","family":"ip","table":"filter","chains":["KUBE-FORWARD"],"emptied":[],"kept":[],` +
		`"rules":2,"jumps":[{"chain":"FORWARD","rule":1,"target":"KUBE-FORWARD","comment":"forwarding"}],"blocked":[],"foreignRules":3,` +
		`"actions":[{"where":"legacy ip filter","object":"FORWARD rule 1 to KUBE-FORWARD (\"forwarding\")",` +
		`"means":"sends packets to kube-proxy's rules","will":"removed"}]}],"processes":[{"pid":9,"command":"kube-proxy"}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSelectorTakes(t *testing.T) {
	filter := Selector{Backends: []Backend{Xtables}, Tables: []string{"filter"}}
	for _, tt := range []struct {
		sel   Selector
		b     Backend
		table string
		want  bool
	}{
		{Selector{}, Compat, "mangle", true},
		{filter, Xtables, "filter", true},
		{filter, Xtables, "nat", false},
		{filter, Compat, "filter", false},
		{Selector{Backends: []Backend{}}, Xtables, "nat", false},
	} {
		if got := tt.sel.allowsTable(tt.b, 2, tt.table); got != tt.want {
			t.Errorf("%+v takes %s %s: %v", tt.sel, tt.b, tt.table, got)
		}
	}
}

// Plan returns the actions of all parts in the order of the inventory.
func (i *Inventory) Plan() []Action {
	var plan []Action
	for _, p := range i.Parts {
		plan = append(plan, p.Actions...)
	}
	return plan
}

// String returns the action as a line of the expected plans.
func (a Action) String() string {
	return fmt.Sprintf("%s: %s (%s): %s", a.Where, a.Object, a.Means, a.Will)
}
