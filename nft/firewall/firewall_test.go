package firewall

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/tracker"
)

// testMark is the mark of masqueraded packets.
const testMark = 1 << 14

// newNode moves the test into a namespace with an interface to other nodes, eth0, and one to pods, cali7.
func newNode(t *testing.T) {
	t.Helper()
	lab.New(t)
	for device, addrs := range map[string][2]string{
		"eth0": {"192.168.0.2/24", "fd00::2/64"}, "cali7": {"10.244.0.1/24", "fd44:0:0:0::1/64"},
	} {
		if err := lab.AddSink(device); err != nil {
			t.Fatal(err)
		}
		for _, addr := range addrs {
			if err := lab.AddAddress(device, netip.MustParsePrefix(addr)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for to, gateway := range map[string]string{
		"0.0.0.0/0": "192.168.0.1", "10.244.1.0/24": "192.168.0.3", "::/0": "fd00::1", "fd44:0:0:1::/64": "fd00::3",
	} {
		if err := lab.AddRoute("eth0", netip.MustParsePrefix(to), netip.MustParseAddr(gateway)); err != nil {
			t.Fatal(err)
		}
	}
}

// testTargets are two pods here and one on another node, in both families, and this node itself.
var testTargets = []Target{
	target("10.244.0.7:8080"), target("10.244.0.8:8080"), target("10.244.1.7:8080"), target("192.168.0.2:6443"),
	target("[fd44::7]:8080"), target("[fd44:0:0:1::7]:8080"),
}

func target(endpoint string) Target {
	return Target{Endpoint: netip.MustParseAddrPort(endpoint), Protocol: unix.IPPROTO_TCP, Outside: true}
}

// forward is a table of nft with a chain at forward.
func forward(policy, rules string) string {
	return "table inet filter {\n chain forward {\n type filter hook forward priority 0; policy " + policy + ";\n" +
		rules + "\n }\n}\n"
}

// survey loads rules with a program and returns what a survey finds, as "table: refused of tried".
func survey(t *testing.T, f *Firewall) string {
	t.Helper()
	found, err := f.Survey(t.Context(), testTargets, testMark)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, finding := range found {
		list = append(list, fmt.Sprintf("%s: %s %d of %d", finding.Where, finding.By, finding.Refused, finding.Tried)+
			unlessText(finding.Unless, "them"))
	}
	return strings.Join(list, "\n")
}

func read(t *testing.T) *Firewall {
	t.Helper()
	f, err := Read(t.Context(), lab.Open(t, kernel.Open))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestSurveyNFTInKernel: what rules of nft do with connections to endpoints. Of the eight that are tried,
// five come from outside.
func TestSurveyNFTInKernel(t *testing.T) {
	const policy = "table inet filter, chain forward: its policy "
	for name, tt := range map[string]struct{ rules, want string }{
		"none":                  {"", ""},
		"accept":                {forward("accept", ""), ""},
		"drop":                  {forward("drop", ""), policy + "8 of 8"},
		"established alone":     {forward("drop", "ct state established,related accept"), policy + "8 of 8"},
		"remedy":                {forward("drop", "ct state established,related accept\nct status dnat accept"), ""},
		"status alone":          {forward("drop", "ct status dnat accept"), ""},
		"answers are forgotten": {forward("drop", "ct state new accept"), policy + "8 of 8"},
		"status of some": {forward("drop", "ct state established accept\n"+
			"ct status dnat tcp dport 9090 accept"), policy + "8 of 8"},
		"the port": {forward("drop", "ct state established accept\ntcp dport { 80, 8080-8090 } accept"), ""},
		"pod CIDRs": {forward("drop", "ct state established accept\nip daddr 10.244.0.0/16 accept\n"+
			"ip6 daddr fd44::/16 accept"), ""},
		"pod CIDRs in sets": {forward("drop", "ct state { established, related } accept\n"+
			"ip daddr { 10.244.0.0/16, 10.9.0.0/16 } accept\nip6 daddr { fd44::/16, fd99::/16 } accept"), ""},
		"pod CIDR of this node": {forward("drop", "ct state established accept\nip daddr 10.244.0.0/24 accept\n"+
			"ip6 daddr fd44::/16 accept"), policy + "2 of 5"},
		"IPv4 alone": {forward("drop", "ct state established accept\n"+
			"meta nfproto ipv4 accept"), policy + "3 of 3"},
		"mark": {forward("drop", "ct state established accept\n"+
			"meta mark & 0x4000 == 0x4000 accept"), policy + "3 of 8"},
		"another mark": {forward("drop", "ct state established accept\nmeta mark 1 accept"), policy + "8 of 8"},
		"marked there": {forward("drop", "ct state established accept\nmeta mark set 1\n"+
			"meta mark 1 accept"), ""},
		"interfaces of pods": {forward("drop", `iifname "cali*" accept
			oifname "cali*" accept`), policy + "2 of 8"},
		"index of pods' interface": {forward("drop", "iif cali7 accept\noif cali7 accept"), policy + "2 of 8"},
		"interfaces and mark": {forward("drop", `ct state established accept`+"\n"+`iifname "cali*" accept`+"\n"+
			`meta mark & 0x4000 == 0x4000 accept`), ""},
		"some clients": {forward("drop", "ct state established accept\nip saddr 192.168.0.0/16 accept\nip saddr "+
			"10.244.0.0/16 accept\nip6 saddr fd00::/8 accept"), ""},
		"last rule": {forward("accept", "ct state established accept\ncounter reject"),
			"table inet filter, chain forward: its rule with handle 3 8 of 8"},
		"last rule of a chain": {"table inet filter {\n chain rest { log\n drop\n }\n}\n" + forward("accept",
			"ct state established accept\njump rest"), "table inet filter, chain forward: its rule with handle 3 8 of 8"},
		"as firewalld": {"table inet firewalld {\n chain translated { reject; }\n chain filter_FORWARD {\n" +
			" type filter hook forward " +
			"priority 10;\n ct state established accept\n ct status dnat jump translated\n" +
			" ip daddr 10.0.0.0/8 accept\n }\n}\n",
			"table inet firewalld, chain filter_FORWARD: its rule with handle 3 8 of 8"},
		"some addresses": {forward("accept", "ip daddr 10.244.0.7 drop\nip saddr 10.0.0.0/8 drop\n"+
			"tcp dport 8080 reject"), ""},
		"invalid": {forward("accept", "ct state invalid drop\nct state untracked drop"), ""},
		"each protocol": {forward("accept", "ct state established accept\nip protocol tcp reject with tcp reset\n"+
			"ip6 nexthdr tcp drop\nudp dport 1-65535 drop"),
			"table inet filter, chain forward: its rule with handle 3 5 of 5\n" +
				"table inet filter, chain forward: its rule with handle 4 3 of 3"},
		"limited": {forward("accept", "ct state new limit rate over 1000/second drop"), ""},
		"by state": {forward("drop", "ct state vmap { established : accept, related : accept, invalid : drop }\n"+
			"ct status dnat accept"), ""},
		"by interface": {"table inet filter {\n chain pods { accept; }\n chain lan { ct state established accept; }\n}\n" +
			forward("drop", `iifname vmap { "cali7" : jump pods, "eth0" : jump lan }`), policy + "5 of 8"},
		"unknown may help": {forward("drop", "ct state established accept\nfib daddr type unicast accept"),
			policy + "8 of 8, unless its rule with handle 3 accepts them (kube-nft cannot tell)"},
		"a mark of connections": {forward("drop", "ct state established accept\nct mark 1 accept"),
			policy + "8 of 8, unless its rule with handle 3 accepts them (kube-nft cannot tell)"},
		"one client": {forward("drop", "ct state established accept\nip saddr 203.0.113.7 accept\n"+
			"ip6 saddr 2001:db8:9::9 accept"), policy + "8 of 8"},
		"one client, and those of pods": {forward("drop", "ct state established accept\n"+
			`iifname "cali*" accept`+"\nip saddr 203.0.113.7 accept"), policy + "5 of 8"},
		"each pod's own address": {forward("drop", "ip daddr 10.244.0.7 ct state established accept\nip saddr "+
			"10.244.0.7 accept\nip daddr 10.244.0.8 ct state established accept\nip saddr 10.244.0.8 accept\nip6 daddr "+
			"fd44::7 ct state established accept\nip6 saddr fd44::7 accept"), policy + "5 of 8"},
		"a pair of interfaces": {forward("drop", "ct state established accept\n"+
			`iifname "eth0" oifname "cali7" accept`), policy + "5 of 8"},
		"one port": {forward("drop", "ct state established accept\ntcp dport 443 accept"), policy + "8 of 8"},
		"returns of some": {"table inet filter {\n chain rest { ip saddr 10.244.0.0/16 return\n drop\n }\n}\n" +
			forward("accept", "ct state established accept\nmeta nfproto ipv4 jump rest"),
			"table inet filter, chain forward: its rule with handle 3 3 of 5"},
		"returns of unknown": {"table inet filter {\n chain rest { ct mark 1 return\n drop\n }\n}\n" +
			forward("accept", "ct state established accept\njump rest"), ""},
		"returns of unknown to a policy": {"table inet filter {\n chain rest { ct mark 1 return\n accept\n }\n}\n" +
			forward("drop", "ct state established accept\njump rest"),
			policy + "8 of 8, unless its rule with handle 3 accepts them (kube-nft cannot tell)"},
		"returns": {"table inet filter {\n chain services { ct status dnat accept\n return\n accept\n }\n}\n" +
			forward("drop",
				"ct state established accept\ngoto services"), ""},
		"a named set": {"table inet filter {\n set open { type inet_service; elements = { 8080 }\n }\n}\n" + forward("drop",
			"ct state established accept\ntcp dport @open accept"), ""},
		"concatenations": {"table inet filter {\n set open { type ipv4_addr . inet_service; flags interval; elements = { " +
			"10.244.0.0/16 . 8000-9000 }\n }\n}\n" + forward("drop", "ct state established accept\n"+
			"ip daddr . tcp dport @open accept\n"+
			"meta nfproto ipv6 accept"), ""},
		"dormant":  {strings.Replace(forward("drop", ""), "{\n", "{\n flags dormant;\n", 1), ""},
		"at input": {strings.Replace(forward("drop", ""), "hook forward", "hook input", 1), ""},
		"bridge":   {strings.Replace(forward("drop", ""), "inet", "bridge", 1), ""},
		"two": {forward("drop", "ct status dnat accept") + strings.Replace(forward("drop", ""), "inet filter", "ip later", 1),
			"table ip later, chain forward: its policy 5 of 5"},
	} {
		t.Run(name, func(t *testing.T) {
			newNode(t)
			lab.Run(t, tt.rules, "nft", "-f", "-")
			f := read(t)
			if got := survey(t, f); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
			if found, err := f.Survey(t.Context(), testTargets, testMark); err == nil && tt.rules != "" {
				for _, finding := range found {
					for _, command := range strings.Split(finding.Remedy, "; ") {
						if strings.HasPrefix(command, "nft ") {
							lab.Run(t, "", "sh", "-c", command)
						}
					}
				}
				if len(found) > 0 && !found[0].Firewalld && survey(t, read(t)) != "" {
					t.Errorf("after the remedy: %s", survey(t, read(t)))
				}
			}
		})
	}
}

// iptablesRules are tables filter as iptables-restore reads them; POD is the pod CIDR of the family.
var iptablesRules = map[string]struct {
	policy, rules string
	refused       int // of the five of IPv4
	remedy        string
}{
	"accept": {"ACCEPT", "", 0, ""},
	"drop":   {"DROP", "", 5, "-A FORWARD -m conntrack --ctstate DNAT"},
	// Shorewall's last rule sends all to a chain that refuses each protocol in its own way.
	"Shorewall's": {"DROP", "-N reject\n-A FORWARD -g reject\n" +
		"-A reject -p 2 -j DROP\n-A reject -p tcp -j REJECT --reject-with tcp-reset\n-A reject -j REJECT", 5, "-I FORWARD"},
	"last rule": {"ACCEPT", "-A FORWARD -m state --state ESTABLISHED -j ACCEPT\n-A FORWARD -j REJECT", 5,
		"-I FORWARD -m conntrack --ctstate DNAT"},
	"remedy": {"DROP", "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -m conntrack " +
		"--ctstate DNAT -j ACCEPT", 0, ""},
	"not dnat": {"DROP", "-A FORWARD -m conntrack ! --ctstate DNAT -j ACCEPT", 5, "-A FORWARD"},
	"kube-proxy's": {"DROP", "-N KUBE-FORWARD\n-A FORWARD -j KUBE-FORWARD\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP\n" +
		"-A KUBE-FORWARD -m comment --comment \"kubernetes forwarding rules\" -m mark --mark 0x4000/0x4000 -j ACCEPT\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", 2, "-A FORWARD"},
	"kube-proxy's and a plug-in's": {"DROP", "-N KUBE-FORWARD\n-A FORWARD -j KUBE-FORWARD\n" +
		"-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT\n" +
		"-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -i cali+ -j ACCEPT", 0, ""},
	"flannel's": {"DROP", "-N FLANNEL-FWD\n-A FORWARD -j FLANNEL-FWD\n-A FLANNEL-FWD -s POD -j ACCEPT\n" +
		"-A FLANNEL-FWD -d POD -j ACCEPT", 0, ""},
	"Calico's kind": {"DROP", "-N cali-FORWARD\n-A FORWARD -j cali-FORWARD\n-A cali-FORWARD -i cali+ -j ACCEPT\n" +
		"-A cali-FORWARD -o cali+ -j ACCEPT", 1, "-A FORWARD"},
	"Calico's marks": {"DROP", "-N cali-FORWARD\n-N cali-tw\n-A FORWARD -j cali-FORWARD\n" +
		"-A cali-FORWARD -j MARK --set-xmark 0x0/0xe0000\n-A cali-FORWARD -o cali+ -g cali-tw\n" +
		"-A cali-FORWARD -i cali+ -j cali-tw\n" +
		"-A cali-tw -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n" +
		"-A cali-tw -j MARK --set-xmark 0x10000/0x10000\n-A cali-tw -m mark --mark 0x10000/0x10000 -j RETURN\n" +
		"-A cali-tw -j DROP\n" +
		"-A FORWARD -m mark --mark 0x10000/0x10000 -j ACCEPT", 1, "-A FORWARD"},
	"Docker's": {"DROP", "-N DOCKER-USER\n-N DOCKER\n-A FORWARD -j DOCKER-USER\n" +
		"-A FORWARD -o docker0 -m conntrack --ctstate " +
		"RELATED,ESTABLISHED -j ACCEPT\n-A FORWARD -o docker0 -j DOCKER\n-A FORWARD -i docker0 ! -o docker0 -j ACCEPT\n" +
		"-A DOCKER-USER -j RETURN", 5, "-I DOCKER-USER"},
	"Docker's with a rule": {"DROP", "-N DOCKER-USER\n-A FORWARD -j DOCKER-USER\n" +
		"-A DOCKER-USER -m conntrack --ctstate DNAT -j ACCEPT\n" +
		"-A DOCKER-USER -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT\n-A DOCKER-USER -j RETURN", 0, ""},
	"Docker's without a jump": {"DROP", "-N DOCKER-USER\n-A DOCKER-USER -j RETURN", 5, "-A FORWARD"},
	"ufw's": {"DROP", "-N UFW-before\n-N UFW-user\n-A FORWARD -j UFW-before\n" +
		"-A UFW-before -m conntrack --ctstate RELATED,ESTABLISHED -j " +
		"ACCEPT\n-A UFW-before -j UFW-user", 5, "ufw route allow"},
	"ufw's with a route": {"DROP", "-N UFW-before\n-N UFW-user\n-A FORWARD -j UFW-before\n" +
		"-A UFW-before -m conntrack --ctstate " +
		"RELATED,ESTABLISHED -j ACCEPT\n-A UFW-before -j UFW-user\n-A UFW-user -d POD -j ACCEPT", 0, ""},
	"ports": {"DROP", "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n" +
		"-A FORWARD -p tcp -m tcp --dport 8000:9000 -j ACCEPT", 0, ""},
	"many ports": {"DROP", "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n" +
		"-A FORWARD -p tcp -m multiport --dports 80,8000:8090 " +
		"-j ACCEPT", 0, ""},
	"other ports": {"DROP", "-A FORWARD -m conntrack --ctstate ESTABLISHED -j ACCEPT\n" +
		"-A FORWARD -p tcp -m tcp --dport 80 -j ACCEPT", 5,
		"-A FORWARD"},
	"some addresses": {"ACCEPT", "-A FORWARD -d POD -j DROP\n-A FORWARD -o cali+ -j REJECT", 0, ""},
}

// TestSurveyIPTablesInKernel: the same for the rules of both kinds of iptables, in both families.
func TestSurveyIPTablesInKernel(t *testing.T) {
	for name, tt := range iptablesRules {
		for _, kind := range []string{"legacy", "nft"} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				newNode(t)
				t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
				load := func(program, pod, ufw string) {
					text := strings.NewReplacer("POD", pod, "UFW-before", "ufw-before-forward", "UFW-user", ufw).Replace(tt.rules)
					var chains, rules string
					for line := range strings.Lines(text + "\n") {
						if chain, ok := strings.CutPrefix(strings.TrimSpace(line), "-N "); ok {
							chains += ":" + chain + " - [0:0]\n"
						} else if strings.TrimSpace(line) != "" {
							rules += line
						}
					}
					lab.Run(t, "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD "+tt.policy+" [0:0]\n:OUTPUT ACCEPT "+
						"[0:0]\n"+chains+rules+"COMMIT\n",
						program+"-"+kind+"-restore")
				}
				load("iptables", "10.244.0.0/16", "ufw-user-forward")
				load("ip6tables", "fd44::/16", "ufw6-user-forward")
				found, err := read(t).Survey(t.Context(), testTargets, testMark)
				if err != nil {
					t.Fatal(err)
				}
				want := 2
				if tt.refused == 0 {
					want = 0
				}
				if len(found) != want {
					t.Fatalf("%d findings: %v", len(found), found)
				}
				for i, finding := range found {
					if i == 0 && (finding.Refused != tt.refused || finding.Tried != 5) ||
						!strings.Contains(finding.Remedy, tt.remedy) {
						t.Errorf("%s; want %d. Remedy %s", finding.String(), tt.refused, finding.Remedy)
					}
					for _, command := range strings.Split(finding.Remedy, "; ") {
						if kind == "nft" {
							command = strings.Replace(command, "tables ", "tables-nft ", 1)
						}
						if strings.Contains(command, "tables-") {
							lab.Run(t, "", "sh", "-c", command)
						}
					}
				}
				if len(found) > 0 && !strings.Contains(tt.remedy, "ufw") && survey(t, read(t)) != "" {
					t.Errorf("after the remedy: %s", survey(t, read(t)))
				}
			})
		}
	}
}

// TestWithoutKubeForward: a plan looks at what is left after a takeover.
func TestWithoutKubeForward(t *testing.T) {
	newNode(t)
	t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
	lab.Run(t, "*filter\n:FORWARD DROP [0:0]\n:KUBE-FORWARD - [0:0]\n-A FORWARD -j KUBE-FORWARD\n"+
		"-A KUBE-FORWARD -j ACCEPT\nCOMMIT\n",
		"iptables-legacy-restore")
	if got := survey(t, read(t)); got != "" {
		t.Errorf("with: %s", got)
	}
	f := read(t)
	f.Without = "KUBE-FORWARD"
	if got, want := survey(t, f), "legacy iptables table filter, chain FORWARD: its policy 5 of 5"; got != want {
		t.Errorf("without: %s; want %s", got, want)
	}
}

// TestRefuses: what refuses connections of this node's own, and those to its own endpoints.
func TestRefuses(t *testing.T) {
	node, pod := netip.MustParseAddr("192.168.0.2"), netip.MustParseAddrPort("10.244.0.7:8080")
	own := Packet{Family: nft.IP, Source: node, Protocol: unix.IPPROTO_TCP, State: StateNew}.Translated(pod)
	toOwn := Packet{Family: nft.IP, Source: netip.MustParseAddr("192.168.0.9"), Protocol: unix.IPPROTO_TCP, In: "eth0",
		State: StateNew}.Translated(netip.MustParseAddrPort("192.168.0.2:6443"))
	at := func(hook, rules string) string {
		return strings.Replace(forward("drop", rules), "hook forward", "hook "+hook, 1)
	}
	firewalld := func(rules string) string { return strings.Replace(rules, "inet filter", "inet firewalld", 1) }
	const (
		chain          = "table inet filter, chain forward: its policy refuses "
		firewalldChain = "table inet firewalld, chain forward: its policy refuses it"
		out, in        = unix.NF_INET_LOCAL_OUT, unix.NF_INET_LOCAL_IN
	)
	for name, tt := range map[string]struct {
		hook   uint32
		packet Packet
		rules  string
		want   string
		remedy string
	}{
		"own, forward":     {out, own, at("forward", ""), "", ""},
		"own":              {out, own, at("output", ""), chain + "it", "ct status dnat accept"},
		"own, accepted":    {out, own, at("output", "ct status dnat accept"), "", ""},
		"own, before":      {out, own, strings.Replace(at("output", ""), "priority 0", "priority -150", 1), "", ""},
		"own, answers":     {out, own, at("input", "ct state new accept"), chain + "the answers", "ct state"},
		"to own":           {in, toOwn, at("input", ""), chain + "it", "ct status dnat accept"},
		"to own, accepted": {in, toOwn, at("input", "tcp dport 6443 accept"), "", ""},
		"to own, answers":  {in, toOwn, at("output", "ct state new accept"), chain + "the answers", "ct state"},
		"own, legacy": {out, own, "*filter\n:OUTPUT DROP\nCOMMIT\n",
			"legacy iptables table filter, chain OUTPUT: its policy refuses it", "iptables-legacy -A OUTPUT"},
		"to own, firewalld": {in, toOwn, firewalld(at("input", "")), firewalldChain, "--add-port=6443/tcp"},
		"own, firewalld":    {out, own, firewalld(at("output", "")), firewalldChain, "StrictForwardPorts=no"},
		"to own, some ports": {in, toOwn, strings.Replace(at("input", "tcp dport 6443 drop"), "policy drop",
			"policy accept", 1), "table inet filter, chain forward: its rule with handle 2 refuses it", ""},
	} {
		t.Run(name, func(t *testing.T) {
			newNode(t)
			t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
			if strings.HasPrefix(tt.rules, "*filter") {
				lab.Run(t, tt.rules, "iptables-legacy-restore")
			} else {
				lab.Run(t, tt.rules, "nft", "-f", "-")
			}
			refusal, err := read(t).Refuses(t.Context(), tt.hook, tt.packet)
			if err != nil {
				t.Fatal(err)
			}
			got, remedy := "", ""
			if refusal != nil {
				got, remedy = refusal.String(), refusal.Remedy
			}
			if got != tt.want || !strings.Contains(remedy, tt.remedy) {
				t.Errorf("%s, remedy %s; want %s, %s", got, remedy, tt.want, tt.remedy)
			}
		})
	}
}

// TestManyRules: a host may have any number of rules; a survey reads and follows a bounded number of them.
func TestManyRules(t *testing.T) {
	newNode(t)
	var rules strings.Builder
	for i := range maxRules + 1 {
		fmt.Fprintf(&rules, "ip saddr 10.%d.%d.%d drop\n", 1+i>>16, i>>8&255, i&255)
	}
	lab.Run(t, strings.Replace(forward("drop", rules.String()), "hook forward", "hook input", 1), "nft", "-f", "-")
	if got := survey(t, read(t)); got != "" { // no packet of a survey reaches them
		t.Error(got)
	}
	lab.Run(t, strings.Replace(forward("drop", rules.String()), "inet filter", "inet more", 1), "nft", "-f", "-")
	if found, err := read(t).Survey(t.Context(), testTargets, testMark); err == nil || len(found) != 0 ||
		!strings.Contains(err.Error(), ErrTooMany.Error()) {
		t.Errorf("%v, %v", found, err)
	}
}

// TestAhead: chains that see a packet before ours.
func TestAhead(t *testing.T) {
	p := Packet{Family: nft.IP, Source: netip.MustParseAddr("192.0.2.9"), Destination: netip.MustParseAddr("192.168.0.2"),
		DestinationPort: 30080,
		Protocol:        unix.IPPROTO_TCP, State: StateNew, In: "eth0"}
	chain := func(typ string, priority int, rule string) string {
		return fmt.Sprintf("table ip other {\n chain pre {\n type %s hook prerouting priority %d;\n%s\n }\n}\n", typ,
			priority, rule)
	}
	const where = "table ip other, chain pre (priority "
	for name, tt := range map[string]struct{ rules, want string }{
		"none":      {"", ""},
		"behind us": {chain("nat", -100, "tcp dport 30080 dnat to 10.0.0.1:80"), ""},
		"ahead": {chain("nat", -110, "tcp dport 30080 dnat to 10.0.0.1:80"), where + "-110) translates " +
			"the packet first"},
		"maybe": {chain("nat", -110, "fib saddr type local counter redirect"), where + "-110) may translate " +
			"the packet first"},
		"another packet": {chain("nat", -110, "tcp dport 30081 dnat to 10.0.0.1:80"), ""},
		"untracked": {chain("filter", -300, "tcp dport 30080 notrack"),
			where + "-300) keeps connection tracking off the packet first"},
		"tracked":  {chain("filter", -300, "tcp dport 53 notrack"), ""},
		"too late": {chain("filter", -150, "notrack"), ""},
		"a ban": {chain("filter", -150, "meta l4proto tcp ip saddr { 192.0.2.7, 192.0.2.9 } drop"),
			where + "-150) refuses the packet first"},
		"a ban of others":   {chain("filter", -150, "ip saddr 192.0.2.10 drop"), ""},
		"a ban, after ours": {chain("filter", -50, "ip saddr 192.0.2.9 drop"), ""},
		"a panic":           {chain("filter", -310, "drop"), where + "-310) refuses the packet first"},
		"a ban for the rest": {chain("filter", -150, "fib daddr type local accept\ndrop"),
			where + "-150) may refuse the packet first"},
		"legacy mangle": {"*mangle\n-A PREROUTING -s 192.0.2.9/32 -j DROP\nCOMMIT\n",
			"legacy iptables table mangle, chain PREROUTING (priority -150) refuses the packet first"},
		"legacy": {"*raw\n-A PREROUTING -p tcp -m tcp --dport 30080 -j NOTRACK\nCOMMIT\n",
			"legacy iptables table raw, chain PREROUTING (priority -300) keeps connection tracking off the packet first"},
		"legacy CT": {"*raw\n-A PREROUTING -d 192.168.0.2/32 -j CT --notrack\nCOMMIT\n",
			"legacy iptables table raw, chain PREROUTING (priority -300) keeps connection tracking off the packet first"},
	} {
		t.Run(name, func(t *testing.T) {
			newNode(t)
			t.Setenv("XTABLES_LOCKFILE", t.TempDir()+"/lock")
			if strings.HasPrefix(tt.rules, "*") {
				lab.Run(t, tt.rules, "iptables-legacy-restore")
			} else {
				lab.Run(t, tt.rules, "nft", "-f", "-")
			}
			list, err := read(t).Ahead(t.Context(), p, unix.NF_INET_PRE_ROUTING, -101)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, n := range list {
				got += n.String()
			}
			if got != tt.want {
				t.Errorf("%s; want %s", got, tt.want)
			}
		})
	}
}

// TestTargetsHavePorts: the lists of a Service port may have its endpoints without their common port.
func TestTargetsHavePorts(t *testing.T) {
	p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: tracker.PortID{Protocol: tracker.TCP}}, TargetPort: 8080,
		Lists: &tracker.Lists{Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.244.0.7:0"),
			netip.MustParseAddrPort("10.244.1.7:0")}}}
	targets := TargetsOf(p)
	if len(targets) != 2 {
		t.Fatalf("%d targets, want 2", len(targets))
	}
	for _, target := range targets {
		if target.Endpoint.Port() != 8080 {
			t.Errorf("the target is %s, want port 8080", target.Endpoint)
		}
	}
}
