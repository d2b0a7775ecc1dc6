package services

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/tracker"
)

// A worstWorld is a cluster that some tenant made as bad as the API lets him.
type worstWorld struct {
	name  string
	delta func() tracker.Delta
}

// guardedWorld has so many guarded Services, each with one port and ranges of its own.
func guardedWorld(services, ranges int) tracker.Delta {
	delta := tracker.Delta{Changed: make(map[tracker.PortID]*tracker.ServicePort)}
	for i := range services {
		for _, p := range guardedService(1, ranges) {
			other := clusterPort(i, 2)
			p.ID, p.UID, p.ClusterIP, p.Cluster, p.Serving = other.ID, other.UID, other.ClusterIP, other.Cluster, other.Serving
			p.LoadBalancers = []netip.Addr{netip.AddrFrom4([4]byte{198, 51, byte(i >> 8), byte(i)})}
			delta.Changed[p.ID] = p
		}
	}
	return delta
}

// externalWorld has one Service with so many external IPs and endpoints.
func externalWorld(addresses, endpoints int) tracker.Delta {
	p := clusterPort(0, endpoints)
	for i := range addresses {
		p.ExternalIPs = append(p.ExternalIPs, netip.AddrFrom4([4]byte{203, 0, byte(i >> 8), byte(i)}))
	}
	return tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{p.ID: p}}
}

// TestElementsFollowObjects: what a Service with many frontends takes is its frontends and its
// endpoints, and not their product; an endpoint more is an element more.
func TestElementsFollowObjects(t *testing.T) {
	for _, size := range []struct{ addresses, endpoints int }{{100, 50}, {2000, 500}} {
		r := NewRuleset(testConfig())
		empty := elementsOf(r)
		r.Apply(externalWorld(size.addresses, size.endpoints))
		// Each frontend has its verdict; the cluster IP stands in the set of cluster IPs, too.
		if got, want := elementsOf(r)-empty, size.addresses+1+size.endpoints+1; got != want {
			t.Errorf("%d addresses, %d endpoints: %d elements, want %d", size.addresses, size.endpoints, got, want)
		}
		r.Committed()
		r.Apply(externalWorld(size.addresses, size.endpoints+1))
		batch := r.Changes()
		if batch.ElementCount() != 1 || len(batch.Ops) > 3 {
			t.Errorf("%d addresses: one endpoint more is %d elements in %d operations", size.addresses, batch.ElementCount(), len(batch.Ops))
		}
	}
}

// withAffinity gives the Service ports of a world session affinity.
func withAffinity(delta tracker.Delta) tracker.Delta {
	for _, p := range delta.Changed {
		p.Affinity = 3 * time.Hour
	}
	return delta
}

// externalIPs gives each Service port of a world n external IPs.
func externalIPs(delta tracker.Delta, n byte) tracker.Delta {
	for _, p := range delta.Changed {
		b := p.ClusterIP.As4()
		for i := range n {
			p.ExternalIPs = append(p.ExternalIPs, netip.AddrFrom4([4]byte{203, i, b[2], b[3]}))
		}
	}
	return delta
}

// worstWorlds stand each beside a friendly world with as many elements.
func worstWorlds() []worstWorld {
	return []worstWorld{
		{"friendly-4000x10", func() tracker.Delta { return cluster(4000, 10) }},
		{"affinity-4000x10", func() tracker.Delta { return withAffinity(cluster(4000, 10)) }},
		{"friendly-4000x3", func() tracker.Delta { return cluster(4000, 3) }},
		{"affinity-4000x3", func() tracker.Delta { return withAffinity(cluster(4000, 3)) }},
		{"friendly-2500x10-everywhere", func() tracker.Delta { return everywhere(cluster(2500, 10)) }},
		{"affinity-2500x10-everywhere", func() tracker.Delta { return withAffinity(everywhere(cluster(2500, 10))) }},
		{"five-frontends-4000x10", func() tracker.Delta { return externalIPs(cluster(4000, 10), 4) }},
		{"friendly-33000x3", func() tracker.Delta { return cluster(33000, 2) }},
		{"guarded-100x1000", func() tracker.Delta { return guardedWorld(100, 1000) }},
		{"guarded-1x30000", func() tracker.Delta { return guardedWorld(1, 30000) }},
		{"friendly-17000x10", func() tracker.Delta { return cluster(17000, 10) }},
		{"maglev-400x3", func() tracker.Delta { return maglevWorld(cluster(400, 3)) }},
		{"friendly-625x4", func() tracker.Delta { return cluster(625, 2) }},
		{"external-2000x500", func() tracker.Delta { return externalWorld(2000, 500) }},
		{"guarded-20-ports-5000", func() tracker.Delta { return tracker.Delta{Changed: guardedService(20, 5000)} }},
	}
}

// cpuTime is what this process has used of the CPUs, in the kernel as well. On a busy machine it says
// more than the time that passes.
func cpuTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkWorstStart commits a whole world into an empty kernel.
func BenchmarkWorstStart(b *testing.B) {
	defer func(places int) { manyPlaces = places }(manyPlaces)
	manyPlaces = usualPlaces
	for _, w := range worstWorlds() {
		b.Run(w.name, func(b *testing.B) {
			lab.New(b)
			client := lab.Open(b, kernel.Open)
			delta := w.delta()
			var used, least time.Duration
			for b.Loop() {
				used = cpuTime(b)
				r := NewRuleset(testConfig())
				r.Apply(delta)
				if err := client.Commit(b.Context(), change.Diff(nil, r.Want())); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if used = cpuTime(b) - used; least == 0 || used < least {
					least = used
				}
				b.ReportMetric(float64(least), "least-cpu-ns")
				b.ReportMetric(float64(elementsOf(r)), "elements")
				clearTables(b, client, r.Want())
				b.StartTimer()
			}
		})
	}
}

func elementsOf(r *Ruleset) (n int) {
	for _, table := range r.Want() {
		for _, held := range table.Sets {
			n += len(held.Map)
		}
	}
	return n
}

// BenchmarkRangeChange replaces one source range of a Service among others.
func BenchmarkRangeChange(b *testing.B) {
	for _, ranges := range []int{10, 1000, 10000} {
		b.Run(fmt.Sprint(ranges), func(b *testing.B) {
			lab.New(b)
			client := lab.Open(b, kernel.Open)
			r := NewRuleset(testConfig())
			service := guardedService(1, ranges)
			r.Apply(tracker.Delta{Changed: service})
			commit(b, client, change.Diff(nil, r.Want()))
			r.Committed()
			for i := 0; b.Loop(); i++ {
				for id, p := range service {
					other := *p
					other.Sources = append([]netip.Prefix{}, p.Sources...)
					other.Sources[ranges-1] = netip.PrefixFrom(netip.AddrFrom4([4]byte{30, byte(i), 0, 0}), 24)
					r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{id: &other}})
				}
				commit(b, client, r.Changes())
				r.Committed()
			}
		})
	}
}

// BenchmarkNeighbourOfChains replaces an endpoint of a plain Service among others that have chains of
// their own, or none: two data elements.
func BenchmarkNeighbourOfChains(b *testing.B) {
	for _, w := range []worstWorld{
		{"none", func() tracker.Delta { return cluster(4000, 3) }},
		{"4000", func() tracker.Delta { return withAffinity(cluster(2000, 3)) }},
		{"8000", func() tracker.Delta { return withAffinity(cluster(4000, 3)) }},
		{"16000", func() tracker.Delta { return withAffinity(cluster(8000, 3)) }},
	} {
		b.Run(w.name, func(b *testing.B) {
			lab.New(b)
			client := lab.Open(b, kernel.Open)
			r := NewRuleset(testConfig())
			delta := w.delta()
			neighbour := clusterPort(len(delta.Changed)+1, 3)
			delta.Changed[neighbour.ID] = neighbour
			r.Apply(delta)
			commit(b, client, change.Diff(nil, r.Want()))
			r.Committed()
			least := time.Duration(0)
			for i := 0; b.Loop(); i++ {
				other := *neighbour
				other.Cluster = append(other.Cluster[:2:2], netip.AddrPortFrom(netip.AddrFrom4([4]byte{11, 0, byte(i >> 8), byte(i)}), 8080))
				r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{other.ID: &other}})
				batch := r.Changes()
				began := time.Now()
				commit(b, client, batch)
				if took := time.Since(began); least == 0 || took < least {
					least = took
				}
				r.Committed()
			}
			b.ReportMetric(float64(least), "least-commit-ns")
		})
	}
}
