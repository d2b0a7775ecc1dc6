package legacytest

import (
	"fmt"
	"strings"
)

// NFTables returns the text for nft -f of kube-proxy's own table in its nftables mode, and of a
// foreign table.
func (s Shape) NFTables() string {
	var b strings.Builder
	family := s.Family.NFT()
	fmt.Fprintf(&b, "table %s kube-proxy {\n", family)
	addr := s.addrType()
	var ips, services, nodePorts, refused []string
	for i := range s.Services {
		key := fmt.Sprintf("%s . %s . 80", s.ClusterIP(i), s.Protocol(i))
		ips = append(ips, s.ClusterIP(i).String())
		if s.Refused(i) {
			refused = append(refused, fmt.Sprintf("%s comment %q : goto reject-chain", key, Name(i)))
			continue
		}
		services = append(services, fmt.Sprintf("%s : goto %s", key, nftChain("service", i)))
		if s.Local(i) {
			services = append(services, fmt.Sprintf("%s . %s . 80 : goto %s", s.LoadBalancer(i), s.Protocol(i),
				nftChain("external", i)))
		}
		if port, ok := s.NodePort(i); ok {
			nodePorts = append(nodePorts, fmt.Sprintf("%s . %d : goto %s", s.Protocol(i), port, nftChain("external", i)))
		}
	}
	nftSet(&b, "set cluster-ips", addr, ips)
	nftSet(&b, "map service-ips", addr+" . inet_proto . inet_service : verdict", services)
	nftSet(&b, "map service-nodeports", "inet_proto . inet_service : verdict", nodePorts)
	nftSet(&b, "map no-endpoint-services", addr+" . inet_proto . inet_service : verdict", refused)
	s.nftBase(&b)
	for i := range s.Services {
		s.nftService(&b, i)
	}
	b.WriteString("}\n")
	fmt.Fprintf(&b,
		"table %s admin {\n\tchain kube-proxy {\n\t\ttcp dport 22 counter packets 3 bytes 180 accept\n\t}\n}\n", family)
	return b.String()
}

// nftSet writes a set or map.
func nftSet(b *strings.Builder, name, typ string, elements []string) {
	fmt.Fprintf(b, "\t%s {\n\t\ttype %s\n", name, typ)
	if len(elements) > 0 {
		fmt.Fprintf(b, "\t\telements = { %s }\n", strings.Join(elements, ",\n\t\t\t"))
	}
	b.WriteString("\t}\n")
}

// nftBase writes the chains that do not depend on Services.
func (s Shape) nftBase(b *strings.Builder) {
	f := s.Family.NFT()
	for _, c := range [][2]string{
		{"mark-for-masquerade", "mark set mark or 0x4000"},
		{"masquerading", "mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random"},
		{"reject-chain", "reject"},
		{
			"services",
			fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @service-ips\n\t\tfib daddr type local meta l4proto . th "+
				"dport vmap @service-nodeports", f),
		},
		{"service-endpoints-check", fmt.Sprintf("%s daddr . meta l4proto . th dport vmap @no-endpoint-services", f)},
		{"cluster-ips-check", fmt.Sprintf("%s daddr @cluster-ips reject", f)},
		{"nat-prerouting", "type nat hook prerouting priority dstnat; policy accept;\n\t\tjump services"},
		{"nat-output", "type nat hook output priority -100; policy accept;\n\t\tjump services"},
		{"nat-postrouting", "type nat hook postrouting priority srcnat; policy accept;\n\t\tjump masquerading"},
		{"filter-input", "type filter hook input priority 0; policy accept;\n\t\tct state new jump service-endpoints-check"},
		{"filter-forward",
			"type filter hook forward priority 0; policy accept;\n\t\tct state new jump service-endpoints-check\n\t\tct state " +
				"new jump cluster-ips-check"},
		{
			"filter-output",
			"type filter hook output priority 0; policy accept;\n\t\tct state new jump service-endpoints-check\n\t\tct state " +
				"new jump cluster-ips-check",
		},
	} {
		fmt.Fprintf(b, "\tchain %s {\n\t\t%s\n\t}\n", c[0], c[1])
	}
}

// nftService writes the chains of one Service.
func (s Shape) nftService(b *strings.Builder, i int) {
	if s.Refused(i) {
		return
	}
	family := s.Family.NFT()
	if s.Affine(i) {
		s.nftEndpoints(b, i)
	}
	fmt.Fprintf(b, "\tchain %s {\n\t\t%s daddr %s %s dport 80 %s saddr != %s jump mark-for-masquerade\n",
		nftChain("service", i), family, s.ClusterIP(i), s.Protocol(i), family, s.pods())
	var ends []string
	for j := range s.Endpoints {
		if s.Affine(i) {
			fmt.Fprintf(b, "\t\t%s saddr @%s goto endpoint-%s\n", family, s.ClientSet(i, j), s.nftEndpoint(i, j))
			ends = append(ends, fmt.Sprintf("%d : goto endpoint-%s", j, s.nftEndpoint(i, j)))
		} else {
			ends = append(ends, fmt.Sprintf("%d : %s . 8080", j, s.Endpoint(i, j)))
		}
	}
	if s.Affine(i) {
		fmt.Fprintf(b, "\t\tnumgen random mod %d vmap { %s }\n\t}\n", s.Endpoints, strings.Join(ends, ", "))
	} else {
		fmt.Fprintf(b, "\t\tmeta l4proto %s dnat %s to numgen random mod %d map { %s }\n\t}\n", s.Protocol(i), family,
			s.Endpoints, strings.Join(ends, ", "))
	}
	if s.Local(i) {
		fmt.Fprintf(b, "\tchain %s {\n\t\tmeta l4proto %s dnat %s to numgen random mod 1 map { 0 : %s . 8080 }\n\t}\n",
			nftChain("local", i), s.Protocol(i), family, s.Endpoint(i, 0))
		fmt.Fprintf(b, "\tchain %s {\n\t\t%s saddr %s goto %s\n\t\tfib saddr type local jump mark-for-masquerade\n"+
			"\t\tfib saddr type local goto %s\n\t\tgoto %s\n\t}\n", nftChain("external", i), family, s.pods(),
			nftChain("service", i), nftChain("service", i), nftChain("local", i))
	} else if _, ok := s.NodePort(i); ok {
		fmt.Fprintf(b, "\tchain %s {\n\t\tjump mark-for-masquerade\n\t\tgoto %s\n\t}\n", nftChain("external", i),
			nftChain("service", i))
	}
}

// nftEndpoints writes the sets of clients and the chains of the endpoints of a Service with session
// affinity.
func (s Shape) nftEndpoints(b *strings.Builder, i int) {
	for j := range s.Endpoints {
		fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n\t\tflags dynamic,timeout\n\t\ttimeout 3h\n\t}\n", s.ClientSet(i, j),
			s.addrType())
		fmt.Fprintf(b, "\tchain endpoint-%s {\n\t\tupdate @%s { %s saddr }\n\t\tmeta l4proto %s dnat to %s\n\t}\n",
			s.nftEndpoint(i, j), s.ClientSet(i, j), s.Family.NFT(), s.Protocol(i), socket(s.Endpoint(i, j), 8080))
	}
}

// nftEndpoint is the common part of the names of an endpoint's set and chain, as kube-proxy forms it.
func (s Shape) nftEndpoint(i, j int) string {
	end := fmt.Sprintf("shop/service-%d/%s/http__%s/8080", i, s.Protocol(i),
		strings.ReplaceAll(s.Endpoint(i, j).String(), ":", "."))
	return strings.TrimPrefix(chainName("X", end), "KUBE-X-")[:8] + "-" + end
}

func (s Shape) addrType() string { return s.word("ipv4_addr", "ipv6_addr") }

// nftChain names a chain of a Service as kube-proxy does.
func nftChain(kind string, i int) string {
	hash := strings.TrimPrefix(chainName("X", Name(i)), "KUBE-X-")
	return fmt.Sprintf("%s-%s-shop/service-%d/tcp/http", kind, hash[:8], i)
}
