package services

import (
	"net/netip"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestAnswersInKernel: wanted tables and what the kernel reads back give the same answers.
func TestAnswersInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	ip, here, elsewhere := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("192.0.2.1"),
		netip.MustParseAddr("192.0.2.9")
	endpoints := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080")}
	port := func(number uint16, edit func(*tracker.ServicePort)) *tracker.ServicePort {
		p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
			ID: tracker.PortID{Namespace: "shop", Service: "web", Port: string(rune('a' + number)), Protocol: tracker.TCP,
				Family: tracker.IPv4},
			ClusterIP: ip, Port: number, NodePort: 30000 + number,
		}, HasEndpoints: true,
			Lists: &tracker.Lists{Cluster: endpoints, Serving: endpoints},
		}
		edit(p)
		return p
	}
	ports := []*tracker.ServicePort{
		port(1, func(*tracker.ServicePort) {}),
		port(2, func(p *tracker.ServicePort) { p.HasEndpoints, p.Cluster = false, nil }),
		port(3, func(p *tracker.ServicePort) { p.InternalLocal, p.Cluster = true, nil }),
		port(4, func(p *tracker.ServicePort) { p.ExternalLocal = true }),
	}
	delta := tracker.Delta{Changed: ports}
	for _, tt := range []struct {
		name     string
		all      bool // node ports at all addresses
		at       netip.Addr
		nodePort readback.Answer
		total    int
	}{
		{"at an address of this node", false, here, readback.Served, 6},
		{"at an address of another node", false, elsewhere, readback.NoAddress, 3},
		{"at all addresses", true, netip.Addr{}, readback.Served, 6},
	} {
		config := testConfig()
		config.AllNodePorts = map[nft.Family]bool{nft.IP: tt.all}
		r := NewRuleset(config)
		r.Apply(delta)
		if !tt.all {
			r.SetNodePortAddresses([]netip.Addr{tt.at})
		}
		lab.Run(t, "", "nft", "flush", "ruleset")
		commit(t, k, change.Diff(nil, r.Want()))
		have, _, err := k.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for name, tables := range map[string]nft.Tables{"wanted": r.Want(), "read back": have} {
			a := readback.NewAnswers(tables, []netip.Addr{here})
			for f, want := range map[tracker.Frontend]readback.Answer{
				{Address: ip, Protocol: tracker.TCP, Port: 1}:                   readback.Served,
				{Address: ip, Protocol: tracker.TCP, Port: 2}:                   readback.NoEndpoint,
				{Address: ip, Protocol: tracker.TCP, Port: 3}:                   readback.NotLocal,
				{Address: ip, Protocol: tracker.TCP, Port: 9}:                   readback.NoFrontend,
				{Address: ip, Protocol: tracker.UDP, Port: 1}:                   readback.NoFrontend,
				tracker.NodePort(tracker.IPv4, tracker.TCP, 30001):              tt.nodePort,
				tracker.NodePort(tracker.IPv4, tracker.TCP, 30004):              min(tt.nodePort, readback.NotLocal),
				tracker.NodePort(tracker.IPv4, tracker.TCP, 30009):              readback.NoFrontend,
				tracker.NodePort(tracker.IPv6, tracker.TCP, 30001):              readback.NoFrontend,
				{Address: here, Protocol: tracker.TCP, Port: 30001}:             readback.NoFrontend,
				{Address: netip.MustParseAddr("fd00::1"), Protocol: 6, Port: 1}: readback.NoFrontend,
			} {
				if got := a.Of(f); got != want {
					t.Errorf("%s, %s: %s: answer %d, want %d", tt.name, name, f, got, want)
				}
			}
			if a.Total != tt.total {
				t.Errorf("%s, %s: %d have endpoints, want %d", tt.name, name, a.Total, tt.total)
			}
		}
	}
	if got := readback.NewAnswers(nil, nil); got.Total != 0 ||
		got.Of(tracker.Frontend{Address: ip}) != readback.NoFrontend {
		t.Errorf("without tables: %+v", got)
	}
}
