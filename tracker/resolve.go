package tracker

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Take returns what has changed since the last call. It leaves out what changed and changed back, and for a short
// time new Services without slices, see Config.AwaitSlices. One call hands out about mostWork elements, and Delta.Due
// says when there is more. Namespaces for which this node has worked least come first. What is deleted, and what a
// Service gives up, never waits for what was added before, see fairness.go. The first Take, and one after TakeAll,
// leave out nothing.
func (t *Tracker) Take() Delta {
	t.mu.Lock()
	defer t.mu.Unlock()
	var d Delta
	now := t.config.Clock()
	s := stepper{left: mostWork}
	if !t.begun {
		s.left = math.MaxInt
	}
	t.removed = t.takeRemoved(t.removed, &d, &s)
	slices.SortStableFunc(t.dirty, func(a, b *namespace) int { return a.compare(b, now) })
	// takeAway is for Services that wait because of what others add. The namespaces that come last below come first.
	takeAway := func() {
		for _, n := range slices.Backward(t.dirty) {
			if len(n.dirty) > 0 {
				t.takeFrom(n, &d, &s, true, now)
			}
		}
	}
	first := t.takesAwayFirst
	if first {
		takeAway()
	}
	for _, n := range t.dirty {
		t.takeFrom(n, &d, &s, false, now)
	}
	t.takesAwayFirst = !first && s.left <= -mostWork/4 // a slot table or a very long list has used more
	if !first && !t.takesAwayFirst {
		s.left = max(s.left, mostWork/4)
		takeAway()
	}
	for _, n := range t.dirty {
		if n.waits(now) && (len(n.dirty) > 0 || n.recount) {
			d.wait(n, now)
		}
	}
	t.dirty = slices.DeleteFunc(t.dirty, func(n *namespace) bool { return len(n.dirty) == 0 && !n.recount })
	d.Unserved = t.unserved
	t.handOut(&d)
	t.begun = true
	t.taken = t.seen
	t.takeNode(&d)
	t.forgetNamespaces(now)
	return d
}

// TakeAll lets the next Take leave out nothing. It is for a process that has taken changes and committed none of them:
// its first commit must have all Services, or it removes those of the last process.
func (t *Tracker) TakeAll() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.begun = false
}

// takeRemoved takes steps towards the end of Services that were deleted, and returns those of which something is left.
// It uses half of what s may hand out, so that what other namespaces change does not wait until a large Service is
// gone. Small Services come first. What others claim of a Service is free at once, see Delta.Leaving.
func (t *Tracker) takeRemoved(removed []*entry, d *Delta, s *stepper) (left []*entry) {
	slices.SortStableFunc(removed, func(a, b *entry) int { return cmp.Compare(len(a.out), len(b.out)) })
	half := s.left / 2
	s.left -= half
	defer func() { s.left = max(s.left, 0) + half }()
	left = removed[:0]
	for _, e := range removed {
		if e.service != nil || len(e.out) == 0 {
			continue // it has come back, or was taken before
		}
		if !t.remove(e, d, s) {
			left = append(left, e)
		}
	}
	clear(removed[len(left):])
	return left
}

// remove takes a step towards the end of all ports of e, and reports whether that is reached.
func (t *Tracker) remove(e *entry, d *Delta, s *stepper) (done bool) {
	if s.left > 0 {
		t.advance(e, s.removePorts(e.out))
	}
	if done = len(e.out) == 0; !done && !e.leaving {
		d.leave(e)
	}
	e.leaving = !done
	return done
}

// takeFrom takes steps towards what a namespace wants, as far as s goes. It adds to d what has to wait. With rest it is
// for Services that the present Take has not reached, and takes away only.
func (t *Tracker) takeFrom(n *namespace, d *Delta, s *stepper, rest bool, now time.Time) {
	s.adds = !rest && (!t.begun || !n.waits(now))
	if n.rests && t.begun && !s.adds { // a walk through dirty, for each commit of others, would be charged
		return
	}
	began := t.config.CPUTime()
	if s.left > 0 {
		t.applyQuota(n, d, s.adds)
	} else if n.recount {
		d.leaveOut(now, now.Add(-1))
	}
	if rest { // as with namespaces: the Services that come last otherwise come first
		slices.Reverse(n.dirty)
		defer func() { slices.Reverse(n.dirty) }()
	}
	left := n.dirty[:0]
	n.rests = !s.adds && !rest
	for i, e := range n.dirty {
		if s.left <= 0 {
			n.rests = false
			d.leaveOut(now, now.Add(-1))
			left = append(left, n.dirty[i:]...)
			break
		}
		if t.begun && e.awaits() && d.leaveOut(e.since.Add(t.config.AwaitSlices), now) ||
			!s.adds && e.reduced || rest && e.advanced {
			n.rests = n.rests && e.reduced
			left = append(left, e)
			continue
		}
		most := s.left
		if s.again = e.want != nil; !s.again {
			e.want = t.resolve(e)
			e.groups = nil
			most -= (e.demand.base + demandPerElement - 1) / demandPerElement
		}
		done := t.stepTo(e, d, s)
		reduced := !s.adds && s.left > 0
		if s.left = min(s.left, most); !done {
			e.reduced = e.reduced || reduced
			n.rests = n.rests && e.reduced
			if s.adds || !e.reduced {
				d.leaveOut(now, now.Add(-1))
			}
			left = append(left, e)
			continue
		}
		e.dirty, e.want = false, nil
		if e.service == nil && len(e.slices) == 0 {
			t.forget(e)
		}
	}
	clear(n.dirty[len(left):])
	n.dirty = left
	if t.begun {
		n.charge(now, max(0, t.config.CPUTime()-began))
	}
}

// stepTo takes a step towards what is wanted of e, and reports whether that is reached.
func (t *Tracker) stepTo(e *entry, d *Delta, s *stepper) (done bool) {
	if len(e.want) == 0 {
		return t.remove(e, d, s)
	}
	if e.leaving { // it has come back
		e.leaving, e.out = false, slices.Clone(e.out)
		for i, p := range e.out {
			e.out[i] = p.leaving()
		}
	}
	ports, done := s.step(e.out, e.want)
	t.advance(e, ports)
	return done
}

// advance sets which ports Take hands out of a Service. One call of Take can do so twice.
func (t *Tracker) advance(e *entry, ports []*ServicePort) {
	if !e.advanced {
		e.advanced, e.before = true, e.out
		t.advanced = append(t.advanced, e)
	}
	e.out = ports
}

// handOut adds to d what has changed of the ports of Services.
func (t *Tracker) handOut(d *Delta) {
	for _, e := range t.advanced {
		if d.replace(e.before, e.out) {
			d.observe(e.since)
			d.Triggers = append(d.Triggers, e.triggers...)
		}
		e.advanced, e.before, e.triggers = false, nil, nil
	}
	t.advanced = nil
}

// takeNode adds to d what has changed of the node and of the Service CIDRs.
func (t *Tracker) takeNode(d *Delta) {
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
}

// resolve works out what the ports of e mean on this node now, sorted by ID.
func (t *Tracker) resolve(e *entry) []*ServicePort {
	s := e.service
	if s == nil || e.granted == nothing {
		return nil
	}
	ports := t.portsOf(e)
	slices.SortFunc(e.changed, netip.Addr.Compare)
	e.changed = slices.Compact(e.changed)
	for j := range s.fronts {
		here := t.chooseEndpoints(e, j, ports)
		if s.healthPort == 0 { // without it, their number is no part of the port
			continue
		}
		n := len(distinct(here))
		for i := j; i < len(ports); i += len(s.fronts) {
			ports[i].LocalReady = n
		}
	}
	e.changed = e.changed[:0]
	reuse(e.out, ports)
	return ports
}

// portsOf returns the ports of e in each of its fronts, sorted by ID, without endpoints.
func (t *Tracker) portsOf(e *entry) []*ServicePort {
	s := e.service
	ports := make([]*ServicePort, len(s.ports)*len(s.fronts))
	for j := range s.fronts {
		f := &s.fronts[j]
		var ranges []netip.Prefix
		if len(f.ranges) > 0 {
			ranges = sources(f, t.addresses)
			have := func(p *ServicePort) bool { return p.ID.Family == f.family && p.HasSourceRanges }
			if i := slices.IndexFunc(e.out, have); i >= 0 && slices.Equal(e.out[i].Sources, ranges) {
				ranges = e.out[i].Sources // ports are compared with those before
			}
		}
		for i := range s.ports {
			port := &s.ports[i]
			p := PortSpec{
				ID: PortID{Namespace: e.namespace, Service: e.name, Port: port.name, Protocol: port.protocol,
					Family: f.family},
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
				Several:             s.timeout != 0 && len(s.ports) > 1,
				HealthCheckNodePort: s.healthPort,
				Settings:            s.settings,
				WithoutSlots:        e.granted == withoutSlots,
			}
			if s.settings.SourceRangesForNodePorts && f.closed {
				p.NodePort = 0
			}
			p.ExternalLocal = s.externalLocal && p.External()
			p.RangesForNodePort = s.settings.SourceRangesForNodePorts && len(f.ranges) > 0 && p.NodePort != 0
			if len(f.ranges) > 0 && len(f.loadBalancers) > 0 || p.RangesForNodePort {
				p.HasSourceRanges, p.Sources = true, ranges
			}
			at := i*len(s.fronts) + j // endpoints change far more often than the rest, of maybe 10,000 ports at once
			ports[at] = &ServicePort{Lists: noLists}
			if at < len(e.out) && p.equal(e.out[at].PortSpec) {
				ports[at].PortSpec = e.out[at].PortSpec
			} else {
				ports[at].PortSpec = new(p)
			}
		}
	}
	return ports
}

// chooseEndpoints chooses the endpoints of the ports in the front with index j. It returns the ready endpoints on this
// node, see ServicePort.LocalReady.
func (t *Tracker) chooseEndpoints(e *entry, j int, ports []*ServicePort) (here []netip.Addr) {
	s := e.service
	if len(e.groups) == j {
		e.groups = append(e.groups, t.portGroups(e, s.fronts[j].family))
	}
	apart := 0
	for _, g := range e.groups[j] {
		all := t.candidates(e, &g, j)
		var chosen []choice
		shared := len(g.ports) > 1 && len(g.ports)*len(all) >= jointFrom
		for n, i := range g.ports {
			p := ports[i*len(s.fronts)+j]
			silent := e.silentAt(p.ID, &g, n)
			if shared && apart+len(all) > mostApart {
				silent = nil
			}
			at := slices.IndexFunc(chosen, func(c choice) bool { return c.port.choosesAs(p) })
			switch {
			case len(silent) > 0:
				p.choose(all)
				p.leaveOut(silent, all)
				if shared {
					apart += len(all)
				}
			case at >= 0:
				p.Lists, p.HasEndpoints = chosen[at].lists, chosen[at].port.HasEndpoints
			default:
				p.choose(all)
				for _, c := range chosen { // what is equal is shared from the start, as it is after a change: see reuse
					if (c.port.ID.Protocol == UDP) == (p.ID.Protocol == UDP) && c.lists.equal(p.Lists) {
						p.Lists = c.lists
					}
				}
				chosen = append(chosen, choice{p, p.Lists})
			}
			switch {
			case !p.hasEndpoints():
			case !g.uniform():
				p.Lists = p.Lists.numbered(g.numbersOf(n))
			default:
				p.TargetPort = g.numbersOf(n)[0]
			}
		}
		for n := range all {
			if s.healthPort != 0 && all[n].is.has(ready|onNode|weighted) {
				here = append(here, all[n].at.Addr())
			}
		}
	}
	return here
}

// A choice is the lists, with places, that a port and those that choose as it does get.
type choice struct {
	port  *ServicePort
	lists *Lists
}

// sources returns who may reach the load-balancer IPs of f, which has source ranges. A node within
// the ranges may hold a load-balancer IP as an address of its own and use it as the source; then
// sources includes these IPs.
func sources(f *front, node []netip.Addr) []netip.Prefix {
	inside := func(addr netip.Addr) bool { return Contain(f.ranges, addr) }
	if !slices.ContainsFunc(node, inside) {
		return f.ranges
	}
	excused := slices.Clone(f.ranges)
	for _, ip := range f.loadBalancers {
		excused = append(excused, netip.PrefixFrom(ip, ip.BitLen()))
	}
	return mergePrefixes(excused)
}
