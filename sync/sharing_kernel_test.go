package sync

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestNeighbourOfManyPorts: a Service of many ports gets many endpoints, which makes a sum of elements and no product,
// and a change of another namespace is committed soon meanwhile.
func TestNeighbourOfManyPorts(t *testing.T) {
	for _, w := range []sharing{
		{name: "500", n: 500, most: 2*500 + 500},
		{name: "1000", n: 1000, most: 2*1000 + 1000},
		{name: "on this node", n: 500, node: "node", most: 2*500 + 2*500},
		{name: "affinity", n: 150, sticky: true, most: 3*150 + 2*150},
		{name: "affinity, policy Local", n: 150, node: "node", local: true, sticky: true, most: 5*150 + 5*150},
	} {
		t.Run(w.name, func(t *testing.T) { testNeighbourOfManyPorts(t, w) })
	}
}

// A sharing is a Service of n ports with the same n endpoints.
type sharing struct {
	name string
	n    int
	node string // of the endpoints
	most int    // elements

	sticky, local bool // session affinity, and an external IP with the policy Local
}

func testNeighbourOfManyPorts(t *testing.T, w sharing) {
	lab.New(t)
	tr, queue := tracker.New(tracker.Config{NodeName: "node"}), NewQueue()
	calm := func(last byte) {
		endpoint := []netip.Addr{netip.AddrFrom4([4]byte{10, 9, 0, last})}
		must(t, errors.Join(tr.SetService(lab.Service("calm", "web", netip.MustParseAddr("10.96.1.1"))),
			tr.SetSlice(lab.Slice("calm", "web", 0, corev1.IPv4Protocol, endpoint))))
		queue.Notify()
	}
	calm(0)
	ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024})
	k := &timed{Client: lab.Open(t, kernel.Open), before: func() {}}
	reports := make(chan Report, 10_000)
	loop := New(tr, ruleset, k, Options{Log: zap.NewNop(), Queue: queue, MinInterval: time.Millisecond,
		Charge: tr.Charge, Hold: tr.Hold, Committed: func(r Report) { reports <- r }})
	runLoop(t, loop)
	<-reports
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc >> 10
	}
	before := memory()

	service := lab.Service("loud", "web", netip.MustParseAddr("10.96.1.2"))
	slice := lab.Slice("loud", "web", 0, corev1.IPv4Protocol, nil)
	service.Spec.Ports, slice.Ports = nil, nil
	if w.sticky {
		service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	}
	if w.local {
		service.Spec.ExternalIPs = []string{"192.0.2.1"}
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	for i := range w.n {
		name, protocol, target := fmt.Sprint("p", i), corev1.ProtocolTCP, int32(2000+i)
		service.Spec.Ports = append(service.Spec.Ports,
			corev1.ServicePort{Name: name, Protocol: protocol, Port: int32(1000 + i)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &target})
	}
	ready := true
	for i := range w.n {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.8.%d.%d", i/250,
			1+i%250)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &w.node})
	}
	began := time.Now()
	must(t, errors.Join(tr.SetService(service), tr.SetSlice(slice)))
	queue.Notify()
	var longest time.Duration
	done := false
	for i := 1; !done && time.Since(began) < lab.Patience; i++ {
		calm(byte(i))
		came := time.Now()
		for at := false; !at; {
			r := <-reports
			for _, p := range r.Delta.Changed {
				at = at || p.ID.Namespace == "calm"
			}
			done = done || r.Delta.Due.IsZero() && i > 3
		}
		longest = max(longest, time.Since(came))
	}
	for quiet := false; !quiet; { // what is left of a large change comes by itself
		select {
		case <-reports:
		case <-time.After(200 * time.Millisecond):
			quiet = true
		}
	}
	have, _, err := lab.Open(t, kernel.Open).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	elements := 0
	for _, set := range have[nft.IP].Sets {
		elements += len(set.Map)
	}
	t.Logf("%d ports, %d endpoints: %d elements, %d commits in %v, the longest %v; a neighbour waited %v; "+
		"heap %d KiB more", w.n, w.n, elements, k.commits, time.Since(began), k.longest, longest, memory()-before)
	runtime.KeepAlive(loop)
	if most := w.most + 20; elements > most {
		t.Errorf("%d elements, want at most %d", elements, most)
	}
	if longest > time.Second {
		t.Errorf("a neighbour waited %v", longest)
	}
	if diff := change.Diff(have, ruleset.Want()); !diff.Empty() {
		t.Errorf("%d operations are left", len(diff.Ops))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
