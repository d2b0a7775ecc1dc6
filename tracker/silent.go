package tracker

import (
	"cmp"
	"net/netip"
	"slices"
)

// A LeftOut is an endpoint that gets no new connections although Kubernetes calls it ready, because it does not answer.
type LeftOut struct {
	Endpoint netip.AddrPort
	Weight   uint16 // 0 if the endpoints of its lists have equal weights
	// Cluster and Local say which lists would have it.
	Cluster, Local bool
}

// mostApart bounds the endpoints of ports that share them otherwise: a port that leaves out an endpoint has lists of
// its own. Ports that exceed it in all do not leave out any.
const mostApart = CommitElements

// LeaveOut says which endpoints of a Service port do not answer: new connections go to the others, existing ones stay.
// They are distinct, and replace what an earlier call said of the port. The earliest in the list count first: of each
// list of endpoints at most half are left out, and never the last one. An endpoint counts until Kubernetes changes its
// conditions, see Silent. LeaveOut ignores a port whose Service is not known or does not ask for it.
func (t *Tracker) LeaveOut(id PortID, endpoints []netip.AddrPort) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[objectName{id.Namespace, id.Service}]
	if e == nil || e.service == nil || !e.service.settings.Eject || slices.Equal(e.silent[id], endpoints) {
		return
	}
	if e.silent == nil {
		e.silent = make(map[PortID][]netip.AddrPort)
	}
	e.silent[id] = slices.Clone(endpoints)
	if len(endpoints) == 0 {
		delete(e.silent, id)
	}
	t.touch(e)
}

// Silent returns the endpoints that LeaveOut has said of a Service port, without those whose conditions Kubernetes has
// changed since.
func (t *Tracker) Silent(id PortID) []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.entries[objectName{id.Namespace, id.Service}]; e != nil {
		return slices.Clone(e.silent[id])
	}
	return nil
}

// trustAgain forgets that endpoints do not answer whose conditions differ between two values of a slice; nil is a slice
// without endpoints.
func (e *entry) trustAgain(before, now *slice) {
	for id, endpoints := range e.silent {
		endpoints = slices.DeleteFunc(slices.Clone(endpoints), func(ep netip.AddrPort) bool {
			const conditions = ready | serving | terminating
			a, was := before.find(id, ep)
			b, is := now.find(id, ep)
			return was != is || a.is&conditions != b.is&conditions
		})
		if e.silent[id] = endpoints; len(endpoints) == 0 {
			delete(e.silent, id)
		}
	}
}

// find returns an endpoint of a Service port.
func (s *slice) find(id PortID, ep netip.AddrPort) (found endpoint, ok bool) {
	if s == nil {
		return found, false
	}
	_, serves := slices.BinarySearchFunc(s.ports, ep.Port(), func(p slicePort, number uint16) int {
		return cmp.Or(p.compare(id.Port, id.Protocol), cmp.Compare(p.number, number))
	})
	if !serves {
		return found, false
	}
	i, ok := slices.BinarySearchFunc(s.endpoints, ep.Addr(), func(e endpoint, addr netip.Addr) int {
		return e.addr.Compare(addr)
	})
	if ok {
		found = s.endpoints[i]
	}
	return found, ok
}

// silentAt returns which endpoints of a port do not answer, with places as the candidates of a group have them; n is
// the index of the port in the group.
func (e *entry) silentAt(id PortID, g *portGroup, n int) (list []netip.AddrPort) {
	for _, ep := range e.silent[id] {
		if place, found := slices.BinarySearch(g.numbersOf(n), ep.Port()); found {
			list = append(list, netip.AddrPortFrom(ep.Addr(), uint16(place)))
		}
	}
	return list
}

// leaveOut takes silent endpoints out of the lists that choose has made from all endpoints.
func (p *ServicePort) leaveOut(silent []netip.AddrPort, all []candidate) {
	weight := func(ep netip.AddrPort) uint16 {
		i, found := slices.BinarySearchFunc(all, ep, func(c candidate, ep netip.AddrPort) int { return c.at.Compare(ep) })
		if !found {
			return 0
		}
		return all[i].weight
	}
	out := make(map[netip.AddrPort]LeftOut)
	leave := func(list *[]netip.AddrPort, weights *[]uint16, mark func(*LeftOut)) {
		gone := make(map[netip.AddrPort]bool)
		for _, ep := range chooseSilent(*list, silent) {
			left := out[ep]
			if left.Endpoint = ep; *weights != nil {
				left.Weight = weight(ep)
			}
			mark(&left)
			out[ep], gone[ep] = left, true
		}
		if len(gone) == 0 {
			return
		}
		var kept []netip.AddrPort
		var keptWeights []uint16
		for i, ep := range *list {
			if gone[ep] {
				continue
			}
			kept = append(kept, ep)
			if *weights != nil {
				keptWeights = append(keptWeights, (*weights)[i])
			}
		}
		*list, *weights = kept, keptWeights
	}
	leave(&p.Cluster, &p.ClusterWeights, func(l *LeftOut) { l.Cluster = true })
	leave(&p.Local, &p.LocalWeights, func(l *LeftOut) { l.Local = true })
	p.OnNode = slices.DeleteFunc(slices.Clone(p.OnNode), func(ep netip.AddrPort) bool {
		_, cluster := slices.BinarySearchFunc(p.Cluster, ep, netip.AddrPort.Compare)
		_, local := slices.BinarySearchFunc(p.Local, ep, netip.AddrPort.Compare)
		return !cluster && !local
	})
	for _, left := range out {
		p.LeftOut = append(p.LeftOut, left)
	}
	slices.SortFunc(p.LeftOut, func(a, b LeftOut) int { return a.Endpoint.Compare(b.Endpoint) })
}

// chooseSilent returns which endpoints of a list are left out: the first of silent, up to half of the list.
func chooseSilent(list, silent []netip.AddrPort) (gone []netip.AddrPort) {
	for _, ep := range silent {
		if len(gone) == len(list)/2 {
			break
		}
		if _, found := slices.BinarySearchFunc(list, ep, netip.AddrPort.Compare); found {
			gone = append(gone, ep)
		}
	}
	return gone
}

// Silent lists the endpoints of p.LeftOut with their ports.
func (p *ServicePort) Silent() []LeftOut {
	if p.TargetPort == 0 || p.LeftOut == nil {
		return p.LeftOut
	}
	all := slices.Clone(p.LeftOut)
	for i := range all {
		all[i].Endpoint = netip.AddrPortFrom(all[i].Endpoint.Addr(), p.TargetPort)
	}
	return all
}
