package tracker

import (
	"net/netip"
	"slices"
	"testing"
)

// TestFrontend spells frontends of each kind, in their order.
func TestFrontend(t *testing.T) {
	sorted := []struct {
		at       Frontend
		text     string
		family   Family
		nodePort bool
	}{
		{NodePort(IPv4, TCP, 30080), "node port 30080/tcp", IPv4, true},
		{NodePort(IPv4, UDP, 30053), "node port 30053/udp", IPv4, true},
		{Frontend{netip.MustParseAddr("10.96.0.10"), TCP, 53}, "10.96.0.10:53/tcp", IPv4, false},
		{Frontend{netip.MustParseAddr("10.96.0.10"), UDP, 52}, "10.96.0.10:52/udp", IPv4, false},
		{Frontend{netip.MustParseAddr("10.96.0.10"), UDP, 53}, "10.96.0.10:53/udp", IPv4, false},
		{NodePort(IPv6, SCTP, 30090), "node port 30090/sctp", IPv6, true},
		{Frontend{netip.MustParseAddr("fd00::a"), UDP, 53}, "[fd00::a]:53/udp", IPv6, false},
	}
	for i, tt := range sorted {
		if tt.at.String() != tt.text || tt.at.Family() != tt.family || tt.at.NodePort() != tt.nodePort {
			t.Errorf("%s: %s, %t, want %s", tt.at, tt.at.Family(), tt.at.NodePort(), tt.text)
		}
		for j, other := range sorted {
			if got := tt.at.Compare(other.at); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%s against %s: %d", tt.at, other.at, got)
			}
		}
	}
}

// TestFlowChangeThen puts two changes of one frontend together.
func TestFlowChangeThen(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.244.0.1:53"), netip.MustParseAddrPort("10.244.0.2:53")
	at := NodePort(IPv4, UDP, 30053)
	first := FlowChange{Frontend: at, Removed: []netip.AddrPort{b}, Gone: true, Appeared: true}
	got := first.Then(FlowChange{Frontend: at, Removed: []netip.AddrPort{a, b}})
	if got.Frontend != at || got.Gone || !got.Appeared || !slices.Equal(got.Removed, []netip.AddrPort{a, b}) {
		t.Errorf("got %+v", got)
	}
	if !slices.Equal(first.Removed, []netip.AddrPort{b}) {
		t.Errorf("the first change is now %v", first.Removed)
	}
}
