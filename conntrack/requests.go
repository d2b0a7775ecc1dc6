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
// most of all flows, leave the kernel only if resets says that some of them may be stale, and if they
// are translated.
func coarse(family tracker.Family, resets bool) []Filter {
	filters := []Filter{
		{Family: family, Protocol: tracker.UDP},
		{Family: family, Unanswered: true},
	}
	if resets {
		filters = append(filters,
			Filter{Family: family, Protocol: tracker.TCP, Translated: true},
			Filter{Family: family, Protocol: tracker.SCTP, Translated: true})
	}
	return filters
}

// filters returns what must be read to find every flow that the changes made stale.
func (s *changeSet) filters() []Filter {
	var all []Filter
	for _, family := range tracker.Families {
		requests := s.requests(family)
		if len(requests) > maxRequests {
			requests = byPort(requests, s.resets())
		}
		if len(requests) > maxRequests {
			requests = coarse(family, s.resets())
		}
		all = append(all, requests...)
	}
	return all
}

// byPort returns filters that select at least what the given ones of one family do, by port
// alone: one serves all frontends that have it, such as DNS on many addresses.
func byPort(filters []Filter, resets bool) []Filter {
	var all []Filter
	for _, filter := range filters {
		if filter.Protocol == 0 && !filter.Unanswered { // it would select everything
			return coarse(filter.Family, resets)
		}
		filter.Destination = netip.Addr{}
		all = append(all, filter)
	}
	slices.SortFunc(all, Filter.compare)
	return slices.Compact(all)
}

// resets reports whether a change may have made connections of TCP and SCTP stale.
func (s *changeSet) resets() bool {
	for _, change := range s.changes {
		if change.Protocol != tracker.UDP && s.desired.Resets(change.Frontend) {
			return true
		}
	}
	return false
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
	if frontend.Protocol != tracker.UDP && desired.Resets(frontend) {
		r.addReset(change, filter)
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

// addReset adds the filters that find the connections of TCP or SCTP to endpoints that do not serve any
// more; filter selects all of the frontend. A busy Service has many connections, and few endpoints leave at a
// time: their addresses select less than the frontend does, and the same for all its frontends.
func (r *requests) addReset(change *tracker.FlowChange, filter Filter) {
	filter.Translated = true
	switch {
	case change.Reset:
		r.put(filter)
	case filter.Family == tracker.IPv4 && len(change.Removed) <= maxEndpoints:
		for _, endpoint := range change.Removed {
			r.ports[Filter{Family: filter.Family, Protocol: filter.Protocol, Endpoint: endpoint, Translated: true}] = true
		}
	case len(change.Removed) > 0:
		r.put(filter)
	}
}

// maxEndpoints is for how many departed endpoints of a frontend a filter each is used.
const maxEndpoints = 2

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
		f.Endpoint.Compare(g.Endpoint),
	)
}
