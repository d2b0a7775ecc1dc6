package sync

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestViewNamesOwners: of two Services that claim an external IP, the View names the one that the ruleset serves, and
// the loop says what a Service loses.
func TestViewNamesOwners(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		external := netip.MustParseAddr("203.0.113.7")
		at := tracker.Frontend{Address: external, Protocol: tracker.TCP, Port: 80}
		claim := func(name string, number byte, addrs ...netip.Addr) *tracker.ServicePort {
			p := portWith(name, number, number)
			p.ExternalIPs, p.Created = addrs, time.Unix(int64(number), 0)
			return p
		}
		var lost []string
		view := NewView()
		b := start(t, new(table), Options{View: view, Lost: func(f tracker.Frontend, port tracker.PortID) {
			lost = append(lost, port.Service+" "+f.Address.String())
		}}, claim("younger", 2, external))
		for _, step := range []struct {
			older *tracker.ServicePort
			owner string
			lost  []string
		}{
			{claim("older", 1), "younger", nil},
			{claim("older", 1, external), "older", []string{"younger 203.0.113.7"}},
			{claim("older", 1), "younger", []string{"older 203.0.113.7"}},
		} {
			lost = nil
			b.change(step.older)
			if owner, ok := view.Owner(at); !ok || owner.Service != step.owner || !slices.Equal(lost, step.lost) {
				t.Errorf("owner %v, lost %v; want %s, %v", owner, lost, step.owner, step.lost)
			}
		}
		b.change(claim("younger", 2))
		if owner, ok := view.Owner(at); ok {
			t.Errorf("%v still has the frontend", owner)
		}
	})
}
