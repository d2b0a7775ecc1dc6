package sync

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// crowd makes n connection tracking entries that no Service has to do with.
func crowd(b *testing.B, n int) {
	if err := lab.AddSink("sink"); err != nil {
		b.Fatal(err)
	}
	lab.Run(b, "", "ip", "address", "add", "172.16.0.1/12", "dev", "sink")
	lab.Sysctl(b, "net/netfilter/nf_conntrack_udp_timeout", "3600")
	conn, err := net.ListenPacket("udp4", "172.16.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	for i := range n {
		to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{172, 17, byte(i >> 8), byte(i)}), uint16(1000+i>>16))
		if _, err := conn.WriteTo(nil, net.UDPAddrFromAddrPort(to)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkNeighbour is the time until the kernel has a change of one Service port while an
// endpoint of another one, of UDP, moves 30 times a second.
func BenchmarkNeighbour(b *testing.B) {
	for _, flows := range []int{0, 200_000} {
		b.Run(fmt.Sprintf("flows=%d", flows), func(b *testing.B) { neighbour(b, flows) })
	}
}

func neighbour(b *testing.B, flows int) {
	lab.New(b)
	k := lab.Open(b, kernel.Open)
	source, reports := &feed{deltas: []tracker.Delta{manyServices(1000, 3)}}, make(chan Report, 1)
	var syncs, busy atomic.Int64
	loop := New(source, services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14,
		AffinitySize: 1024}), k, Options{
		Log: zap.NewNop(), MinInterval: time.Millisecond,
		Committed: func(r Report) {
			syncs.Add(1)
			busy.Add(int64(time.Since(r.Taken)))
			if r.Full || slices.ContainsFunc(r.Delta.Changed, func(p *tracker.ServicePort) bool { return p.ID == quiet(0).ID }) {
				reports <- r
			}
		},
	})
	loop.CleanFlows(conntrack.NewReconciler(lab.Open(b, conntrack.Open)))
	runLoop(b, loop)
	<-reports
	crowd(b, flows)
	syncs.Store(0)
	busy.Store(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(time.Second / 30):
			}
			source.set(flapping(n))
			loop.options.Queue.Notify()
		}
	}()
	var took []time.Duration
	for n := 0; b.Loop(); n++ {
		time.Sleep(20*time.Millisecond + time.Duration(n*7%33)*time.Millisecond)
		began := time.Now()
		source.set(quiet(n))
		loop.options.Queue.Notify()
		r := <-reports
		took = append(took, r.Taken.Add(r.Compile+r.Commit).Sub(began))
	}
	close(stop)
	<-stopped
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*9/10].Microseconds())/1000, "p90-ms")
	b.ReportMetric(float64(busy.Load())/float64(syncs.Load())/1e6, "ms/sync")
}

// quiet is the neighbour, flapping the Service port of UDP; both with the endpoint number n.
func quiet(n int) *tracker.ServicePort { return movedTo(tracker.TCP, 1, n) }

func flapping(n int) *tracker.ServicePort { return movedTo(tracker.UDP, 2, n) }

func movedTo(protocol tracker.Protocol, number byte, n int) *tracker.ServicePort {
	p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID: tracker.PortID{Namespace: "ns", Service: fmt.Sprintf("moving-%d", number), Protocol: protocol,
			Family: tracker.IPv4},
		Port:      53,
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, 250, number}),
	}}
	list := []netip.AddrPort{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, number, byte(n)}), 5353)}
	p.HasEndpoints, p.Lists = true, &tracker.Lists{Cluster: list, Serving: list}
	return p
}
