package tracker

import (
	"net/netip"
	"slices"
)

// resolve works out what the ports of e mean on this node now, sorted by ID.
func (t *Tracker) resolve(e *entry) []*ServicePort {
	s := e.service
	if s == nil {
		return nil
	}
	ports := make([]*ServicePort, 0, len(s.ports)*len(s.fronts))
	var here [len(Families)][]netip.Addr // ready endpoints on this node, by front; see LocalReady
	for i := range s.ports {
		for j := range s.fronts {
			port, f := &s.ports[i], &s.fronts[j]
			p := &ServicePort{
				ID:                  PortID{Namespace: e.namespace, Service: e.name, Port: port.name, Protocol: port.protocol, Family: f.family},
				Created:             s.created,
				UID:                 s.uid,
				Port:                port.number,
				ClusterIP:           f.clusterIP,
				LoadBalancers:       f.loadBalancers,
				ExternalIPs:         f.externalIPs,
				NodePort:            port.nodePort,
				InternalLocal:       s.internalLocal,
				Affinity:            s.timeout,
				HealthCheckNodePort: s.healthPort,
			}
			p.ExternalLocal = s.externalLocal && p.External()
			if len(f.ranges) > 0 && len(f.loadBalancers) > 0 {
				p.Guarded, p.Sources = true, sources(f, t.addresses)
			}
			all := t.candidates(e, i, j)
			p.choose(all)
			ports = append(ports, p)
			for n := range all {
				if s.healthPort != 0 && all[n].is.has(ready|onNode) {
					here[j] = append(here[j], all[n].at.Addr())
				}
			}
		}
	}
	e.changed = e.changed[:0]
	if s.healthPort == 0 { // without it, the port does not change with their number
		return ports
	}
	for j := range s.fronts {
		n := len(distinct(here[j]))
		for i := j; i < len(ports); i += len(s.fronts) {
			ports[i].LocalReady = n
		}
	}
	return ports
}

// sources returns who may reach the load-balancer IPs of f, which has source ranges. A node
// that may reach them is also met with one of them as its source, if it holds that address.
func sources(f *front, node []netip.Addr) []netip.Prefix {
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

// choose makes the lists of endpoints from all that the port has, which must be sorted. Lists
// that no traffic policy asks for are nil.
//
// The endpoints of the cluster-wide list are ready and as topology allows or, without any
// ready one, draining wherever they are. Topology is ignored unless the control plane has
// planned for each of the ready ones. Those of this node's list, on which topology has no
// say, are ready or, without any on this node, draining.
func (p *ServicePort) choose(all []candidate) {
	var anyReady, anyDraining trait // the traits of any that is ready, or draining
	allReady := ^trait(0)           // those that all ready ones have
	for i := range all {
		is := all[i].is
		if is.has(ready) {
			anyReady |= is
			allReady &= is
		}
		if is.has(draining) {
			anyDraining |= is
		}
	}
	inCluster, inLocal := impossible, impossible
	wantLocal := p.InternalLocal || p.ExternalLocal
	if !p.InternalLocal || p.External() {
		switch {
		case anyReady == 0:
			inCluster = draining
		case allReady.has(nodeHint) && anyReady.has(forNode):
			inCluster = ready | forNode
		case allReady.has(zoneHint) && anyReady.has(inZone):
			inCluster = ready | inZone
		default:
			inCluster = ready
		}
	}
	if wantLocal {
		inLocal = draining | onNode
		if anyReady.has(onNode) {
			inLocal = ready | onNode
		}
	}
	p.HasEndpoints = anyReady != 0 || anyDraining != 0
	p.Serving = having(all, nil, serving, ready)
	p.Cluster = having(all, p.Serving, inCluster, impossible)
	p.Local = having(all, p.Serving, inLocal, impossible)
	p.OnNode = having(all, p.Serving, onNode|inCluster, onNode|inLocal)
	lists := [...]*[]netip.AddrPort{&p.Cluster, &p.Serving, &p.Local, &p.OnNode}
	for i, list := range lists { // equal ones share memory
		for _, earlier := range lists[:i] {
			if slices.Equal(*earlier, *list) {
				*list = *earlier
				break
			}
		}
	}
	if wantLocal && p.Local == nil {
		p.Local = []netip.AddrPort{}
	}
}

// having returns the addresses of the candidates that have all of one or all of another, nil
// for none. It counts first, as these lists are most of what the tracker holds; if there are as
// many as in whole, of which they must be some, it is whole.
func having(all []candidate, whole []netip.AddrPort, one, another trait) []netip.AddrPort {
	n := 0
	for i := range all {
		if all[i].is.has(one) || all[i].is.has(another) {
			n++
		}
	}
	switch n {
	case 0:
		return nil
	case len(whole):
		return whole
	}
	list := make([]netip.AddrPort, 0, n)
	for i := range all {
		if all[i].is.has(one) || all[i].is.has(another) {
			list = append(list, all[i].at)
		}
	}
	return list
}
