package sync

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// gated cleans up when it is let.
type gated struct {
	flows
	gate chan struct{}
}

func (g *gated) Clean(ctx context.Context, changes []tracker.FlowChange,
	desired conntrack.Desired) (conntrack.Result, error) {
	<-g.gate
	return g.flows.Clean(ctx, changes, desired)
}

// TestFlowsOfDepartedEndpoints sends datagrams through a Service with two endpoints. One that
// goes and is back before the clean-up keeps its flows; one that stays away loses them, and
// the other endpoint loses none.
func TestFlowsOfDepartedEndpoints(t *testing.T) {
	lab.New(t)
	lab.Run(t, "", "ip", "address", "add", "192.0.2.1", "dev", "lo")
	lab.Run(t, "", "ip", "route", "add", "10.96.0.0/16", "dev", "lo")
	lab.Run(t, "", "ip", "route", "add", "local", "10.244.0.0/24", "dev", "lo")
	k, table := lab.Open(t, kernel.Open), lab.Open(t, conntrack.Open)
	f, g := new(feed), &gated{gate: make(chan struct{})}
	g.flows = conntrack.NewReconciler(lab.Open(t, conntrack.Open))
	reports, cleaned := make(chan Report, 8), make(chan FlowReport, 8)
	l := New(f, services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, AffinitySize: 16}), k, Options{
		Log: zap.NewNop(), Committed: func(r Report) { reports <- r }, Cleaned: func(r FlowReport) { cleaned <- r },
	})
	l.CleanFlows(g)
	change := func(p *tracker.ServicePort) {
		f.set(p)
		l.options.Queue.Notify()
		<-reports
	}
	f.set(udp("dns", 1, 1, 2))
	runLoop(t, l)
	<-reports
	<-cleaned
	held := func() map[netip.AddrPort]int {
		t.Helper()
		list, err := table.Flows(t.Context(), conntrack.Filter{Family: tracker.IPv4, Protocol: tracker.UDP},
			(*conntrack.Flow).Translated)
		if err != nil {
			t.Fatal(err)
		}
		n := make(map[netip.AddrPort]int)
		for i := range list {
			n[list[i].Endpoint()]++
		}
		return n
	}
	first, second := at8080(1)[0], at8080(2)[0]
	for range 64 { // by chance to the one or the other
		conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.96.0.1:80")))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
	}
	before := held()
	if before[first] == 0 || before[second] == 0 || before[first]+before[second] != 64 {
		t.Fatalf("flows %v, want 64 to both endpoints", before)
	}
	change(udp("dns", 1, 2))
	change(udp("dns", 1, 1, 2))
	g.gate <- struct{}{}
	if report := <-cleaned; report.Err != nil || report.Deleted[tracker.IPv4] != 0 {
		t.Errorf("with the endpoint back: %+v, want none deleted", report)
	}
	change(udp("dns", 1, 2))
	if now := held(); now[first] != before[first] {
		t.Errorf("%d of %d flows before the clean-up", now[first], before[first])
	}
	g.gate <- struct{}{}
	if report := <-cleaned; report.Err != nil || report.Deleted[tracker.IPv4] != before[first] {
		t.Errorf("without the endpoint: %+v, want %d deleted", report, before[first])
	}
	if now := held(); now[first] != 0 || now[second] != before[second] {
		t.Errorf("flows %v are left of %v", now, before)
	}
}
