package tracker

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// numberedService returns Service i of a large cluster.
func numberedService(i int) *corev1.Service {
	return newService(func(s *corev1.Service) {
		s.Name = fmt.Sprintf("service-%d", i)
		s.UID = "3f1c2b5e-8d0a-4a52-9d53-0123456789ab"
		s.Spec.ClusterIP = fmt.Sprintf("172.%d.%d.%d", 16+i>>16, i>>8&255, i&255)
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	})
}

// numberedSlice returns the slice of Service i, with 10 endpoints on as many nodes. Its
// first port is last+1: a changed last is a changed slice.
func numberedSlice(i, last int) *discoveryv1.EndpointSlice {
	s := newSlice(fmt.Sprintf("service-%d-x7k2p", i))
	s.Labels[discoveryv1.LabelServiceName] = fmt.Sprintf("service-%d", i)
	for n := range 10 {
		octet := n
		if n == 9 {
			octet = 10 + last%100
		}
		s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.%d.%d.%d node=node-%d zones=zone-%d", i>>8&255, i&255,
			octet, n, n%3)))
	}
	return s
}

// newCluster returns a Tracker of that many Services whose state was taken.
func newCluster(tb testing.TB, services int) *Tracker {
	tr := newTracker(Config{})
	must(tb, tr.SetNode(newNode("zone-1", "192.168.0.2")))
	for i := range services {
		must(tb, tr.SetService(numberedService(i)))
		must(tb, tr.SetSlice(numberedSlice(i, 0)))
	}
	if d := tr.Take(); len(d.Changed) != services {
		tb.Fatalf("%d ports, want %d", len(d.Changed), services)
	}
	return tr
}

// BenchmarkOneSliceChange is one changed endpoint of one Service among many.
func BenchmarkOneSliceChange(b *testing.B) {
	for _, services := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("services=%d", services), func(b *testing.B) {
			tr := newCluster(b, services)
			changes := []*discoveryv1.EndpointSlice{numberedSlice(7, 1), numberedSlice(7, 2)}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				tr.SetSlice(changes[i%2])
				if d := tr.Take(); len(d.Changed) != 1 {
					b.Fatal(d)
				}
			}
		})
	}
}

// BenchmarkUnchangedSlice is what a resync costs for each slice.
func BenchmarkUnchangedSlice(b *testing.B) {
	tr, same := newCluster(b, 100), numberedSlice(7, 0)
	b.ReportAllocs()
	for b.Loop() {
		tr.SetSlice(same)
	}
	if tr.pending() {
		b.Error("an equal slice made the tracker dirty")
	}
}

// BenchmarkColdStart takes in a whole cluster and reports the heap that stays in use.
func BenchmarkColdStart(b *testing.B) {
	const services = 30_000
	objects, parts := make([]*corev1.Service, services), make([]*discoveryv1.EndpointSlice, services)
	for i := range services {
		objects[i], parts[i] = numberedService(i), numberedSlice(i, 0)
	}
	before := heapInUse()
	var tr *Tracker
	for b.Loop() {
		tr = newTracker(Config{})
		for i := range services {
			tr.SetService(objects[i])
			tr.SetSlice(parts[i])
		}
		tr.Take()
	}
	b.ReportMetric(float64(heapInUse()-before)/(services*10), "heap-B/endpoint")
	runtime.KeepAlive(tr)
	runtime.KeepAlive(objects)
	runtime.KeepAlive(parts)
}

// heapInUse returns the bytes of reachable objects.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// allocations returns how many a change makes, in turn to one of these values of a slice.
func allocations(t *testing.T, tr *Tracker, values ...*discoveryv1.EndpointSlice) float64 {
	i := 0
	return testing.AllocsPerRun(100, func() {
		i++
		tr.SetSlice(values[i%len(values)])
		if d := tr.Take(); len(d.Changed) != 1 {
			t.Fatal(d)
		}
	})
}

// TestCostOfOneChange counts allocations: they must not depend on the number of Services.
func TestCostOfOneChange(t *testing.T) {
	cost := func(services int) float64 {
		tr := newCluster(t, services)
		return allocations(t, tr, numberedSlice(7, 1), numberedSlice(7, 2))
	}
	if few, many := cost(10), cost(3000); many > few {
		t.Errorf("one change costs %v allocations among 10 Services, %v among 3000", few, many)
	}
}

// TestConcurrentUse lets informers and the loop run at the same time; the race detector looks on.
func TestConcurrentUse(t *testing.T) {
	tr, have := New(Config{NodeName: "node-a"}), Delta{}
	var informers sync.WaitGroup
	for i := range 4 {
		informers.Go(func() {
			for n := range 200 {
				tr.SetService(numberedService(i))
				tr.SetSlice(numberedSlice(i, n))
				tr.SetNode(newNode(fmt.Sprintf("zone-%d", n%3), "192.168.0.2"))
				tr.SetServiceCIDR(newServiceCIDR("a", fmt.Sprintf("10.%d.0.0/16", n)))
			}
		})
	}
	done := make(chan struct{})
	go func() { informers.Wait(); close(done) }()
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		if tr.pending() {
			have.Merge(tr.Take())
		}
	}
	have.Merge(tr.Take())
	for i := range 4 {
		id := webHTTP
		id.Service = fmt.Sprintf("service-%d", i)
		if p := byPort(have.Changed)[id]; p == nil || len(p.Serving) != 10 {
			t.Errorf("%v: got %+v", id, p)
		}
	}
}

// TestCostInALargeService counts allocations: they must not depend on the number of slices
// that the Service has.
func TestCostInALargeService(t *testing.T) {
	cost := func(parts int) float64 {
		tr := newTracker(Config{})
		must(t, tr.SetService(newService()))
		part := func(i, last int) *discoveryv1.EndpointSlice {
			return newSlice(fmt.Sprintf("part-%d", i), newEndpoints(fmt.Sprintf("10.%d.%d.1", i>>8, i&255),
				fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, last))...)
		}
		for i := range parts {
			must(t, tr.SetSlice(part(i, 2)))
		}
		tr.Take()
		return allocations(t, tr, part(1, 3), part(1, 4))
	}
	if few, many := cost(manySlices), cost(1000); many > few {
		t.Errorf("one change costs %v allocations among %d slices, %v among 1000", few, manySlices, many)
	}
}
