package services

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// plainWorld is annotatedWorld as it is without the annotations.
func plainWorld(delta tracker.Delta) tracker.Delta {
	for _, p := range annotatedWorld(delta).Changed {
		p.Settings, p.RangesForNodePort = tracker.Settings{}, false
	}
	return delta
}

// TestAnnotationsFlap takes a Service's annotations on and off: what comes goes again, and one Service's change
// costs the same among few Services and among many.
func TestAnnotationsFlap(t *testing.T) {
	var costs []cost
	for _, services := range []int{10, 1000} {
		r := NewRuleset(testConfig())
		r.Apply(plainWorld(everywhere(cluster(services, 3))))
		before := r.Want().Text()
		r.Committed()
		var worst cost
		for range 20 {
			for _, world := range []func(tracker.Delta) tracker.Delta{annotatedWorld, plainWorld} {
				r.Apply(world(everywhere(cluster(1, 3))))
				batch := r.Changes()
				if c := costOf(t, &batch); c.messages > worst.messages {
					worst = c
				}
				r.Committed()
			}
		}
		if after := r.Want().Text(); after != before {
			t.Errorf("%d Services: something stays:\n%s", services, after)
		}
		costs = append(costs, worst)
	}
	if costs[0].messages != costs[1].messages || costs[0].elements != costs[1].elements {
		t.Errorf("a change costs %+v among few Services, %+v among many", costs[0], costs[1])
	}
}

// pingedPort is a Service port at an external IP whose addresses answer echo requests.
func pingedPort(i int, endpoints bool) *tracker.ServicePort {
	p := clusterPort(i, 2)
	p.ExternalIPs, p.NodePort = []netip.Addr{netip.MustParseAddr("198.51.100.1")}, uint16(30000+i)
	p.Port, p.Settings.Ping, p.HasEndpoints = uint16(80+i), true, endpoints
	if !endpoints {
		p.Cluster, p.Serving = nil, nil
	}
	return p
}

// TestPingSharedAddress: an address of two Services answers as long as one that is served there has an endpoint.
func TestPingSharedAddress(t *testing.T) {
	r := NewRuleset(testConfig())
	plain := r.Want().Text()
	loses := pingedPort(1, true).With(func(p *tracker.PortSpec) { p.Port = 80 })
	for _, step := range []struct {
		ports   []*tracker.ServicePort
		answers []bool // the address of both, the cluster IP of each
	}{
		{[]*tracker.ServicePort{pingedPort(0, true), pingedPort(1, true)}, []bool{true, true, true}},
		{[]*tracker.ServicePort{pingedPort(0, false)}, []bool{true, false, true}},
		{[]*tracker.ServicePort{pingedPort(1, false)}, []bool{false, false, false}},
		{[]*tracker.ServicePort{pingedPort(0, true)}, []bool{true, true, false}},
		{[]*tracker.ServicePort{pingedPort(0, false), loses}, []bool{false, false, true}},
	} {
		delta := tracker.Delta{Changed: step.ports}
		r.Apply(delta)
		r.Committed()
		for i, addr := range []netip.Addr{pingedPort(0, true).ExternalIPs[0], pingedPort(0, true).ClusterIP,
			pingedPort(1, true).ClusterIP} {
			for _, device := range []string{"eth0", ""} {
				e := readback.New(r.Want()[nft.IP]).Explain(nft.Packet{
					Source: netip.MustParseAddr("203.0.113.1"), Destination: addr, Protocol: unix.IPPROTO_ICMP, Interface: device,
					SourceLocal: device == "",
				})
				if got := e.TraceResult.Outcome == "redirect"; got != step.answers[i] {
					t.Errorf("%s: %s, want answered: %v", addr, e.TraceResult.Outcome, step.answers[i])
				} else if got && (!strings.Contains(e.Reason, "responds to ping") || factOf(e, "Ping").By == "") {
					t.Errorf("%s: %q, %+v", addr, e.Reason, e.Facts)
				}
			}
		}
		if held := r.Want()[nft.IP].Sets[layout.PingedSet]; (held != nil) != slices.Contains(step.answers, true) {
			t.Errorf("the set is %+v", held)
		}
	}
	r.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{pingedPort(0, true).ID: true, pingedPort(1, true).ID: true}})
	if text := r.Want().Text(); text != plain {
		t.Errorf("something stays:\n%s", text)
	}
}

// TestPingNamesService: at an address of several Services, an explanation names those that let it respond to ping.
func TestPingNamesService(t *testing.T) {
	silent := pingedPort(1, true)
	silent.Settings.Ping = false
	long := strings.Repeat("n", 63) // no room for annotations in comments
	longName := pingedPort(0, true).With(func(p *tracker.PortSpec) { p.ID.Namespace, p.ID.Service = long, long })
	for _, tt := range []struct {
		responds, other *tracker.ServicePort
		want            string
	}{
		{pingedPort(0, true), silent, pingedPort(0, true).ID.Service},
		{pingedPort(0, true), pingedPort(1, false), pingedPort(0, true).ID.Service},
		{longName, silent, "a Service has endpoints"},
	} {
		r := NewRuleset(testConfig())
		r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{tt.responds, tt.other}})
		e := readback.New(r.Want()[nft.IP]).Explain(nft.Packet{Source: netip.MustParseAddr("203.0.113.1"),
			Destination: tt.responds.ExternalIPs[0], Protocol: unix.IPPROTO_ICMP, Interface: "eth0"})
		all := e.Reason + factOf(e, "Ping").Text
		if !strings.Contains(e.Reason, tt.want) || strings.Contains(all, tt.other.ID.Service) {
			t.Errorf("%q, %+v; want %s", e.Reason, e.Facts, tt.want)
		}
	}
}

// TestResetsOfFrontends: a change of a frontend says which connections of TCP are to end, if they are.
func TestResetsOfFrontends(t *testing.T) {
	port := func(endpoints int, reset bool) tracker.Delta {
		p := clusterPort(0, 3)
		p.Cluster, p.Serving, p.HasEndpoints = p.Cluster[:endpoints], p.Serving[:endpoints], endpoints > 0
		p.Settings.ResetDeparted = reset
		return tracker.Delta{Changed: []*tracker.ServicePort{p}}
	}
	r := NewRuleset(testConfig())
	for i, step := range []struct {
		delta          tracker.Delta
		reset, appears bool
		removed        int
		none           bool
	}{
		{delta: port(3, false), appears: true},
		{delta: port(2, false), none: true},
		{delta: port(2, true), reset: true},
		{delta: port(1, true), removed: 1},
		{delta: port(0, true), removed: 1},
		{delta: port(3, true), appears: true},
		{delta: port(2, false), none: true},
	} {
		r.Apply(step.delta)
		changes := r.FlowChanges()
		r.Committed()
		if step.none != (len(changes) == 0) {
			t.Errorf("step %d: %+v", i, changes)
		}
		for _, c := range changes {
			if c.Reset != step.reset || c.Appeared != step.appears || len(c.Removed) != step.removed {
				t.Errorf("step %d: %+v", i, c)
			}
		}
	}
}

// BenchmarkAnnotatedNeighbours is a new connection of this machine to a plain Service among 1,000 others with all kinds
// of frontends and source ranges, and beside the same with all annotations.
func BenchmarkAnnotatedNeighbours(b *testing.B) {
	for name, world := range map[string]func(tracker.Delta) tracker.Delta{"plain": plainWorld,
		"annotated": annotatedWorld} {
		b.Run(name, func(b *testing.B) {
			lab.New(b)
			lab.Sysctl(b, "net.netfilter.nf_conntrack_udp_timeout", "1")
			k := lab.Open(b, kernel.Open)
			r := countingRuleset(b, k, 1000, false, false)
			r.Apply(world(everywhere(cluster(1000, 10))))
			commit(b, k, r.Changes())
			r.Committed()
			to := &unix.SockaddrInet4{Addr: [4]byte{127, 96, 0, 1}, Port: 80}
			for b.Loop() {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
				if err == nil {
					err = unix.Sendto(fd, []byte("x"), 0, to)
				}
				if err != nil {
					b.Fatal(err)
				}
				unix.Close(fd)
			}
		})
	}
}
