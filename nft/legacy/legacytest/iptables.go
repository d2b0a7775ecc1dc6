package legacytest

import (
	"fmt"
	"strings"
)

// A table collects the lines of one table of iptables-restore.
type table struct {
	name   string
	base   []string
	chains []string
	rules  []string
}

// chain declares a chain.
func (t *table) chain(names ...string) { t.chains = append(t.chains, names...) }

// rule appends a rule in the syntax of iptables -A, with counters of its own.
func (t *table) rule(format string, args ...any) {
	n := len(t.rules) + 1
	t.rules = append(t.rules, fmt.Sprintf("[%d:%d] -A ", n, 60*n)+fmt.Sprintf(format, args...))
}

// String returns the table as iptables-save prints it.
func (t *table) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%s\n", t.name)
	for i, name := range t.base {
		fmt.Fprintf(&b, ":%s ACCEPT [%d:%d]\n", name, 1000+i, 60000+i)
	}
	for _, name := range t.chains {
		fmt.Fprintf(&b, ":%s - [0:0]\n", name)
	}
	for _, rule := range t.rules {
		b.WriteString(rule + "\n")
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// IPTables returns the text for iptables-restore (of either backend, and of the Shape's
// family) that kube-proxy's iptables mode and others make together.
func (s Shape) IPTables() string {
	return s.mangle().String() + s.filter().String() + s.nat().String()
}

// mangle has little but the canaries.
func (s Shape) mangle() *table {
	t := &table{name: "mangle", base: []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}}
	t.chain("ADMIN-MARKS", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-PROXY-CANARY", "ZZZ-LAST")
	t.rule(`PREROUTING -m mark --mark 0x7/0xff -j ADMIN-MARKS`)
	t.rule(`FORWARD -p tcp -m tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu`)
	t.rule(`ADMIN-MARKS -m comment --comment "priority of voice" -j MARK --set-xmark 0x8/0xff`)
	t.rule(`ADMIN-MARKS -j ZZZ-LAST`)
	t.rule(`ZZZ-LAST -m limit --limit 5/sec --limit-burst 7 -j RETURN`)
	return t
}

// filter has kube-proxy's jumps among jumps of an administrator, a CNI plug-in, a container engine
// and the kubelet.
func (s Shape) filter() *table {
	t := &table{name: "filter", base: []string{"INPUT", "FORWARD", "OUTPUT"}}
	t.chain("ADMIN", "CNI-FORWARD", "DOCKER", "DOCKER-USER", "KUBE-EXTERNAL-SERVICES", "KUBE-FIREWALL",
		"KUBE-FORWARD", "KUBE-KUBELET-CANARY", "KUBE-NODEPORTS", "KUBE-PROXY-CANARY",
		"KUBE-PROXY-FIREWALL", "KUBE-ROUTER-INPUT", "KUBE-SERVICES", "ZZZ-LAST")
	t.rule(`INPUT -i lo -m comment --comment "admin: loopback, KUBE-SERVICES or not" -j ACCEPT`)
	t.rule(
		`INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`)
	t.rule(`INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS`)
	t.rule(`INPUT -p tcp -m multiport --dports 22,9100 -m comment --comment "admin: ssh" -j ADMIN`)
	t.rule(
		`INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES`)
	t.rule(`INPUT -j KUBE-FIREWALL`)
	t.rule(`INPUT -j KUBE-ROUTER-INPUT`)
	t.rule(`FORWARD -j DOCKER-USER`)
	t.rule(`FORWARD -p udp -m udp --dport 53`) // without a target
	t.rule(
		`FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`)
	t.rule(`FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`)
	t.rule(`FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	t.rule(
		`FORWARD -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES`)
	t.rule(`FORWARD -o docker0 -j DOCKER`)
	t.rule(`FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD`)
	t.rule(
		`OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL`)
	t.rule(`OUTPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	t.rule(`OUTPUT -j KUBE-FIREWALL`)
	t.rule(`ADMIN -p tcp -m multiport --dports 22,443,8000:8080 -g ZZZ-LAST`)
	t.rule(`CNI-FORWARD -d %s -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`, host(s.Endpoint(0, 0)))
	t.rule(`DOCKER-USER -j RETURN`)
	s.filterProxy(t)
	t.rule(`KUBE-ROUTER-INPUT -m comment --comment "not kube-proxy's" -j RETURN`)
	t.rule(
		`ZZZ-LAST -p udp -m hashlimit --hashlimit-upto 10/sec --hashlimit-burst 5 --hashlimit-mode srcip --hashlimit-name kubenft -j RETURN`)
	t.rule(`ZZZ-LAST -j REJECT --reject-with %s`, s.reject())
	return t
}

// filterProxy is what kube-proxy's and the kubelet's chains contain.
func (s Shape) filterProxy(t *table) {
	t.rule(
		`KUBE-FIREWALL ! -s %s -d %s -m comment --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP`, s.loopback(), s.loopback())
	t.rule(`KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP`)
	t.rule(`KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT`)
	t.rule(
		`KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT`)
	for i := range s.Services {
		port, hasPort := s.NodePort(i)
		if s.Refused(i) {
			t.rule(
				`KUBE-SERVICES -d %s -p tcp -m comment --comment "%s has no endpoints" -m tcp --dport 80 -j REJECT --reject-with %s`, host(s.ClusterIP(i)), Name(i), s.reject())
		}
		if s.Refused(i) && hasPort {
			t.rule(
				`KUBE-EXTERNAL-SERVICES -p tcp -m comment --comment "%s has no endpoints" -m addrtype --dst-type LOCAL -m tcp --dport %d -j REJECT --reject-with %s`, Name(i), port, s.reject())
		}
		if s.Local(i) {
			t.rule(`KUBE-NODEPORTS -p tcp -m comment --comment "%s health check node port" -m tcp --dport %d -j ACCEPT`,
				Name(i), 32000+i%700)
			t.rule(
				`KUBE-PROXY-FIREWALL -d %s -p %s -m comment --comment "%s traffic not accepted by its ranges" -m %s --dport 80 -j DROP`, host(s.LoadBalancer(i)), s.Protocol(i), Name(i), s.Protocol(i))
		}
	}
}

// reject returns the name of the refusal that kube-proxy uses.
func (s Shape) reject() string { return s.word("icmp-port-unreachable", "icmp6-port-unreachable") }

// loopback returns the range that the kubelet protects.
func (s Shape) loopback() string { return s.word("127.0.0.0/8", "::1/128") }
