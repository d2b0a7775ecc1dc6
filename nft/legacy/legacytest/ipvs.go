package legacytest

import (
	"fmt"
	"net/netip"
	"strings"
)

// setName returns the name of an ipset in the Shape's family.
func (s Shape) setName(suffix string) string { return s.word("KUBE-", "KUBE-6-") + suffix }

// IPSets returns the text for ipset restore of kube-proxy's IPVS mode. The rules of IPVS
// need the sets.
func (s Shape) IPSets() string {
	var b strings.Builder
	for _, set := range [][2]string{
		{"CLUSTER-IP", "hash:ip,port"}, {"LOAD-BALANCER", "hash:ip,port"},
		{"LOOP-BACK", "hash:ip,port,ip"}, {"IPVS-IPS", "hash:ip"},
	} {
		fmt.Fprintf(&b, "create %s %s family %s\n", s.setName(set[0]), set[1], s.word("inet", "inet6"))
	}
	nodePorts := func(i int) string { return s.setName("NODE-PORT-" + strings.ToUpper(s.Protocol(i))) }
	for _, protocol := range []string{"TCP", "UDP"} {
		fmt.Fprintf(&b, "create %s bitmap:port range 0-65535\n", s.setName("NODE-PORT-"+protocol))
	}
	for i := range s.Services {
		fmt.Fprintf(&b, "add %s %s,%s:80\n", s.setName("CLUSTER-IP"), s.ClusterIP(i), s.Protocol(i))
		fmt.Fprintf(&b, "add %s %s\n", s.setName("IPVS-IPS"), s.ClusterIP(i))
		if port, ok := s.NodePort(i); ok {
			fmt.Fprintf(&b, "add %s %d\n", nodePorts(i), port)
		}
		if s.Local(i) {
			fmt.Fprintf(&b, "add %s %s,%s:80\n", s.setName("LOAD-BALANCER"), s.LoadBalancer(i), s.Protocol(i))
			fmt.Fprintf(&b, "add %s %s\n", s.setName("IPVS-IPS"), s.LoadBalancer(i))
		}
	}
	return b.String()
}

// ServiceAddresses are the addresses that kube-ipvs0 has.
func (s Shape) ServiceAddresses() (list []netip.Addr) {
	for i := range s.Services {
		if list = append(list, s.ClusterIP(i)); s.Local(i) {
			list = append(list, s.LoadBalancer(i))
		}
	}
	return list
}

// Servers returns the text for ipvsadm -R of the virtual servers. Node ports are served at the addresses of
// the node.
func (s Shape) Servers(node ...netip.Addr) string {
	var b strings.Builder
	for i := range s.Services {
		at := []string{socket(s.ClusterIP(i), 80)}
		if s.Local(i) {
			at = append(at, socket(s.LoadBalancer(i), 80))
		}
		if port, ok := s.NodePort(i); ok {
			for _, addr := range node {
				at = append(at, socket(addr, uint16(port)))
			}
		}
		for n, frontend := range at {
			server := "-" + s.Protocol(i)[:1] + " " + frontend
			fmt.Fprintf(&b, "-A %s -s rr\n", server)
			for j := range s.Endpoints {
				if there := n == 0 || !s.Local(i) || j == 0; there && !s.Refused(i) { // endpoint 0 is on this node
					fmt.Fprintf(&b, "-a %s -r %s -m -w 1\n", server, socket(s.Endpoint(i, j), 8080))
				}
			}
		}
	}
	return b.String()
}

// IPVS returns the text for iptables-restore that kube-proxy's IPVS mode and others make
// together.
func (s Shape) IPVS() string {
	// The rules that keep cluster IPs from answering for the node.
	filter := &table{name: "filter", base: []string{"INPUT", "FORWARD", "OUTPUT"}}
	filter.chain("KUBE-FIREWALL", "KUBE-FORWARD", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-NODE-PORT",
		"KUBE-PROXY-FIREWALL", "KUBE-SOURCE-RANGES-FIREWALL")
	filter.rule(`INPUT -i lo -m comment --comment "admin: loopback" -j ACCEPT`)
	filter.rule(`INPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-FILTER`)
	filter.rule(`INPUT -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL`)
	filter.rule(`INPUT -m comment --comment "kubernetes health check rules" -j KUBE-NODE-PORT`)
	filter.rule(`INPUT -j KUBE-FIREWALL`)
	filter.rule(`FORWARD -m comment --comment "kube-proxy firewall rules" -j KUBE-PROXY-FIREWALL`)
	filter.rule(`FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD`)
	filter.rule(`OUTPUT -m comment --comment "kubernetes ipvs access filter" -j KUBE-IPVS-OUT-FILTER`)
	filter.rule(`KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT`)
	filter.rule(`KUBE-IPVS-FILTER -m set --match-set %s dst,dst -j RETURN`, s.setName("LOAD-BALANCER"))
	filter.rule(`KUBE-IPVS-FILTER -m set --match-set %s dst,dst -j RETURN`, s.setName("CLUSTER-IP"))
	filter.rule(`KUBE-IPVS-FILTER -m conntrack --ctstate NEW -m set --match-set %s dst -j REJECT --reject-with %s`,
		s.setName("IPVS-IPS"), s.reject())
	filter.rule(`KUBE-SOURCE-RANGES-FIREWALL -j DROP`)

	// The rules that mark what is to be masqueraded.
	nat := &table{name: "nat", base: []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}}
	nat.chain("KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ", "KUBE-NODE-PORT", "KUBE-POSTROUTING", "KUBE-SERVICES")
	nat.rule(`PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	nat.rule(`OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	nat.rule(`POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`)
	nat.rule(`POSTROUTING -o docker0 -j MASQUERADE`)
	nat.rule(`KUBE-LOAD-BALANCER -j KUBE-MARK-MASQ`)
	nat.rule(`KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`)
	nat.rule(`KUBE-NODE-PORT -p tcp -m set --match-set %s dst -j KUBE-MARK-MASQ`, s.setName("NODE-PORT-TCP"))
	nat.rule(`KUBE-POSTROUTING -m set --match-set %s dst,dst,src -j MASQUERADE`, s.setName("LOOP-BACK"))
	nat.rule(`KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN`)
	nat.rule(`KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0`)
	nat.rule(`KUBE-POSTROUTING -j MASQUERADE`)
	nat.rule(`KUBE-SERVICES -m set --match-set %s dst,dst -j KUBE-LOAD-BALANCER`, s.setName("LOAD-BALANCER"))
	nat.rule(`KUBE-SERVICES ! -s %s -m set --match-set %s dst,dst -j KUBE-MARK-MASQ`, s.pods(), s.setName("CLUSTER-IP"))
	nat.rule(`KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT`)
	nat.rule(`KUBE-SERVICES -m set --match-set %s dst,dst -j ACCEPT`, s.setName("CLUSTER-IP"))
	return filter.String() + nat.String()
}
