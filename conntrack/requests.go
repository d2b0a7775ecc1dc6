package conntrack

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-nft/kube-nft/tracker"
)

// maxRequests is the largest number of filtered dumps of one family; above it the coarse filters
// cost less. Each dump walks the whole table in the kernel, whatever it selects.
const maxRequests = 8

// coarse returns the filters that together select every flow of family that can be stale: UDP
// flows, and unanswered flows of any protocol. Established connections of TCP and SCTP, usually
// most of all flows, never leave the kernel.
func coarse(family tracker.Family) []Filter {
	return []Filter{
		{Family: family, Protocol: tracker.UDP},
		{Family: family, Unanswered: true},
	}
}

// filters returns what must be read to find every flow that the changes made stale.
func (s *changeSet) filters() []Filter {
	var all []Filter
	for _, family := range tracker.Families {
		requests := s.requests(family)
		if len(requests) > maxRequests {
			requests = byPort(requests)
		}
		if len(requests) > maxRequests {
			requests = coarse(family)
		}
		all = append(all, requests...)
	}
	return all
}

// byPort returns filters that select at least what the given ones of one family do, by port
// alone: one serves all frontends that have it, such as DNS on many addresses.
func byPort(filters []Filter) []Filter {
	var all []Filter
	for _, filter := range filters {
		if filter.Protocol == 0 && !filter.Unanswered { // it would select everything
			return coarse(filter.Family)
		}
		filter.Destination = netip.Addr{}
		all = append(all, filter)
	}
	slices.SortFunc(all, Filter.compare)
	return slices.Compact(all)
}

// requests returns one filter for each affected address of family, and one for each port
// where the address cannot be part of it. They are sorted.
func (s *changeSet) requests(family tracker.Family) []Filter {
	r := requests{addresses: make(map[netip.Addr]Filter), ports: make(map[Filter]bool)}
	for _, change := range s.changes {
		if change.Family() == family {
			r.add(change, s.desired)
		}
	}
	filters := append(slices.Collect(maps.Values(r.addresses)), slices.Collect(maps.Keys(r.ports))...)
	slices.SortFunc(filters, Filter.compare)
	return filters
}

// requests collects filters: at most one for each address, and the filters without an address.
type requests struct {
	addresses map[netip.Addr]Filter
	ports     map[Filter]bool
}

// add adds the filter that finds the stale flows of change, if there can be any.
func (r *requests) add(change *tracker.FlowChange, desired Desired) {
	frontend := change.Frontend
	filter := Filter{
		Family:   frontend.Family(),
		Protocol: frontend.Protocol,
		Port:     frontend.Port,
	}
	if !frontend.NodePort() {
		filter.Destination = frontend.Address
	}
	if frontend.Protocol == tracker.UDP && (change.Appeared || change.Gone || len(change.Removed) > 0) {
		r.put(filter)
	}
	if !change.Appeared {
		return
	}
	filter.Unanswered = true
	if desired.ClusterIP(frontend.Address) { // flows to any of its ports
		filter.Protocol, filter.Port = 0, 0
	}
	if frontend.Protocol != tracker.UDP || filter.Port == 0 {
		r.put(filter)
	}
}

// put adds filter. Where a different filter for the same address exists, one filter for the whole
// address replaces both.
func (r *requests) put(filter Filter) {
	filter = filter.widened()
	if !filter.Destination.IsValid() {
		r.ports[filter] = true
		return
	}
	if have, ok := r.addresses[filter.Destination]; ok && have != filter {
		filter = Filter{Family: filter.Family, Destination: filter.Destination}
	}
	r.addresses[filter.Destination] = filter
}

// compare orders filters by address, protocol and port.
func (f Filter) compare(g Filter) int {
	return cmp.Or(
		f.Destination.Compare(g.Destination),
		cmp.Compare(f.Protocol, g.Protocol),
		cmp.Compare(f.Port, g.Port),
	)
}
