package bench

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// sliceSize is how many endpoints an EndpointSlice holds at most, as the API server sees to.
const sliceSize = 1000

// heapPerEndpoint bounds what an endpoint takes in our memory, in bytes, with its share of
// everything else but the objects of the API.
const heapPerEndpoint = 1536

// largeSlice returns slice part of Service i, whose endpoints have addresses from first on.
func largeSlice(i, part int, first netip.Addr, endpoints int) *discoveryv1.EndpointSlice {
	return lab.Slice("bench", fmt.Sprintf("service-%d", i), part, corev1.IPv4Protocol, lab.Addresses(first, endpoints))
}

// heap returns the bytes of the heap that are in use.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// TestManyEndpointsInKernel programs a Service with 100,000 endpoints, and a million endpoints
// of 1,000 Services. One of them that goes is a few elements, and memory stays within bounds.
func TestManyEndpointsInKernel(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds and a gigabyte")
	}
	for _, tt := range []struct{ services, slices int }{{1, 100}, {1000, 1}} {
		t.Run(fmt.Sprintf("%d x %d", tt.services, tt.slices*sliceSize), func(t *testing.T) {
			lab.New(t)
			k, before := lab.Open(t, kernel.Open), heap()
			tr := tracker.New(tracker.Config{NodeName: lab.NodeName})
			ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 65536})
			began := time.Now()
			fill(t, tr, tt.services, tt.slices)
			tracked := time.Now()
			ruleset.Apply(tr.Take())
			batch := change.Diff(nil, ruleset.Want())
			compiled := time.Now()
			if err := k.Commit(t.Context(), batch); err != nil {
				t.Fatal(err)
			}
			ruleset.Committed()
			committed := time.Now()
			endpoints := uint64(tt.services * tt.slices * sliceSize)
			if got := batch.ElementCount(); got < int(endpoints) {
				t.Errorf("%d elements for %d endpoints", got, endpoints)
			}
			batch = nft.Batch{}
			each := (heap() - before) / endpoints
			if each > heapPerEndpoint {
				t.Errorf("%d bytes of heap for each endpoint, want at most %d", each, heapPerEndpoint)
			}
			t.Logf("tracked in %v, compiled in %v, committed in %v, %d bytes of heap for each endpoint",
				tracked.Sub(began), compiled.Sub(tracked), committed.Sub(compiled), each)
			loseEndpoint(t, tr, ruleset, k)
		})
	}
}

// firstOfMany is the first of a million addresses.
var firstOfMany = netip.AddrFrom4([4]byte{11, 0, 0, 0})

// fill gives the tracker Services with so many full slices each.
func fill(t *testing.T, tr *tracker.Tracker, services, slices int) {
	t.Helper()
	next := firstOfMany
	for i := range services {
		if err := tr.SetService(benchService(i)); err != nil {
			t.Fatal(err)
		}
		for part := range slices {
			if err := tr.SetSlice(largeSlice(i, part, next, sliceSize)); err != nil {
				t.Fatal(err)
			}
			for range sliceSize {
				next = next.Next()
			}
		}
	}
}

// loseEndpoint takes the last endpoint of the first slice away.
func loseEndpoint(t *testing.T, tr *tracker.Tracker, ruleset *services.Ruleset, k *kernel.Client) {
	t.Helper()
	began := time.Now()
	if err := tr.SetSlice(largeSlice(0, 0, firstOfMany, sliceSize-1)); err != nil {
		t.Fatal(err)
	}
	ruleset.Apply(tr.Take())
	batch := ruleset.Changes()
	if err := k.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	ruleset.Committed()
	t.Logf("an endpoint gone in %v, %d elements", time.Since(began), batch.ElementCount())
	if n := batch.ElementCount(); n > 10 {
		t.Errorf("%d elements for an endpoint that goes", n)
	}
}
