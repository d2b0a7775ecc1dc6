package migrate

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/tracker"
)

// inventory has something of every kind.
func inventory() legacy.Inventory {
	jump := legacy.Jump{Chain: "FORWARD", Rule: 2, Target: "KUBE-FORWARD", Comment: "kubernetes forwarding rules"}
	return legacy.Inventory{
		Processes: []legacy.Process{{PID: 42, Command: "kube-proxy --config=/var/lib/kube-proxy/config.conf"}},
		Parts: []legacy.Part{
			{Backend: legacy.Xtables, Family: "ip", Table: "filter", Chains: []string{"KUBE-FORWARD"},
				Jumps: []legacy.Jump{jump},
				Actions: []legacy.Action{
					{Where: "legacy ip filter", Object: jump.String(), Means: "sends packets to kube-proxy's rules", Will: "removed"},
					{Where: "legacy ip filter", Object: "chain KUBE-FORWARD", Means: "may reject or drop packets of Services",
						Will: "removed"},
					{Where: "legacy ip filter", Object: "chain KUBE-FIREWALL", Means: "the kubelet's protection of loopback addresses",
						Will: "kept"},
				}},
			{Backend: legacy.Compat, Family: "ip6", Table: "nat", Chains: []string{"KUBE-SERVICES"},
				Actions: []legacy.Action{{Where: "nft-compat ip6 nat", Object: "chain KUBE-SERVICES",
					Means: "kube-proxy's, but a foreign rule jumps to it", Will: "kept without its rules"}}},
			{Backend: legacy.Compat, Family: "ip", Table: "mangle", Foreign: 3,
				Actions: []legacy.Action{{Where: "nft-compat ip mangle", Object: "3 rules", Means: "foreign or the kubelet's",
					Will: "kept"}}},
			{Backend: legacy.IPVS, Device: "kube-ipvs0",
				Actions: []legacy.Action{{Where: "ipvs", Object: "virtual server tcp 10.96.0.1:443",
					Means: "answers for a Service, has 2 connections", Will: "removed when none of kube-proxy's has a connection"}}},
		},
	}
}

// planText is the text of a plan for inventory.
const planText = `Before
    warning kube-proxy: process 42 (kube-proxy --config=/var/lib/kube-proxy/config.conf) —
            kube-proxy writes its rules again when they are missing. Do: stop kube-proxy on this
            node; its rules stay and serve until kube-nft replaces them
    blocks  kernel features: no nat

Found
  legacy ip filter
    removed FORWARD rule 2 to KUBE-FORWARD ("kubernetes forwarding rules") — sends packets to
            kube-proxy's rules
    removed chain KUBE-FORWARD — may reject or drop packets of Services
    kept    chain KUBE-FIREWALL — the kubelet's protection of loopback addresses
  nft-compat ip6 nat
    kept    chain KUBE-SERVICES — kube-proxy's, but a foreign rule jumps to it; without its rules
  nft-compat ip mangle: nothing of kube-proxy's to remove
    kept    3 rules — foreign or the kubelet's
  ipvs
    removed virtual server tcp 10.96.0.1:443 — answers for a Service, has 2 connections; when none
            of kube-proxy's has a connection

Steps of kube-nft migrate apply
    1.      wait until kube-proxy has ended; stop it first
    2.      compare kube-proxy's frontends with ours; if too many would vanish, refuse and change
            nothing
    3.      commit the tables ip kube-nft and ip6 kube-nft and, in the same transaction, remove what
            kube-proxy has in nf_tables that refuses packets
    4.      verify: read our tables back, look up every frontend in the kernel
    5.      remove kube-proxy's from legacy ip filter, each by one atomic replacement
    6.      remove kube-proxy's from nft-compat ip6 nat, in one transaction
    7.      let the virtual servers of kube-proxy's IPVS mode take no new connections; remove them,
            the device and the ipsets when no connection uses them, or after
            --takeover-drain-timeout; the daemon waits for that
    8.      look again: nothing of kube-proxy's may be left

1 warning, 1 block: apply would refuse and change nothing
`

func TestPlanText(t *testing.T) {
	plan := NewPlan(inventory(), []Check{{Level: Blocks, About: "kernel features", Found: "no nat"}})
	text := plan.Text()
	if diff := cmp.Diff(planText, text); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > textWidth {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if plan.Ready {
		t.Error("ready, although a check blocks")
	}
}

// TestPlanJoinsFamilies: what two families have in common stands once.
func TestPlanJoinsFamilies(t *testing.T) {
	part := func(family string, chains ...string) legacy.Part {
		p := legacy.Part{Backend: legacy.Xtables, Family: family, Table: "nat", Chains: chains}
		for _, chain := range chains {
			p.Actions = append(p.Actions, legacy.Action{Where: "legacy " + family + " nat", Object: "chain " + chain,
				Means: "Services", Will: "removed"})
		}
		return p
	}
	unread := legacy.Part{Backend: legacy.Compat, Family: "ip", Table: "nat", Needs: "CAP_NET_ADMIN"}
	plan := NewPlan(legacy.Inventory{Parts: []legacy.Part{part("ip", "A", "B"), part("ip6", "A", "C"), unread,
		{Backend: legacy.Compat, Family: "ip6", Table: "nat"}}}, nil)
	_, text, _ := strings.Cut(plan.Text(), "Found\n")
	text, _, _ = strings.Cut(text, "\nSteps")
	want := `  legacy ip and ip6 nat
    removed chain A — Services
    removed ip: chain B — Services
    removed ip6: chain C — Services
  nft-compat ip nat
    unknown could not be read: needs CAP_NET_ADMIN
  nft-compat ip6 nat: nothing of kube-proxy's to remove
`
	if diff := cmp.Diff(want, text); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if plan.Complete || !plan.Ready {
		t.Errorf("complete %v, ready %v", plan.Complete, plan.Ready)
	}
}

// TestPlanSummary: the last line says what apply would do.
func TestPlanSummary(t *testing.T) {
	dirty := legacy.Part{Backend: legacy.Xtables, Family: "ip", Table: "nat", Chains: []string{"KUBE-SERVICES"}}
	for _, tt := range []struct {
		inventory legacy.Inventory
		checks    []Check
		want      string
	}{
		{legacy.Inventory{Parts: []legacy.Part{dirty}}, []Check{{Level: Warning}},
			"1 warning, 0 blocks: apply would take this node over"},
		{legacy.Inventory{Parts: []legacy.Part{dirty}, Processes: []legacy.Process{{PID: 1}}}, nil,
			"1 warning, 0 blocks: apply would wait for kube-proxy to end, then take this node over"},
		{legacy.Inventory{Parts: []legacy.Part{dirty}}, []Check{{Level: Unknown}, {Level: Unknown}},
			"2 things could not be looked at, 0 warnings, 0 blocks: apply may fail there"},
		{legacy.Inventory{Parts: []legacy.Part{dirty}}, []Check{{Level: Unknown}, {Level: Blocks}},
			"1 thing could not be looked at, 0 warnings, 1 block: apply would refuse and change nothing"},
	} {
		plan := NewPlan(tt.inventory, tt.checks)
		if plan.Summary != tt.want {
			t.Errorf("%q, want %q", plan.Summary, tt.want)
		}
	}
}

func TestPlanOfCleanNode(t *testing.T) {
	plan := NewPlan(legacy.Inventory{}, nil)
	want := `Before
    ok      kube-proxy: no process found

Found
            nothing of kube-proxy's, and none of the tables that it writes to

Steps of kube-nft migrate apply
    1.      commit the tables ip kube-nft and ip6 kube-nft, if they are not there already
    2.      verify: read our tables back, look up every frontend in the kernel
    3.      look again: nothing of kube-proxy's may be left

0 warnings, 0 blocks: apply would bring our tables up to date; nothing of kube-proxy's is left
`
	if diff := cmp.Diff(want, plan.Text()); diff != "" || !plan.Ready || !plan.Complete {
		t.Errorf("ready %v (-want +got):\n%s", plan.Ready, diff)
	}
}

func TestPlanJSON(t *testing.T) {
	plan := NewPlan(inventory(), nil)
	text, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	var back Plan
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan, back); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNodePorts(t *testing.T) {
	addr := netip.MustParseAddr
	ports := NodePorts{
		Local:   []netip.Addr{addr("127.0.0.1"), addr("192.0.2.1"), addr("192.0.2.2"), addr("fe80::1")},
		Reached: []netip.Addr{addr("192.0.2.1")},
		Setting: "primary",
		Served:  []netip.Addr{addr("127.0.0.1"), addr("192.0.2.1"), addr("192.0.2.2"), addr("fe80::1")},
		InUse: []Use{
			{tracker.TCP, netip.MustParseAddrPort("192.0.2.2:30080")},
			{tracker.TCP, netip.MustParseAddrPort("192.0.2.2:30080")},
			{tracker.TCP, netip.MustParseAddrPort("192.0.2.1:30080")},
			{tracker.UDP, netip.MustParseAddrPort("127.0.0.1:30053")},
		},
		Taken: map[uint16]string{30081: "shop/web"},
	}
	want := []Check{
		{OK, "node ports", "will be served at 192.0.2.1", "the addresses of --nodeport-addresses primary", ""},
		{Warning, "node ports", "kube-proxy serves them at 127.0.0.1, 192.0.2.2 as well",
			"new connections to these addresses will not be answered",
			"if clients use them, --nodeport-addresses primary,192.0.2.2/32 and --localhost-nodeports"},
		{Warning, "node port tcp 192.0.2.2:30080", "in use by 2 connections now",
			"they go on; new ones will not be answered at this address",
			"use another address, or --nodeport-addresses primary,192.0.2.2/32"},
		{Note, "node port tcp 30081", "a program on this node listens at this port as well (ss -ltnp shows it)",
			"at the addresses above Service shop/web answers, not the program, as with kube-proxy", ""},
		{Warning, "node port udp 127.0.0.1:30053", "in use by 1 connection now",
			"they go on; new ones will not be answered at this address", "use another address, or --localhost-nodeports"},
	}
	if diff := cmp.Diff(want, ports.Checks()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNodePortsServed: which addresses kube-proxy serves depends on its mode, on its settings and on a
// sysctl.
func TestNodePortsServed(t *testing.T) {
	local := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("::1"), netip.MustParseAddr("2001:db8::1")}
	at := func(family tracker.Family, port uint16) []legacy.Frontend {
		return []legacy.Frontend{{Frontend: tracker.NodePort(family, tracker.TCP, port)}}
	}
	for _, tt := range []struct {
		name      string
		part      legacy.Part
		localhost bool
		want      string
	}{
		{
			"no node port",
			legacy.Part{Everywhere: true, Frontends: []legacy.Frontend{{Frontend: tracker.Frontend{Address: local[1]}}}}, true,
			"",
		},
		{"iptables", legacy.Part{Everywhere: true, Frontends: at(tracker.IPv4, 30080)}, false, "192.0.2.1, 192.0.2.2"},
		{"iptables, route_localnet", legacy.Part{Everywhere: true, Frontends: at(tracker.IPv4, 30080)}, true,
			"127.0.0.1, 192.0.2.1, 192.0.2.2"},
		{"IPv6", legacy.Part{Everywhere: true, Frontends: at(tracker.IPv6, 30080)}, true, "2001:db8::1"},
		{"its own setting", legacy.Part{NodePortsAt: local[1:2], Frontends: at(tracker.IPv4, 30080)}, true, "192.0.2.1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ports := NodePorts{Local: local, Localhost: tt.localhost}
			ports.ServedBy(&legacy.Inventory{Parts: []legacy.Part{tt.part, tt.part}})
			if got := join(ports.Served); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// TestNodePortsMany: a setting does not name a hundred addresses.
func TestNodePortsMany(t *testing.T) {
	ports := NodePorts{Setting: "primary"}
	for i := range byte(100) {
		ports.Served = append(ports.Served, netip.AddrFrom4([4]byte{192, 0, 2, i}))
	}
	if got, want := ports.Checks()[1].Do, "if clients use them, --nodeport-addresses all"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestNodePortsNowhere(t *testing.T) {
	ports := NodePorts{Setting: "10.0.0.0/8"}
	want := []Check{{Note, "node ports", "will be served at no address",
		"the addresses of --nodeport-addresses 10.0.0.0/8", ""}}
	if diff := cmp.Diff(want, ports.Checks()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestExceptions(t *testing.T) {
	inv := legacy.Inventory{Parts: []legacy.Part{{Emptied: []string{"KUBE-SERVICES"}, Blocked: []legacy.Jump{{}, {}}}, {}}}
	want := " but chains that 2 foreign rules send to, 1 of them empty; migrate plan lists them"
	if got := exceptions(&inv); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
