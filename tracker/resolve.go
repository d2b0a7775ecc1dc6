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
	counts := t.localReady(e)
	ports := make([]*ServicePort, 0, len(e.service.ports)*len(e.service.fronts))
	for i := range e.service.ports {
		for j := range e.service.fronts {
			p := t.frontends(e, &e.service.ports[i], &e.service.fronts[j])
			p.LocalReady = counts[j]
			p.choose(t.candidates(e, i, j))
			ports = append(ports, p)
		}
	}
	e.changed = e.changed[:0]
	return ports
}

// localReady counts, for each of the fronts of e, what load balancers ask for. Services
// that have no health check port do not change with it.
func (t *Tracker) localReady(e *entry) (counts [len(Families)]int) {
	if e.service.healthPort != 0 {
		for i, f := range e.service.fronts {
			counts[i] = t.countLocalReady(e, f.family)
		}
	}
	return counts
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
