package tracker

import (
	"net/netip"
	"slices"
)

// A selection is which endpoints of a Service port are used on this node, and for what. See
// the fields of ServicePort of the same names.
type selection struct {
	cluster, local, onNode, serving []netip.AddrPort
	any                             bool
}

// A test decides whether an endpoint belongs to a list.
type test func(*candidate) bool

func never(*candidate) bool { return false }

// all returns the test that the endpoint has all of want.
func (want trait) all(c *candidate) bool { return c.is.has(want) }

// selectEndpoints makes the lists of one port from all its endpoints, for a node in zone, which
// may be empty. Lists that no traffic policy asks for are nil. all must be sorted.
func selectEndpoints(all []candidate, zone string, wantCluster, wantLocal bool) selection {
	inCluster, inLocal := test(never), test(never)
	if wantCluster {
		inCluster = clusterTest(all, zone)
	}
	if wantLocal {
		inLocal = localTest(all)
	}
	s := selection{
		cluster: pick(all, inCluster),
		local:   pick(all, inLocal),
		onNode:  pick(all, func(c *candidate) bool { return c.is.has(onNode) && (inCluster(c) || inLocal(c)) }),
		serving: pick(all, func(c *candidate) bool { return c.is&(serving|ready) != 0 }),
		any:     some(all, ready.all) || some(all, draining.all),
	}
	s.share()
	if wantLocal && s.local == nil {
		s.local = []netip.AddrPort{}
	}
	return s
}

// clusterTest decides the cluster-wide list: ready endpoints as topology allows or, without
// any, draining ones wherever they are.
func clusterTest(all []candidate, zone string) test {
	forZone := func(c *candidate) bool { return c.is.has(ready) && c.forZone(zone) }
	switch {
	case !some(all, ready.all):
		return draining.all
	case everyReady(all, nodeHint) && some(all, (ready|forNode).all):
		return (ready | forNode).all
	case zone != "" && everyReady(all, zoneHint) && some(all, forZone):
		return forZone
	}
	return ready.all
}

// localTest decides the list of this node, on which topology has no say: its ready
// endpoints or, without any, its draining ones.
func localTest(all []candidate) test {
	if some(all, (ready | onNode).all) {
		return (ready | onNode).all
	}
	return (draining | onNode).all
}

// everyReady reports whether all ready endpoints have hint: topology is ignored unless the
// control plane has planned for each of them.
func everyReady(all []candidate, hint trait) bool {
	return !some(all, func(c *candidate) bool { return c.is.has(ready) && !c.is.has(hint) })
}

// some reports whether an endpoint passes t.
func some(all []candidate, t test) bool {
	for i := range all {
		if t(&all[i]) {
			return true
		}
	}
	return false
}

// pick returns the addresses of the endpoints that pass t, nil for none. It counts first:
// these lists are most of what the tracker holds.
func pick(all []candidate, t test) []netip.AddrPort {
	n := 0
	for i := range all {
		if t(&all[i]) {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	list := make([]netip.AddrPort, 0, n)
	for i := range all {
		if t(&all[i]) {
			list = append(list, all[i].at)
		}
	}
	return list
}

// share makes equal lists use the same memory.
func (s *selection) share() {
	lists := [...]*[]netip.AddrPort{&s.cluster, &s.serving, &s.local, &s.onNode}
	for i, list := range lists {
		for _, earlier := range lists[:i] {
			if slices.Equal(*earlier, *list) {
				*list = *earlier
				break
			}
		}
	}
}

// countLocalReady returns the number of distinct addresses of ready endpoints on this node
// that parts have for any of ports in family.
func countLocalReady(parts []*slice, ports []port, family Family) int {
	var all []candidate
	var addrs []netip.Addr
	for i := range ports {
		all = appendCandidates(all[:0], parts, &ports[i], family)
		for j := range all {
			if all[j].is.has(ready | onNode) {
				addrs = append(addrs, all[j].addr)
			}
		}
	}
	return len(distinct(addrs))
}
