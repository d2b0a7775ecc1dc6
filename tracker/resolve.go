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
				Routers:             f.routers,
				ExternalIPs:         f.externalIPs,
				RefusedExternalIPs:  f.refusedIPs,
				NodePort:            port.nodePort,
				InternalLocal:       s.internalLocal,
				Affinity:            s.timeout,
				HealthCheckNodePort: s.healthPort,
				Settings:            s.settings,
			}
			if s.settings.GuardNodePorts && f.closed {
				p.NodePort = 0
			}
			p.ExternalLocal = s.externalLocal && p.External()
			p.NodePortGuarded = s.settings.GuardNodePorts && len(f.ranges) > 0 && p.NodePort != 0
			if len(f.ranges) > 0 && len(f.loadBalancers) > 0 || p.NodePortGuarded {
				p.Guarded, p.Sources = true, sources(f, t.addresses)
			}
			all := t.candidates(e, i, j)
			p.choose(all)
			ports = append(ports, p)
			for n := range all {
				if s.healthPort != 0 && all[n].is.has(ready|onNode|weighted) {
					here[j] = append(here[j], all[n].at.Addr())
				}
			}
		}
	}
	e.changed = e.changed[:0]
	if s.healthPort == 0 { // without it, their number is no part of the port
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

// sources returns who may reach the load-balancer IPs of f, which has source ranges. A node within
// the ranges may hold a load-balancer IP as an address of its own and use it as the source; then
// sources includes these IPs.
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

// choose makes the lists of endpoints from all endpoints of the port, which must be sorted. Lists
// that no traffic policy needs are nil.
//
// The cluster-wide list holds the ready endpoints that topology allows; if there are no ready ones,
// all draining endpoints anywhere. Topology counts only if the control plane has planned for every
// ready endpoint. This node's list ignores topology. It holds the ready endpoints on this node; if
// there are none, the draining ones.
//
// An endpoint of weight 0 is no part of these lists, as if it did not exist, and counts for none of the
// decisions about them. It stays in Serving, so that its connections live on.
func (p *ServicePort) choose(all []candidate) {
	var anyReady, anyDraining trait // all traits of ready endpoints, and of draining ones
	allReady := ^trait(0)           // the traits that all ready endpoints share
	for i := range all {
		is := all[i].is
		if !is.has(weighted) {
			continue
		}
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
	local := (anyReady | anyDraining).has(onNode)
	if !p.InternalLocal || p.External() || p.Settings.LocalFallback && !local {
		switch {
		case anyReady == 0:
			inCluster = weighted | draining
		case allReady.has(nodeHint) && anyReady.has(forNode):
			inCluster = weighted | ready | forNode
		case allReady.has(zoneHint) && anyReady.has(inZone):
			inCluster = weighted | ready | inZone
		default:
			inCluster = weighted | ready
		}
	}
	if wantLocal {
		inLocal = weighted | draining | onNode
		if anyReady.has(onNode) {
			inLocal = weighted | ready | onNode
		}
	}
	p.HasEndpoints = anyReady != 0 || anyDraining != 0
	p.Serving = having(all, nil, serving, ready)
	switch {
	case p.ID.Protocol == UDP && p.Settings.KeepUnreadyUDP:
		p.Serving = having(all, p.Serving, anything)
	case p.ID.Protocol != UDP && p.Settings.ResetDeparted:
		p.Serving = having(all, p.Serving, serving, ready, terminating)
	}
	p.Cluster = having(all, p.Serving, inCluster)
	p.Local = having(all, p.Serving, inLocal)
	p.OnNode = having(all, p.Serving, onNode|inCluster, onNode|inLocal)
	p.ClusterWeights, p.LocalWeights = weights(all, inCluster), weights(all, inLocal)
	lists := [...]*[]netip.AddrPort{&p.Cluster, &p.Serving, &p.Local, &p.OnNode}
	for i, list := range lists { // equal lists share memory
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

// having returns the addresses of the candidates that have all traits of one of sets, nil for
// none. If whole, a list that contains them all, is as long, having returns whole
// itself. It counts before it allocates, as these lists are most of the tracker's memory.
func having(all []candidate, whole []netip.AddrPort, sets ...trait) []netip.AddrPort {
	n := 0
	for i := range all {
		if all[i].is.hasOne(sets) {
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
		if all[i].is.hasOne(sets) {
			list = append(list, all[i].at)
		}
	}
	return list
}

// weights lists the weights of the candidates that have all traits of one; nil if they are equal.
func weights(all []candidate, one trait) (list []uint16) {
	n, first, equal := 0, uint16(0), true
	for i := range all {
		if c := &all[i]; c.is.has(one) {
			if n++; n == 1 {
				first = c.weight
			}
			equal = equal && c.weight == first
		}
	}
	if equal {
		return nil
	}
	list = make([]uint16, 0, n)
	for i := range all {
		if c := &all[i]; c.is.has(one) {
			list = append(list, c.weight)
		}
	}
	return list
}
