package main

import (
	"net/netip"
	"testing"
)

func TestServedBy(t *testing.T) {
	for _, f := range families {
		for addr, want := range map[netip.Addr]string{
			f.podOf(0, 1):                           "service-0",
			f.podOf(7, perService-1):                "service-7",
			f.podOf(maxServices-1, perService-1):    serviceName(maxServices - 1),
			f.serverOf(0, 0):                        "steady",
			f.serverOf(rolling, servers-1):          "rolling",
			f.podOf(maxServices+len(stays), 1):      "",
			f.node:                                  "",
			netip.MustParseAddr("203.0.113.1"):      "",
			netip.MustParseAddr("2001:db8:ffff::1"): "",
		} {
			if got := servedBy(addr); got != want {
				t.Errorf("%s: got %q, want %q", addr, got, want)
			}
		}
		for _, addr := range []netip.Addr{f.podOf(maxServices-1, perService-1), f.serverOf(rolling, servers-1)} {
			if !f.pods.Contains(addr) {
				t.Errorf("%s is outside of %s", addr, f.pods)
			}
		}
		if last := f.clusterIP(maxServices - 1); !f.services.Contains(last) {
			t.Errorf("%s is outside of %s", last, f.services)
		}
	}
}
