package integration

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/integration/netns"
	"github.com/kube-nft/kube-nft/nft"
)

// sliceSize is how many endpoints an EndpointSlice holds at most, as the API server sees to.
const sliceSize = 1000

// heapPerEndpoint bounds what an endpoint takes in our memory, in bytes, with its share of
// everything else but the objects of the API.
const heapPerEndpoint = 1536

// largeService returns Service number i.
func largeService(i int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}}
	s.Spec.ClusterIP = clusterIPOf(i).String()
	s.Spec.Ports = []corev1.ServicePort{{Port: 80}}
	return s
}

// largeSlice returns slice part of Service i, whose endpoints have addresses from first on.
func largeSlice(i, part int, first netip.Addr, endpoints int) *discoveryv1.EndpointSlice {
	number, name := int32(8080), fmt.Sprintf("web-%d", i)
	e := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("%s-%d", name, part), Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: &number}},
	}
	for _, addr := range addressesFrom(first, endpoints) {
		e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}})
	}
	return e
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
			netns.New(t)
			k, before := openKernel(t), heap()
			p := newPlay(t, scenarioSettings(t, nil))
			began := time.Now()
			p.fill(t, tt.services, tt.slices)
			tracked := time.Now()
			p.batch()
			batch := nft.Diff(nil, p.ruleset.Want())
			compiled := time.Now()
			commit(t, k, batch)
			p.ruleset.Committed()
			committed := time.Now()
			endpoints := uint64(tt.services * tt.slices * sliceSize)
			if got := len(p.ruleset.Want()[nft.IP].Sets["endpoints"].Map); got < int(endpoints) {
				t.Errorf("%d elements for %d endpoints", got, endpoints)
			}
			batch = nft.Batch{}
			each := (heap() - before) / endpoints
			if each > heapPerEndpoint {
				t.Errorf("%d bytes of heap for each endpoint, want at most %d", each, heapPerEndpoint)
			}
			t.Logf("tracked in %v, compiled in %v, committed in %v, %d bytes of heap for each endpoint",
				tracked.Sub(began), compiled.Sub(tracked), committed.Sub(compiled), each)
			p.loseEndpoint(t, k)
		})
	}
}

// firstOfMany is the first of a million addresses.
var firstOfMany = netip.AddrFrom4([4]byte{11, 0, 0, 0})

// fill gives the tracker Services with so many full slices each.
func (p *play) fill(t *testing.T, services, slices int) {
	t.Helper()
	next := firstOfMany
	for i := range services {
		if err := p.tracker.SetService(largeService(i)); err != nil {
			t.Fatal(err)
		}
		for part := range slices {
			if err := p.tracker.SetSlice(largeSlice(i, part, next, sliceSize)); err != nil {
				t.Fatal(err)
			}
			for range sliceSize {
				next = next.Next()
			}
		}
	}
}

// loseEndpoint takes the last endpoint of the first slice away.
func (p *play) loseEndpoint(t *testing.T, k *nft.Kernel) {
	t.Helper()
	began := time.Now()
	if err := p.tracker.SetSlice(largeSlice(0, 0, firstOfMany, sliceSize-1)); err != nil {
		t.Fatal(err)
	}
	batch := p.batch()
	commit(t, k, batch)
	p.ruleset.Committed()
	t.Logf("an endpoint gone in %v, %d elements", time.Since(began), batch.ElementCount())
	if n := batch.ElementCount(); n > 10 {
		t.Errorf("%d elements for an endpoint that goes", n)
	}
}
