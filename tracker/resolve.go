package tracker

import (
	"net/netip"
	"slices"
)

// resolve works out what the ports of e mean on this node now, sorted by ID.
func (t *Tracker) resolve(e *entry) []*ServicePort {
	if e.service == nil {
		return nil
	}
	ports := make([]*ServicePort, 0, len(e.service.ports)*len(e.service.fronts))
	var here [len(Families)][]netip.Addr // ready endpoints on this node, by front
	for i := range e.service.ports {
		for j := range e.service.fronts {
			p, all := t.frontends(e, &e.service.ports[i], &e.service.fronts[j]), t.candidates(e, i, j)
			p.choose(all)
			ports = append(ports, p)
			if e.service.healthPort != 0 { // others do not change with their number
				here[j] = appendReadyHere(here[j], all)
			}
		}
	}
	e.changed = e.changed[:0]
	for j := range e.service.fronts {
		ready := len(distinct(here[j]))
		for n := j; n < len(ports); n += len(e.service.fronts) {
			ports[n].LocalReady = ready
		}
	}
	return ports
}

// appendReadyHere appends the addresses of the ready endpoints on this node.
func appendReadyHere(addrs []netip.Addr, all []candidate) []netip.Addr {
	for i := range all {
		if all[i].is.has(ready | onNode) {
			addrs = append(addrs, all[i].at.Addr())
		}
	}
	return addrs
}

// frontends returns the ServicePort of one port and family without endpoints.
func (t *Tracker) frontends(e *entry, p *port, f *front) *ServicePort {
	s := e.service
	sp := &ServicePort{
		ID:                  PortID{Namespace: e.namespace, Service: e.name, Port: p.name, Protocol: p.protocol, Family: f.family},
		Created:             s.created,
		UID:                 s.uid,
		Port:                p.number,
		ClusterIP:           f.clusterIP,
		LoadBalancers:       f.loadBalancers,
		ExternalIPs:         f.externalIPs,
		NodePort:            p.nodePort,
		InternalLocal:       s.internalLocal,
		Affinity:            s.timeout,
		HealthCheckNodePort: s.healthPort,
	}
	sp.ExternalLocal = s.externalLocal && sp.External()
	sp.Sources = sources(f, t.addresses())
	sp.Guarded = len(sp.Sources) > 0
	return sp
}

// sources returns who may reach the load-balancer IPs of f, nil for everybody. A node that
// may reach them is also met with one of them as its source, if it holds that address.
func sources(f *front, node []netip.Addr) []netip.Prefix {
	if len(f.ranges) == 0 || len(f.loadBalancers) == 0 {
		return nil
	}
	inside := func(addr netip.Addr) bool { return contains(f.ranges, addr) }
	if !slices.ContainsFunc(node, inside) {
		return f.ranges
	}
	excused := slices.Clone(f.ranges)
	for _, ip := range f.loadBalancers {
		excused = append(excused, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return mergePrefixes(excused)
}

// choose makes the lists of endpoints.
func (p *ServicePort) choose(all []candidate) {
	wantCluster := !p.InternalLocal || p.External()
	wantLocal := p.InternalLocal || p.ExternalLocal
	chosen := selectEndpoints(all, wantCluster, wantLocal)
	p.Cluster, p.Local, p.OnNode, p.Serving = chosen.cluster, chosen.local, chosen.onNode, chosen.serving
	p.HasEndpoints = chosen.any
}
