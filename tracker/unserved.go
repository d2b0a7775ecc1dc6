package tracker

import (
	"maps"
	"net/netip"
	"slices"
)

// An UnservedService is one that Config.Quota leaves out.
type UnservedService struct {
	*OverQuota
	Addresses []netip.Addr // of the Service: cluster IPs, load-balancer IPs and external IPs
	NodePorts []uint16
}

// Unserved lists Services that Config.Quota leaves out, at most limit of them, by namespace and age.
func (t *Tracker) Unserved(limit int) (list []UnservedService) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.unserved == 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(t.namespaces)) {
		n := t.namespaces[name]
		if n.unserved == 0 {
			continue
		}
		for _, e := range n.byAge {
			if e.granted != nothing {
				continue
			}
			if len(list) == limit {
				return list
			}
			list = append(list, e.unserved())
		}
	}
	return list
}

// unserved describes a Service that the quota leaves out.
func (e *entry) unserved() UnservedService {
	u := UnservedService{OverQuota: e.over}
	for i := range e.service.fronts {
		f := &e.service.fronts[i]
		u.Addresses = slices.Concat(u.Addresses, []netip.Addr{f.clusterIP}, f.loadBalancers, f.externalIPs)
	}
	for _, p := range e.service.ports {
		if p.nodePort != 0 {
			u.NodePorts = append(u.NodePorts, p.nodePort)
		}
	}
	return u
}
