package tracker

import (
	"net/netip"
	"reflect"
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
	first := FlowChange{Frontend: at, Removed: []Served{{List: []netip.AddrPort{b}}}, Gone: true, Appeared: true}
	other := Served{List: []netip.AddrPort{netip.MustParseAddrPort("10.244.0.3:0")}, Port: 53}
	got := first.Then(FlowChange{Frontend: at, Removed: []Served{{List: []netip.AddrPort{a, b}}, other}}, make(Memo))
	want := FlowChange{Frontend: at, Removed: []Served{{List: []netip.AddrPort{a, b}}, other}, Appeared: true}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
	if !slices.Equal(first.Removed[0].List, []netip.AddrPort{b}) {
		t.Errorf("the first change is now %v", first.Removed)
	}
}

// TestServedWithout: ports share what is worked out of their lists.
func TestServedWithout(t *testing.T) {
	var all []netip.AddrPort
	for _, addr := range []string{"10.244.0.1", "10.244.0.2", "10.244.0.3"} {
		all = append(all, netip.AddrPortFrom(netip.MustParseAddr(addr), 0))
	}
	others, middle, memo := []netip.AddrPort{all[0], all[2]}, all[1:2], make(Memo)
	for _, tt := range []struct{ s, o, want Served }{
		{Served{all, 80}, Served{others, 80}, Served{middle, 80}},
		{Served{all, 81}, Served{others, 81}, Served{middle, 81}},
		{Served{others, 80}, Served{all, 80}, Served{nil, 80}},
		{Served{middle, 80}, Served{others, 80}, Served{middle, 80}},
		{Served{all, 80}, Served{all, 81}, Served{all, 80}},
		{Served{all, 80}, Served{}, Served{all, 80}},
		{Served{}, Served{all, 80}, Served{}},
		{Served{all, 80}, Served{all, 80}, Served{}},
	} {
		if got := tt.s.Without(tt.o, memo); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v without %v: %v, want %v", tt.s, tt.o, got, tt.want)
		}
	}
	if len(memo) != 3 {
		t.Errorf("%d lists were worked out, want 3", len(memo))
	}
}
