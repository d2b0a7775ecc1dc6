package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/tracker"
)

func TestFilters(t *testing.T) {
	dns, dns6 := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:96::10")
	gone := endpoints("10.244.9.9:5353")
	tests := []struct {
		name    string
		changes []tracker.FlowChange
		want    []Filter
	}{{
		name: "nothing",
	}, {
		name:    "endpoint of UDP removed",
		changes: []tracker.FlowChange{{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: gone}},
		want:    []Filter{{Family: tracker.IPv4, Protocol: tracker.UDP, Destination: dns, Port: 53}},
	}, {
		name:    "the same in IPv6, where the kernel cannot compare addresses",
		changes: []tracker.FlowChange{{Frontend: at(tracker.UDP, "[fd00:96::10]:53"), Removed: gone}},
		want:    []Filter{{Family: tracker.IPv6, Protocol: tracker.UDP, Port: 53}},
	}, {
		name:    "endpoint of TCP removed: nothing to do",
		changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "10.96.0.10:53"), Removed: gone}},
	}, {
		name: "with resets: the endpoint's address, once for all its frontends",
		changes: []tracker.FlowChange{
			{Frontend: at(tracker.TCP, "10.96.0.40:443"), Removed: gone},
			{Frontend: at(tracker.TCP, "0.0.0.0:30443"), Removed: gone},
		},
		want: []Filter{{Family: tracker.IPv4, Protocol: tracker.TCP, Endpoint: gone[0], Translated: true}},
	}, {
		name:    "resets asked for: all connections of the frontend",
		changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "10.96.0.40:443"), Reset: true}},
		want: []Filter{{
			Family: tracker.IPv4, Protocol: tracker.TCP, Port: 443, Translated: true,
			Destination: netip.MustParseAddr("10.96.0.40"),
		}},
	}, {
		name:    "cluster IP appeared",
		changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "10.96.0.10:53"), Appeared: true}},
		want:    []Filter{{Family: tracker.IPv4, Destination: dns, Unanswered: true}},
	}, {
		name: "both protocols of a cluster IP appeared: one request for the address",
		changes: []tracker.FlowChange{
			{Frontend: at(tracker.TCP, "10.96.0.10:53"), Appeared: true},
			{Frontend: at(tracker.UDP, "10.96.0.10:53"), Appeared: true},
		},
		want: []Filter{{Family: tracker.IPv4, Destination: dns}},
	}, {
		name:    "external IP appeared: no other port of it is ours",
		changes: []tracker.FlowChange{{Frontend: at(tracker.TCP, "203.0.113.5:443"), Appeared: true}},
		want: []Filter{{
			Family: tracker.IPv4, Protocol: tracker.TCP, Port: 443, Unanswered: true,
			Destination: netip.MustParseAddr("203.0.113.5"),
		}},
	}, {
		name: "node ports: one request for all addresses",
		changes: []tracker.FlowChange{
			{Frontend: tracker.NodePort(tracker.IPv4, tracker.UDP, 30053), Gone: true, Removed: gone},
			{Frontend: tracker.NodePort(tracker.IPv6, tracker.TCP, 30080), Appeared: true},
		},
		want: []Filter{
			{Family: tracker.IPv4, Protocol: tracker.UDP, Port: 30053},
			{Family: tracker.IPv6, Protocol: tracker.TCP, Port: 30080, Unanswered: true},
		},
	}, {
		name: "UDP cluster IP appeared in IPv6",
		changes: []tracker.FlowChange{
			{Frontend: tracker.Frontend{Address: dns6, Protocol: tracker.UDP, Port: 53}, Appeared: true},
		},
		want: []Filter{{Family: tracker.IPv6, Protocol: tracker.UDP, Port: 53}},
	}}
	for _, tt := range tests {
		if got := newChangeSet(tt.changes, desired).filters(); !slices.Equal(got, tt.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.name, got, tt.want)
		}
	}
}

// TestFiltersOfManyChanges: the number of requests does not grow with the changes. Frontends
// with few ports are found by port, others by the coarse filters.
func TestFiltersOfManyChanges(t *testing.T) {
	for _, tt := range []struct{ n, ports, want int }{
		{maxRequests, 1, maxRequests},
		{maxRequests + 1, 1, 1},
		{10_000, 1, 1},
		{10_000, maxRequests, maxRequests},
		{maxRequests + 1, maxRequests + 1, len(coarse(tracker.IPv4, false))},
		{10_000, 10_000, len(coarse(tracker.IPv4, false))},
	} {
		var changes []tracker.FlowChange
		for i := range tt.n {
			address := fmt.Sprintf("10.96.%d.%d:%d", i/256, i%256, 53+i%tt.ports)
			changes = append(changes, tracker.FlowChange{Frontend: at(tracker.UDP, address), Gone: true})
		}
		filters := newChangeSet(changes, desired).filters()
		if got := len(filters); got != tt.want {
			t.Errorf("%d frontends with %d ports: %d requests, want %d", tt.n, tt.ports, got, tt.want)
		}
		for _, change := range changes {
			f := flow(tracker.UDP, client, netip.AddrPortFrom(change.Address, change.Port).String(), "10.244.0.5:53", established)
			if !slices.ContainsFunc(filters, func(filter Filter) bool { return filter.Matches(&f) }) {
				t.Fatalf("%d frontends with %d ports: %v do not select %v", tt.n, tt.ports, filters, f.Original)
			}
		}
	}
}

// TestFiltersOfManyAppearances mixes protocols: what bypasses a cluster IP is found as well.
func TestFiltersOfManyAppearances(t *testing.T) {
	var changes []tracker.FlowChange
	for i := range maxRequests + 1 {
		address := fmt.Sprintf("203.0.113.%d:443", i)
		changes = append(changes, tracker.FlowChange{Frontend: at(tracker.TCP, address), Appeared: true})
	}
	changes = append(changes, tracker.FlowChange{Frontend: at(tracker.TCP, "10.96.0.10:53"), Appeared: true})
	want := []Filter{
		{Family: tracker.IPv4, Unanswered: true},
		{Family: tracker.IPv4, Protocol: tracker.TCP, Port: 443, Unanswered: true},
	}
	if got := newChangeSet(changes, desired).filters(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	changes = append(changes, tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.10:53"), Appeared: true})
	if got := newChangeSet(changes, desired).filters(); !slices.Equal(got, coarse(tracker.IPv4, false)) {
		t.Errorf("all of an address: %v, want %v", got, coarse(tracker.IPv4, false))
	}
}
