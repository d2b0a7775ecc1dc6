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

// selectEndpoints makes the lists of one port from all its endpoints. Lists that no traffic
// policy asks for are nil. all must be sorted.
func selectEndpoints(all []candidate, wantCluster, wantLocal bool) selection {
	c := takeCensus(all)
	inCluster, inLocal := impossible, impossible
	if wantCluster {
		inCluster = c.clusterTraits()
	}
	if wantLocal {
		inLocal = c.localTraits()
	}
	s := selection{any: c.ready.has(ready) || c.draining.has(draining)}
	s.serving = pick(all, nil, serving, ready)
	s.cluster = pick(all, s.serving, inCluster, impossible)
	s.local = pick(all, s.serving, inLocal, impossible)
	s.onNode = pick(all, s.serving, onNode|inCluster, onNode|inLocal)
	s.share()
	if wantLocal && s.local == nil {
		s.local = []netip.AddrPort{}
	}
	return s
}

// A census says which traits there are among candidates.
type census struct {
	ready    trait // those of a ready one, of any
	allReady trait // those that all ready ones have
	draining trait // those of a draining one, of any
}

func takeCensus(all []candidate) census {
	c := census{allReady: ^trait(0)}
	for i := range all {
		is := all[i].is
		if is.has(ready) {
			c.ready |= is
			c.allReady &= is
		}
		if is.has(draining) {
			c.draining |= is
		}
	}
	return c
}

// clusterTraits are what the endpoints of the cluster-wide list have: they are ready and as
// topology allows or, without any ready one, draining wherever they are. Topology is ignored
// unless the control plane has planned for each of the ready ones.
func (c *census) clusterTraits() trait {
	switch {
	case !c.ready.has(ready):
		return draining
	case c.allReady.has(nodeHint) && c.ready.has(forNode):
		return ready | forNode
	case c.allReady.has(zoneHint) && c.ready.has(inZone):
		return ready | inZone
	}
	return ready
}

// localTraits are what the endpoints of this node's list have, on which topology has no say:
// they are ready or, without any, draining.
func (c *census) localTraits() trait {
	if c.ready.has(onNode) {
		return ready | onNode
	}
	return draining | onNode
}

// pick returns the addresses of the candidates that have all of one or all of another, nil
// for none. It counts first, as these lists are most of what the tracker holds; if there are as
// many as in whole, of which they must be some, it is whole.
func pick(all []candidate, whole []netip.AddrPort, one, another trait) []netip.AddrPort {
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
