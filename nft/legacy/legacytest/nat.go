package legacytest

import "fmt"

// nat has the Services.
func (s Shape) nat() *table {
	t := &table{name: "nat", base: []string{"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"}}
	t.chain("CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "DOCKER", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP",
		"KUBE-MARK-MASQ", "KUBE-NODEPORTS", "KUBE-POSTROUTING", "KUBE-PROXY-CANARY", "KUBE-SERVICES")
	t.rule(
		`PREROUTING -p tcp -m tcp --dport 2222 -m comment --comment "admin: ssh by the back door" -j REDIRECT --to-ports 22`)
	t.rule(`PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	t.rule(`PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT`)
	t.rule(`OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`)
	t.rule(`OUTPUT ! -d %s -m addrtype --dst-type LOCAL -j DOCKER`, s.loopback())
	t.rule(`POSTROUTING -o docker0 -m addrtype --src-type LOCAL -j MASQUERADE`)
	t.rule(`POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`)
	t.rule(`POSTROUTING -s %s ! -o docker0 -j MASQUERADE`, host(s.addr("172.17.0.2", "fd00:172:17::2", 0)))
	t.rule(`CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 8081 -j DNAT --to-destination %s`, socket(s.Endpoint(0, 0), 81))
	t.rule(`DOCKER -i docker0 -j RETURN`)
	t.rule(`KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000`)
	t.rule(`KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000`)
	t.rule(`KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN`)
	t.rule(`KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0`)
	t.rule(
		`KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully`)
	for i := range s.Services {
		s.natService(t, i)
	}
	t.rule(
		`KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS`)
	if s.Borrowed {
		t.rule(`CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j KUBE-MARK-MASQ`)
		t.rule(`OUTPUT -p tcp -m tcp --dport 1080 -m comment --comment "admin: short cut" -j %s`,
			chainName("SVC", Name(0)))
		t.rule(`PREROUTING -s %s -j KUBE-SERVICES`, host(s.Endpoint(0, 0)))
	}
	t.chain("ZZZ-LAST")
	t.rule(`ZZZ-LAST -m conntrack --ctstate INVALID -j RETURN`)
	t.rule(`CNI-HOSTPORT-DNAT -j ZZZ-LAST`)
	return t
}

// natService is one Service.
func (s Shape) natService(t *table, i int) {
	if s.Refused(i) {
		return
	}
	name, svc, proto := Name(i), chainName("SVC", Name(i)), s.Protocol(i)
	t.chain(svc)
	ip := host(s.ClusterIP(i))
	t.rule(`KUBE-SERVICES -d %s -p %s -m comment --comment "%s cluster IP" -m %s --dport 80 -j %s`, ip, proto, name,
		proto, svc)
	t.rule(`%s ! -s %s -d %s -p %s -m comment --comment "%s cluster IP" -m %s --dport 80 -j KUBE-MARK-MASQ`, svc, s.pods(),
		ip, proto, name, proto)
	s.natExternal(t, i)
	if s.Affine(i) {
		for j := range s.Endpoints {
			sep := s.endpointChain(i, j)
			t.rule(
				`%s -m comment --comment "%s -> %s" -m recent --rcheck --seconds 10800 --reap --name %s --mask %s --rsource -j %s`,
				svc, name, socket(s.Endpoint(i, j), 8080), sep, s.mask(), sep)
		}
	}
	for j := range s.Endpoints {
		chance := ""
		if left := s.Endpoints - j; left > 1 {
			chance = fmt.Sprintf("-m statistic --mode random --probability %.11f ", 1/float64(left))
		}
		t.rule(`%s -m comment --comment "%s -> %s" %s-j %s`, svc, name, socket(s.Endpoint(i, j), 8080), chance,
			s.endpointChain(i, j))
	}
	for j := range s.Endpoints {
		sep := s.endpointChain(i, j)
		t.chain(sep)
		t.rule(`%s -s %s -m comment --comment "%s" -j KUBE-MARK-MASQ`, sep, host(s.Endpoint(i, j)), name)
		recent := ""
		if s.Affine(i) {
			recent = fmt.Sprintf("-m recent --set --name %s --mask %s --rsource ", sep, s.mask())
		}
		t.rule(`%s -p %s -m comment --comment "%s" %s-m %s -j DNAT --to-destination %s`, sep, proto, name, recent, proto,
			socket(s.Endpoint(i, j), 8080))
	}
}

// natExternal is how a Service is reached from outside.
func (s Shape) natExternal(t *table, i int) {
	name, ext, proto := Name(i), chainName("EXT", Name(i)), s.Protocol(i)
	port, hasPort := s.NodePort(i)
	if !hasPort && !s.Local(i) {
		return
	}
	t.chain(ext)
	if hasPort {
		t.rule(`KUBE-NODEPORTS -p %s -m comment --comment "%s" -m %s --dport %d -j %s`, proto, name, proto, port, ext)
	}
	if !s.Local(i) {
		t.rule(`%s -m comment --comment "masquerade traffic for %s external destinations" -j KUBE-MARK-MASQ`, ext, name)
		t.rule(`%s -j %s`, ext, chainName("SVC", name))
		return
	}
	fw, svl := chainName("FW", name), chainName("SVL", name)
	t.chain(fw, svl)
	t.rule(`KUBE-SERVICES -d %s -p %s -m comment --comment "%s loadbalancer IP" -m %s --dport 80 -j %s`,
		host(s.LoadBalancer(i)), proto, name, proto, fw)
	t.rule(`%s -s %s -m comment --comment "%s loadbalancer IP" -j %s`, fw, s.pods(), name, ext)
	t.rule(`%s -s %s -m comment --comment "pod traffic for %s external destinations" -j %s`, ext, s.pods(), name,
		chainName("SVC", name))
	t.rule(
		`%s -m comment --comment "route LOCAL traffic for %s external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ`, ext, name)
	t.rule(`%s -j %s`, ext, svl)
	t.rule(`%s -m comment --comment "%s -> %s" -j %s`, svl, name, socket(s.Endpoint(i, 0), 8080), s.endpointChain(i, 0))
}

// endpointChain returns the name of the chain of an endpoint.
func (s Shape) endpointChain(i, j int) string {
	return chainName("SEP", Name(i)+socket(s.Endpoint(i, j), 8080))
}

// pods returns the range of pod addresses.
func (s Shape) pods() string { return s.word("10.244.0.0/16", "fd00:10:244::/48") }

// mask returns the mask that distinguishes clients.
func (s Shape) mask() string {
	return s.word("255.255.255.255", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
}
