package tracker

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A randomWorld holds the objects that exist, and makes up events. Names are few, so that
// objects come, go, move and collide.
type randomWorld struct {
	*rand.Rand
	services map[objectName]*corev1.Service
	slices   map[objectName]*discoveryv1.EndpointSlice
	cidrs    map[string]*networkingv1.ServiceCIDR
	node     *corev1.Node
	gone     bool // deleted after that
	parts    int  // how many slices there are at most; with many, most belong to one Service
	followed *Tracker
}

func newRandomWorld(seed uint64) *randomWorld {
	random := rand.New(rand.NewPCG(seed, 0))
	return &randomWorld{
		Rand:     random,
		parts:    5 + 15*random.IntN(2),
		services: make(map[objectName]*corev1.Service),
		slices:   make(map[objectName]*discoveryv1.EndpointSlice),
		cidrs:    make(map[string]*networkingv1.ServiceCIDR),
	}
}

// one returns one of values.
func one[T any](w *randomWorld, values ...T) T { return values[w.IntN(len(values))] }

// chance is true once in n times.
func (w *randomWorld) chance(n int) bool { return w.IntN(n) == 0 }

// event changes the world and tells tr.
func (w *randomWorld) event(tr *Tracker) {
	w.followed = tr
	switch w.IntN(11) {
	case 10:
		w.silenceEvent(tr)
	case 0, 1:
		s := w.service()
		w.services[objectName{s.Namespace, s.Name}] = s
		tr.SetService(s)
	case 2:
		name := one(w, "web", "api", "db")
		delete(w.services, objectName{"shop", name})
		tr.DeleteService("shop", name)
	case 3, 4, 5, 6:
		s := w.slice()
		w.slices[objectName{s.Namespace, s.Name}] = s
		tr.SetSlice(s)
	case 7:
		name := w.sliceName()
		delete(w.slices, objectName{"shop", name})
		tr.DeleteSlice("shop", name)
	case 8:
		w.nodeEvent(tr)
	case 9:
		w.cidrEvent(tr)
	}
}

// silenceEvent says of a port that some of its endpoints do not answer, or that some that did not answer do.
func (w *randomWorld) silenceEvent(tr *Tracker) {
	id := PortID{"shop", one(w, "web", "api", "db"), one(w, "http", "dns"), TCP, one(w, IPv4, IPv6)}
	if id.Port == "dns" {
		id.Protocol = UDP
	}
	var silent []netip.AddrPort
	for _, n := range w.Perm(6)[:w.IntN(4)] {
		format, port := "10.0.0.%d", one(w, uint16(8080), 80, 9090, 53, 5353)
		if id.Family == IPv6 {
			format = "fd01::%d"
		}
		silent = append(silent, netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf(format, 1+n)), port))
	}
	tr.LeaveOut(id, silent)
}

func (w *randomWorld) nodeEvent(tr *Tracker) {
	if w.chance(4) {
		w.gone = w.node != nil // its last value holds
		tr.DeleteNode("node-a")
		return
	}
	w.gone = false
	w.node = newNode(one(w, "", "a", "b"), one(w, "192.168.0.2", "10.9.9.9"), one(w, "fd00:192::2", "x"))
	tr.SetNode(w.node)
}

func (w *randomWorld) cidrEvent(tr *Tracker) {
	name := one(w, "a", "b")
	if w.chance(3) {
		delete(w.cidrs, name)
		tr.DeleteServiceCIDR(name)
		return
	}
	w.cidrs[name] = newServiceCIDR(name, one(w, "10.0.0.0/16", "10.1.0.0/16"), one(w, "fd00::/112", "10.0.0.0/8", "x"))
	tr.SetServiceCIDR(w.cidrs[name])
}

func (w *randomWorld) service() *corev1.Service {
	return newService(func(s *corev1.Service) {
		s.Name = one(w, "web", "api", "db")
		s.Spec.Type = one(w, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer)
		if w.chance(2) {
			dualStack(s)
		}
		if w.chance(10) {
			s.Spec.ClusterIP = "None"
		}
		if w.chance(10) {
			s.Labels = map[string]string{ProxyNameLabel: "other"}
		}
		if w.chance(2) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53,
				NodePort: one(w, int32(0), 30053, -1)})
		}
		if w.chance(2) {
			balanced(one(w, "198.51.100.1", "2001:db8::1", "x"), "198.51.100.2")(s)
			s.Spec.LoadBalancerSourceRanges = one(w, nil, []string{"192.168.0.0/16"}, []string{"x"},
				[]string{"fd00::/16", "10.0.0.0/9"})
		}
		if w.chance(4) {
			annotated("lb-algorithm", one(w, "maglev", "random", "x"), "hash", one(w, "source-ip", "source-ip-port"))(s)
		}
		if w.chance(2) {
			annotated("eject", "true")(s)
		}
		if w.chance(2) {
			internalLocal(s)
		}
		if w.chance(2) {
			externalLocal(s)
		}
	})
}

func (w *randomWorld) sliceName() string { return fmt.Sprint("slice-", w.IntN(w.parts)) }

func (w *randomWorld) slice() *discoveryv1.EndpointSlice {
	s := newSlice(w.sliceName())
	s.Labels[discoveryv1.LabelServiceName] = one(w, "web", "api", "db", "", "NO")
	if w.parts > 5 && !w.chance(4) {
		s.Labels[discoveryv1.LabelServiceName] = "web"
	}
	if w.chance(10) {
		s.Labels[corev1.IsHeadlessService] = ""
	}
	if w.chance(3) {
		s.Annotations = map[string]string{"kube-nft.io/weight": one(w, "0", "0", "1", "2", "700", "65535", "-1", "x")}
	}
	if w.chance(3) {
		s.Ports[0].Port = new(one(w, int32(80), 9090))
	}
	if w.chance(10) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("http"), Port: new(one(w, int32(80), 8080, 9090))})
	}
	format := "10.0.0.%d"
	if w.chance(2) {
		s.AddressType, format = discoveryv1.AddressTypeIPv6, "fd01::%d"
	}
	if w.chance(3) {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new("dns"), Port: new(one(w, int32(5353), 5353, 53)),
			Protocol: new(corev1.ProtocolUDP)})
	}
	hint := one(w, "", " zones=%s", " nodes=node-%s", " zones=%[1]s nodes=node-%[1]s")
	for range w.IntN(5) {
		text := fmt.Sprintf(format, 1+w.IntN(6)) + one(w, "", " notready", " terminating") +
			one(w, "", " notready terminating", " notserving") +
			one(w, "", " node=node-a", " node=node-b")
		if hint != "" && !w.chance(6) {
			text += fmt.Sprintf(hint, one(w, "a", "b"))
		}
		s.Endpoints = append(s.Endpoints, newEndpoint(text))
	}
	return s
}

// replay tells tr of all objects, in an order that a map gives.
func (w *randomWorld) replay(tr *Tracker) {
	for _, s := range w.slices {
		tr.SetSlice(s)
	}
	for _, s := range w.services {
		tr.SetService(s)
	}
	for _, c := range w.cidrs {
		tr.SetServiceCIDR(c)
	}
	if w.node != nil {
		tr.SetNode(w.node)
	}
	if w.gone {
		tr.DeleteNode("node-a")
	}
	for _, e := range w.followed.entries {
		for id, silent := range e.silent {
			tr.LeaveOut(id, silent)
		}
	}
}

// TestIncrementalEqualsFromScratch follows random events with one Tracker, and now and then
// compares what it handed out in all with what a new Tracker makes of the objects, and with
// the plain reading of the rules in oracle_test.go.
func TestIncrementalEqualsFromScratch(t *testing.T) {
	for range 60 {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { followWorld(t, newRandomWorld(seed)) })
	}
}

func followWorld(t *testing.T, w *randomWorld) {
	defer func(most, joint, weighted int) {
		mostWork, jointFrom, mostWeighted = most, joint, weighted
	}(mostWork, jointFrom, mostWeighted)
	mostWork, jointFrom, mostWeighted = one(w, mostWork, 1, 3, 10), one(w, jointFrom, 1, 4), one(w, mostWeighted, 2, 5)
	quota, now := one(w, 0, 0, 30, 100), started
	tr, have := New(Config{NodeName: "node-a", AwaitSlices: one(w, 0, 10*time.Second), Quota: quota,
		Clock: func() time.Time { return now }}), Delta{}
	for range 40 {
		for range 1 + w.IntN(8) {
			w.event(tr)
		}
		steps := 0
		for d, first := (Delta{}), true; first || !d.Due.IsZero(); first = false {
			if steps++; steps > 1000 {
				for _, n := range tr.dirty {
					for _, e := range n.dirty {
						for _, p := range e.out {
							t.Errorf("have %+v", p)
						}
						for _, p := range e.want {
							t.Errorf("want %+v", p)
						}
					}
				}
				t.Fatalf("Take never ends: %d elements at a time, %+v", mostWork, d)
			}
			d = tr.Take()
			checkDelta(t, &have, &d)
			have.Merge(d)
			if first {
				tr.Charge("shop", one(w, 0, time.Second))
			}
			now = now.Add(time.Second)
		}

		fresh := newTracker(Config{Quota: quota})
		w.replay(fresh)
		want := fresh.Take()
		comparePorts(t, byPort(have.Changed), byPort(want.Changed))
		if !slices.Equal(have.ServiceCIDRs, want.ServiceCIDRs) || !have.Node.Equal(want.Node) {
			t.Errorf("node %v, Service CIDRs %v; want %v, %v", have.Node, have.ServiceCIDRs, want.Node, want.ServiceCIDRs)
		}
		for _, p := range want.Changed {
			w.checkEndpoints(t, p)
		}
		if t.Failed() {
			return
		}
	}
	if len(tr.entries) > 3+2 || len(tr.holders) > w.parts {
		t.Errorf("%d entries, %d holders are kept", len(tr.entries), len(tr.holders))
	}
}

// checkDelta fails if d hands out what have already says.
func checkDelta(t *testing.T, have, d *Delta) {
	known, ports := byPort(have.Changed), byPort(d.Changed)
	if len(ports) < len(d.Changed) {
		t.Errorf("of %d ports, %d are handed out twice", len(ports), len(d.Changed)-len(ports))
	}
	for id, p := range ports {
		if old := known[id]; old != nil && old.Equal(p) || d.Removed[id] {
			t.Errorf("%v is handed out needlessly", id)
		}
	}
	for id := range d.Removed {
		if known[id] == nil {
			t.Errorf("%v is removed, but was not there", id)
		}
	}
	if d.Empty() != d.Oldest.IsZero() {
		t.Errorf("Empty %v, Oldest %v", d.Empty(), d.Oldest)
	}
}

func comparePorts(t *testing.T, got, want map[PortID]*ServicePort) {
	for id := range maps.Keys(want) {
		if got[id] == nil || !got[id].Equal(want[id]) {
			t.Errorf("%v:\ngot  %+v\nwant %+v", id, got[id], want[id])
		}
	}
	for id := range got {
		if want[id] == nil {
			t.Errorf("%v should be gone", id)
		}
	}
}

// sorted reports whether list is in order and free of duplicates.
func sorted(list []netip.AddrPort) bool {
	return slices.IsSortedFunc(list, func(a, b netip.AddrPort) int {
		if a == b {
			return 1 // a duplicate
		}
		return a.Compare(b)
	})
}
