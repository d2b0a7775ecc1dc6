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

// TestFiltersOfManyChanges: the number of requests does not grow with the changes.
func TestFiltersOfManyChanges(t *testing.T) {
	for _, n := range []int{maxRequests, maxRequests + 1, 10_000} {
		var changes []tracker.FlowChange
		for i := range n {
			address := fmt.Sprintf("10.96.%d.%d:53", i/256, i%256)
			changes = append(changes, tracker.FlowChange{Frontend: at(tracker.UDP, address), Gone: true})
		}
		want := n
		if n > maxRequests {
			want = len(coarse(tracker.IPv4))
		}
		if got := len(newChangeSet(changes, desired).filters()); got != want {
			t.Errorf("%d frontends: %d requests, want %d", n, got, want)
		}
	}
}
