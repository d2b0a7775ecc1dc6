package tracker

import (
	"net/netip"
	"slices"
	"time"
)

// Take returns what has changed since the last call. It leaves out what changed and changed back,
// and for a short time new Services without slices and Services that never rest, see Config.AwaitSlices
// and Config.ChangeEvery.
func (t *Tracker) Take() Delta {
	t.mu.Lock()
	defer t.mu.Unlock()
	var d Delta
	var now time.Time
	if t.begun && len(t.dirty) > 0 {
		now = t.config.Clock()
	}
	if len(t.dirty) >= manyDirty {
		d.Changed = make(map[PortID]*ServicePort, len(t.dirty))
	}
	left := t.dirty[:0]
	for _, e := range t.dirty {
		if due := t.due(e); t.begun && d.leaveOut(due, now) {
			left = append(left, e)
			if e.since.IsZero() || e.awaits() {
				continue
			}
			if d.Waiting++; due.Sub(now) > d.Wait {
				d.Slowest, d.Wait = e.namespace+"/"+e.name, due.Sub(now)
			}
			continue
		}
		ports := t.resolve(e)
		if d.replace(e.out, ports) {
			d.observe(e.since)
			d.Triggers = append(d.Triggers, e.triggers...)
		}
		if !e.since.IsZero() { // not only kept to be known
			e.used = later(e.used, now).Add(t.config.ChangeEvery)
		}
		if steps := len(ports) * len(e.slices); steps >= manySteps && t.config.ChangeEvery > 0 {
			e.charged = later(e.charged, now).Add(time.Duration(steps) * ChargeRatio * stepTime)
		}
		e.out, e.dirty, e.triggers = ports, false, nil
		switch {
		case e.service != nil || len(e.slices) > 0:
		case t.begun && d.leaveOut(later(e.used, e.charged), now): // who comes and goes all the time stays known
			e.dirty, e.since, left = true, time.Time{}, append(left, e)
		default:
			delete(t.entries, e.objectName)
		}
	}
	clear(t.dirty[len(left):])
	t.dirty, t.begun = left, true
	t.taken = t.seen
	if t.node.dirty {
		if !t.node.current.Equal(t.node.out) {
			d.Node = t.node.current
			d.observe(t.node.since)
		}
		if !slices.Equal(t.addresses, t.reported) {
			d.NodeAddresses, d.AddressesChanged = t.addresses, true
			t.reported = t.addresses
		}
		t.node.out, t.node.dirty = t.node.current, false
	}
	if t.cidrs.dirty {
		if !slices.Equal(t.cidrs.current, t.cidrs.out) {
			d.ServiceCIDRs, d.CIDRsChanged = t.cidrs.current, true
			d.observe(t.cidrs.since)
		}
		t.cidrs.out, t.cidrs.dirty = t.cidrs.current, false
	}
	return d
}

// A Service with thousands of ports takes a step for each of them and each slice, whatever has changed: less than a
// microsecond.
const (
	manySteps = 400
	stepTime  = time.Microsecond
)

// manyDirty is for how many Services it is worth to make room before they are worked out.
const manyDirty = 64

// resolve works out what the ports of e mean on this node now, sorted by ID.
func (t *Tracker) resolve(e *entry) []*ServicePort {
	s := e.service
	if s == nil {
		return nil
	}
	ports := make([]*ServicePort, 0, len(s.ports)*len(s.fronts))
	var here [len(Families)][]netip.Addr // ready endpoints on this node, by front; see LocalReady
	var guards [len(Families)][]netip.Prefix
	for j := range s.fronts {
		if f := &s.fronts[j]; len(f.ranges) > 0 {
			guards[j] = sources(f, t.addresses)
		}
	}
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
				p.Guarded, p.Sources = true, guards[j]
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
