package services

import (
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/wire"
	"github.com/kube-nft/kube-nft/tracker"
)

// cluster makes up services Service ports with a cluster IP and the given number of
// endpoints each; endpoints are pods of many nodes.
func cluster(services, endpoints int) tracker.Delta {
	delta := tracker.Delta{}
	for i := range services {
		p := clusterPort(i, endpoints)
		delta.Changed = append(delta.Changed, p)
	}
	return delta
}

func clusterPort(i, endpoints int) *tracker.ServicePort {
	p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID: tracker.PortID{Namespace: "bench", Service: fmt.Sprintf("service-%d", i), Port: "http", Protocol: tracker.TCP,
			Family: tracker.IPv4},
		UID: fmt.Sprintf("uid-%d", i), Created: time.Unix(int64(i), 0), Port: 80,
		ClusterIP: netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)}),
	},
		Lists: new(tracker.Lists), HasEndpoints: true,
	}
	for e := range endpoints {
		n := i*endpoints + e
		p.Cluster = append(p.Cluster,
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(n>>16), byte(n >> 8), byte(n)}), 8080))
	}
	p.Serving = p.Cluster
	return p
}

var benchSizes = []struct{ services, endpoints int }{{1000, 10}, {10000, 10}, {30000, 10}, {5000, 50}}

// BenchmarkCompile is the way from Service ports to the batch of a cold start.
func BenchmarkCompile(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			delta := cluster(size.services, size.endpoints)
			b.ReportAllocs()
			for b.Loop() {
				r := NewRuleset(testConfig())
				r.Apply(delta)
				if batch := change.Diff(nft.Tables{}, r.Want()); batch.Empty() {
					b.Fatal("nothing to do")
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size.services*size.endpoints), "ns/endpoint")
		})
	}
}

// BenchmarkHeap is the memory that a loaded ruleset holds.
func BenchmarkHeap(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			delta := cluster(size.services, size.endpoints)
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				r := NewRuleset(testConfig())
				r.Apply(delta)
				runtime.GC()
				runtime.ReadMemStats(&after)
				runtime.KeepAlive(r)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(size.services*size.endpoints),
				"heap-bytes/endpoint")
		})
	}
}

// BenchmarkChange is one endpoint that leaves and comes back, from the Service port's new
// value to the batch.
func BenchmarkChange(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			r := NewRuleset(testConfig())
			r.Apply(cluster(size.services, size.endpoints))
			r.Committed()
			full, less := clusterPort(7, size.endpoints), clusterPort(7, size.endpoints)
			less.Cluster = less.Cluster[:size.endpoints-1]
			less.Serving = less.Cluster
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				port := less
				if i%2 == 1 {
					port = full
				}
				r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{port}})
				batch := r.Changes()
				if n := len(batch.Ops); n == 0 || n > 8 {
					b.Fatalf("%d operations", n)
				}
				r.Committed()
			}
		})
	}
}

// TestCostOfOneChange counts allocations and operations: neither depends on the number of
// Services.
func TestCostOfOneChange(t *testing.T) {
	few, many := costOfOneChange(t, 10), costOfOneChange(t, 5000)
	if many > few {
		t.Errorf("one change costs %v allocations among 10 Services, %v among 5000", few, many)
	}
}

func costOfOneChange(t *testing.T, services int) (allocations float64) {
	r := NewRuleset(testConfig())
	r.Apply(cluster(services, 10))
	r.Committed()
	full, less := clusterPort(7, 10), clusterPort(7, 10)
	less.Cluster = less.Cluster[:9]
	less.Serving = less.Cluster
	return testing.AllocsPerRun(100, func() {
		for _, port := range []*tracker.ServicePort{less, full} {
			r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{port}})
			if batch := r.Changes(); len(batch.Ops) != 1 || batch.ElementCount() != 1 {
				t.Fatalf("%d operations, %d elements: want one of each", len(batch.Ops), batch.ElementCount())
			}
			r.Committed()
		}
	})
}

// BenchmarkColdStart is the way from Service ports to the kernel's commit in an empty
// namespace, and beside it the commit of the same bytes alone: of both the least of all
// rounds, and how they compare.
func BenchmarkColdStart(b *testing.B) {
	for _, size := range benchSizes {
		b.Run(fmt.Sprintf("services=%d/endpoints=%d", size.services, size.endpoints), func(b *testing.B) {
			lab.New(b)
			k := lab.Open(b, kernel.Open)
			delta := cluster(size.services, size.endpoints)
			all, raw := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			for b.Loop() {
				start := time.Now()
				r := NewRuleset(testConfig())
				r.Apply(delta)
				batch := change.Diff(nft.Tables{}, r.Want())
				commit(b, k, batch)
				all = min(all, time.Since(start))
				clearTables(b, k, r.Want())
				raw = min(raw, rawCommit(b, &batch))
				clearTables(b, k, r.Want())
			}
			b.ReportMetric(float64(all.Microseconds())/1000, "ms/start")
			b.ReportMetric(float64(raw.Microseconds())/1000, "ms/raw-commit")
			b.ReportMetric(float64(all)/float64(raw), "start/raw")
		})
	}
}

// clearTables takes away what a round has made.
func clearTables(b *testing.B, k *kernel.Client, tables nft.Tables) {
	b.Helper()
	commit(b, k, change.Diff(tables, nft.Tables{}))
}

// rawCommit sends the bytes of a batch that were encoded before, by a bare socket, and returns
// how long the kernel took.
func rawCommit(b *testing.B, batch *nft.Batch) time.Duration {
	b.Helper()
	var encoding wire.Encoding
	if err := encoding.Encode(batch, wire.Ours, 1); err != nil {
		b.Fatal(err)
	}
	encoded := encoding.Buf
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		b.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, len(encoded)); err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	if err := unix.Sendto(fd, encoded, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		b.Fatal(err)
	}
	answer := make([]byte, 1<<16)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	took := time.Since(start)
	if err != nil {
		b.Fatal(err)
	}
	attr.Replies(answer[:n], func(r attr.Reply) {
		if r.Type != unix.NLMSG_ERROR || r.Ack().Errno != 0 {
			b.Fatalf("the kernel refused the raw batch: %v", r.Ack())
		}
	})
	return took
}

// BenchmarkPortsOfOneService applies changes of a Service with many ports that share their endpoints: of one port, of
// one endpoint of all ports, and the removal of all.
func BenchmarkPortsOfOneService(b *testing.B) {
	for _, ports := range []int{1000, 10_000} {
		for _, affinity := range []time.Duration{0, time.Hour} {
			b.Run(fmt.Sprintf("change=endpoint/affinity=%t/ports=%d", affinity > 0, ports), func(b *testing.B) {
				worlds := [2]tracker.Delta{sharingWorld(ports, 10), sharingWorld(ports, 9)}
				for _, world := range worlds {
					for _, p := range world.Changed {
						p.Affinity, p.Several = affinity, affinity > 0
					}
				}
				r := NewRuleset(testConfig())
				r.Apply(worlds[0])
				r.Committed()
				b.ReportAllocs()
				for i := 1; b.Loop(); i++ {
					r.Apply(worlds[i%2])
					if batch := r.Changes(); batch.Empty() {
						b.Fatal("nothing changes")
					}
					r.Committed()
				}
			})
		}
		world := sharingWorld(ports, 10)
		b.Run(fmt.Sprintf("change=one/ports=%d", ports), func(b *testing.B) {
			r := NewRuleset(testConfig())
			r.Apply(world)
			for i := 0; b.Loop(); i++ {
				port := *world.Changed[ports/2]
				port.TargetPort += uint16(i % 2)
				r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{&port}})
				r.Committed()
			}
		})
		b.Run(fmt.Sprintf("change=removal/ports=%d", ports), func(b *testing.B) {
			removed := make(map[tracker.PortID]bool)
			for _, p := range world.Changed {
				removed[p.ID] = true
			}
			for b.Loop() {
				b.StopTimer()
				r := NewRuleset(testConfig())
				r.Apply(world)
				b.StartTimer()
				r.Apply(tracker.Delta{Removed: removed})
			}
		})
	}
}
