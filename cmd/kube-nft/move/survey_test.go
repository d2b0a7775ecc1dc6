package move

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestFallback: what only the IPVS mode serves in spite of a traffic policy is named, within bounds.
func TestFallback(t *testing.T) {
	delta := tracker.Delta{}
	add := func(name string, edit func(*tracker.ServicePort)) {
		for _, port := range []string{"a", "b"} { // a Service is named once
			id := tracker.PortID{Namespace: "shop", Service: name, Port: port, Protocol: tracker.TCP, Family: tracker.IPv4}
			p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: id}, Lists: new(tracker.Lists), HasEndpoints: true}
			edit(p)
			delta.Changed = append(delta.Changed, p)
		}
	}
	here := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080")}
	add("cluster", func(*tracker.ServicePort) {})
	add("outside", func(p *tracker.ServicePort) { p.ExternalLocal = true })
	add("inside", func(p *tracker.ServicePort) { p.InternalLocal = true })
	add("here", func(p *tracker.ServicePort) { p.ExternalLocal, p.Local = true, here })
	add("nobody", func(p *tracker.ServicePort) { p.ExternalLocal, p.HasEndpoints = true, false })
	add("annotated", func(p *tracker.ServicePort) { p.ExternalLocal, p.Settings.LocalFallback = true, true })
	ipvs := &legacy.Inventory{Parts: []legacy.Part{{Backend: legacy.IPVS, Device: legacy.Device}}}
	check, some := fallback(ipvs, &delta)
	if want := "shop/inside (internal), shop/outside (external)"; !some || check.Level != migrate.Warning ||
		check.Found != want {
		t.Errorf("%v, %+v, want %s", some, check, want)
	}
	if !strings.Contains(check.Do, "kube-nft.io/local-fallback: cluster") {
		t.Errorf("%q names no annotation", check.Do)
	}
	if check, some := fallback(&legacy.Inventory{
		Parts: []legacy.Part{{Backend: legacy.Xtables, Chains: []string{"KUBE-SERVICES"}}},
	}, &delta); some {
		t.Errorf("in another mode: %+v", check)
	}
	for i := range 100 {
		add(fmt.Sprintf("more-%d", i), func(p *tracker.ServicePort) { p.ExternalLocal = true })
	}
	if check, _ := fallback(ipvs, &delta); !strings.HasSuffix(check.Found, ", and 92 more") {
		t.Errorf("of many: %s", check.Found)
	}
}
