package main

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
)

func TestLedger(t *testing.T) {
	addr := func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, n}) }
	r := newLedger()
	check := func(when string, wantMay, wantLeft []netip.Addr) {
		t.Helper()
		may, left := r.of("web")
		sorted := func(set map[netip.Addr]bool) []netip.Addr {
			return slices.SortedFunc(maps.Keys(set), netip.Addr.Compare)
		}
		if got := sorted(may); !slices.Equal(got, wantMay) {
			t.Errorf("%s: %v may answer, want %v", when, got, wantMay)
		}
		if got := sorted(left); !slices.Equal(got, wantLeft) {
			t.Errorf("%s: %v have left, want %v", when, got, wantLeft)
		}
	}
	check("before anything", nil, nil)
	r.set("web", "web-0", []netip.Addr{addr(1), addr(2)})
	r.set("web", "web-1", []netip.Addr{addr(2), addr(3)})
	r.set("other", "other-0", []netip.Addr{addr(9)})
	check("two slices", []netip.Addr{addr(1), addr(2), addr(3)}, nil)
	r.set("web", "web-0", nil)
	check("one is gone", []netip.Addr{addr(1), addr(2), addr(3)}, []netip.Addr{addr(1)})
	r.set("web", "web-0", []netip.Addr{addr(1)})
	check("one is back", []netip.Addr{addr(1), addr(2), addr(3)}, []netip.Addr{addr(1)})
	r.set("web", "web-1", nil)
	r.settled()
	check("a calm", []netip.Addr{addr(1)}, nil)
}
