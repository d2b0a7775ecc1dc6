package tracker

import (
	"fmt"
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"net/netip"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var webHTTP = PortID{Namespace: "shop", Service: "web", Port: "http", Protocol: TCP, Family: IPv4}

func TestTakeReturnsCompletePorts(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService()))
	must(t, tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.2", "10.0.0.1 node=node-a")...)))
	want := &ServicePort{PortSpec: &PortSpec{
		ID: webHTTP, Created: started, UID: "uid-web", Port: 80, ClusterIP: netip.MustParseAddr("172.30.0.1"),
	},
		Lists: &Lists{
			Cluster: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("10.0.0.2:0")},
			Serving: []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0"), netip.MustParseAddrPort("10.0.0.2:0")},
			OnNode:  []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:0")},
		},
		TargetPort: 8080, HasEndpoints: true,
	}
	d := tr.Take()
	if diff := cmp.Diff(want, only(t, d), cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if want := started.Add(time.Second); d.Oldest != want {
		t.Errorf("Oldest %v, want %v", d.Oldest, want)
	}
	if d := tr.Take(); !d.Empty() || !d.Oldest.IsZero() || tr.pending() {
		t.Errorf("nothing changed, but got %+v", d)
	}
}

func TestTakeAfterChangesThatCancel(t *testing.T) {
	service, part := newService(), newSlice("web-1", newEndpoint("10.0.0.1"))
	tests := []struct {
		name   string
		change func(*Tracker)
	}{
		{"the same again", func(tr *Tracker) { tr.SetService(service); tr.SetSlice(part) }},
		{"Service deleted and back", func(tr *Tracker) { tr.DeleteService("shop", "web"); tr.SetService(service) }},
		{"slice deleted and back", func(tr *Tracker) { tr.DeleteSlice("shop", "web-1"); tr.SetSlice(part) }},
		{"field that is not read", func(tr *Tracker) {
			tr.SetService(newService(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"a": "b"} }))
		}},
		{"endpoint moved to another slice", func(tr *Tracker) {
			tr.DeleteSlice("shop", "web-1")
			tr.SetSlice(newSlice("web-2", newEndpoint("10.0.0.1")))
		}},
		{"endpoint that no port uses", func(tr *Tracker) {
			tr.SetSlice(newSlice("web-2", newEndpoint("10.0.0.9 notready notserving")))
		}},
		{"unknown objects deleted", func(tr *Tracker) {
			tr.DeleteService("shop", "x")
			tr.DeleteSlice("shop", "x")
			tr.DeleteServiceCIDR("x")
			tr.DeleteNode("node-a")
		}},
		{"another node", func(tr *Tracker) {
			n := newNode("zone-z")
			n.Name = "node-b"
			tr.SetNode(n)
			tr.DeleteNode("node-b")
		}},
		{"Service CIDR and back", func(tr *Tracker) {
			tr.SetServiceCIDR(newServiceCIDR("x", "10.0.0.0/8"))
			tr.DeleteServiceCIDR("x")
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{})
			must(t, tr.SetService(service))
			must(t, tr.SetSlice(part))
			before := only(t, tr.Take())
			tt.change(tr)
			if d := tr.Take(); !d.Empty() || !d.Oldest.IsZero() || len(d.Triggers) > 0 {
				t.Errorf("got %+v", d)
			}
			if after := tr.entries[objectName{"shop", "web"}].out[0]; after != before {
				t.Error("the port that was handed out is no longer the one that is kept")
			}
		})
	}
}

func TestRemoval(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService(func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53})
	})))
	must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1"))))
	tr.Take()
	must(t, tr.SetService(newService()))
	dns := PortID{Namespace: "shop", Service: "web", Port: "dns", Protocol: UDP, Family: IPv4}
	if d := tr.Take(); len(d.Changed) != 0 || len(d.Removed) != 1 || !d.Removed[dns] {
		t.Errorf("port removed: got %+v", d)
	}
	tr.DeleteService("shop", "web")
	if d := tr.Take(); len(d.Changed) != 0 || len(d.Removed) != 1 || !d.Removed[webHTTP] {
		t.Errorf("Service deleted: got %+v", d)
	}
	tr.DeleteSlice("shop", "web-1")
	if tr.Take(); len(tr.entries) != 0 || len(tr.holders) != 0 {
		t.Errorf("kept %d entries and %d holders of nothing", len(tr.entries), len(tr.holders))
	}
}

func TestSliceMovesBetweenServices(t *testing.T) {
	api := func(s *corev1.Service) {
		s.Name, s.Spec.ClusterIP, s.Spec.ClusterIPs = "api", "172.30.0.2", []string{"172.30.0.2"}
	}
	tests := []struct {
		name     string
		edit     func(*discoveryv1.EndpointSlice)
		web, api bool // who has the endpoint afterwards
	}{
		{"label changed", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "api" }, false, true},
		{"label emptied", func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "" }, false, false},
		{"label removed", func(s *discoveryv1.EndpointSlice) { s.Labels = nil }, false, false},
		{"became headless", func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" }, false, false},
		{"became FQDN", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, false, false},
		{"became IPv6", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeIPv6 }, false, false},
		{"nothing", func(*discoveryv1.EndpointSlice) {}, true, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{})
			must(t, tr.SetService(newService()))
			must(t, tr.SetService(newService(api)))
			must(t, tr.SetSlice(newSlice("s", newEndpoint("10.0.0.1"))))
			have := make(map[PortID]*ServicePort)
			apply(have, tr.Take())
			moved := newSlice("s", newEndpoint("10.0.0.1"))
			tt.edit(moved)
			tr.SetSlice(moved)
			apply(have, tr.Take())
			apiHTTP := webHTTP
			apiHTTP.Service = "api"
			if web, api := have[webHTTP].HasEndpoints, have[apiHTTP].HasEndpoints; web != tt.web || api != tt.api {
				t.Errorf("web has it: %v, api has it: %v; want %v, %v", web, api, tt.web, tt.api)
			}
		})
	}
}

// apply brings have up to date.
func apply(have map[PortID]*ServicePort, d Delta) {
	maps.Copy(have, byPort(d.Changed))
	for id := range d.Removed {
		delete(have, id)
	}
}

func byPort(ports []*ServicePort) map[PortID]*ServicePort {
	all := make(map[PortID]*ServicePort, len(ports))
	for _, p := range ports {
		all[p.ID] = p
	}
	return all
}

func TestTriggersOfDeltasThatWait(t *testing.T) {
	var waiting Delta
	for range 5 {
		waiting.Merge(Delta{Triggers: make([]Trigger, maxTriggers/4)})
	}
	if n := len(waiting.Triggers); n != maxTriggers {
		t.Errorf("%d trigger times are kept, want %d", n, maxTriggers)
	}
}

func TestTriggers(t *testing.T) {
	at := func(d time.Duration) string { return started.Add(d).Format(time.RFC3339Nano) }
	annotated := func(name, ip, when string) *discoveryv1.EndpointSlice {
		s := newSlice(name, newEndpoint(ip))
		s.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: when}
		return s
	}
	tests := []struct {
		name string
		act  func(*Tracker)
		want int
	}{
		{"each change of a slice", func(tr *Tracker) {
			tr.SetSlice(annotated("a", "10.0.0.1", at(time.Second)))
			tr.SetSlice(annotated("b", "10.0.0.2", at(time.Minute)))
		}, 2},
		{"older than the process", func(tr *Tracker) { tr.SetSlice(annotated("a", "10.0.0.1", at(-time.Second))) }, 0},
		{"not a time", func(tr *Tracker) { tr.SetSlice(annotated("a", "10.0.0.1", "yesterday")) }, 0},
		{"slice deleted since", func(tr *Tracker) {
			tr.SetSlice(annotated("a", "10.0.0.1", at(time.Second)))
			tr.SetSlice(annotated("b", "10.0.0.2", at(time.Second)))
			tr.DeleteSlice("shop", "a")
		}, 0},
		{"no Take for long", func(tr *Tracker) {
			for i := range 2 * maxServiceTriggers {
				tr.SetSlice(annotated("a", fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250), at(time.Second)))
			}
		}, maxServiceTriggers},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{})
			must(t, tr.SetService(newService()))
			tt.act(tr)
			d := tr.Take()
			if len(d.Triggers) != tt.want {
				t.Errorf("got %v, want %d", d.Triggers, tt.want)
			}
			for _, trigger := range d.Triggers {
				if trigger.Family != IPv4 || !trigger.At.After(started) {
					t.Errorf("got %v, want a later time and the family of the slice", trigger)
				}
			}
		})
	}
}

func TestChanges(t *testing.T) {
	tr := newTracker(Config{})
	check := func(step string, total, pending Changes) {
		t.Helper()
		if gotTotal, gotPending := tr.Changes(); gotTotal != total || gotPending != pending {
			t.Errorf("%s: got %v, %v pending, want %v, %v", step, gotTotal, gotPending, total, pending)
		}
	}
	check("nothing", Changes{}, Changes{})
	must(t, tr.SetService(newService()))
	must(t, tr.SetService(newService()))
	check("a Service twice", Changes{Services: 1}, Changes{Services: 1})
	tr.Take()
	check("taken", Changes{Services: 1}, Changes{})
	must(t, tr.SetSlice(newSlice("a", newEndpoint("10.0.0.1"))))
	tr.DeleteSlice("shop", "a")
	check("a slice came and went", Changes{Services: 1, Slices: 2}, Changes{Slices: 2})
	tr.DeleteSlice("shop", "unknown")
	check("nothing to delete", Changes{Services: 1, Slices: 2}, Changes{Slices: 2})
}

func TestServiceUID(t *testing.T) {
	tr := newTracker(Config{})
	svc := newService()
	svc.UID = "1-2-3"
	must(t, tr.SetService(svc))
	if got, ok := tr.ServiceUID(svc.Namespace, svc.Name); got != "1-2-3" || !ok {
		t.Errorf("got %q", got)
	}
	if got, ok := tr.ServiceUID(svc.Namespace, "unknown"); got != "" || ok {
		t.Errorf("unknown Service: got %q", got)
	}
}

// TestTakeAwaitsSlices: a new Service waits for its slices, but not for long. What was handed out
// before waits for nothing.
func TestTakeAwaitsSlices(t *testing.T) {
	const wait = 10 * time.Millisecond
	now := started
	begin := func() *Tracker {
		return New(Config{NodeName: "node-a", AwaitSlices: wait, Clock: func() time.Time { return now }})
	}
	expect := func(when string, tr *Tracker, endpoints int, due time.Time) {
		t.Helper()
		d := tr.Take()
		if d.Due != due {
			t.Errorf("%s: due at %v, want %v", when, d.Due, due)
		}
		if endpoints < 0 {
			if !d.Empty() {
				t.Errorf("%s: handed out %+v", when, d)
			}
			return
		}
		if p := only(t, d); len(p.Cluster) != endpoints {
			t.Errorf("%s: %d endpoints, want %d", when, len(p.Cluster), endpoints)
		}
	}
	none, part := time.Time{}, newSlice("web-1", newEndpoint("10.0.0.1"))

	tr := begin()
	must(t, tr.SetService(newService()))
	expect("the first Take", tr, 0, none)

	tr = begin()
	tr.Take()
	must(t, tr.SetService(newService()))
	due := now.Add(wait)
	expect("a new Service", tr, -1, due)
	now = now.Add(wait / 2)
	must(t, tr.SetService(newService(func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })))
	expect("the new Service changes", tr, -1, due)
	must(t, tr.SetSlice(part))
	expect("its slice comes", tr, 1, none)
	tr.DeleteSlice("shop", "web-1")
	expect("the slice goes", tr, 0, none)

	tr = begin()
	tr.Take()
	must(t, tr.SetService(newService()))
	due = now.Add(wait)
	expect("another new Service", tr, -1, due)
	now = due
	expect("no slice comes", tr, 0, none)

	tr = begin()
	tr.Take()
	must(t, tr.SetService(newService()))
	expect("a third new Service", tr, -1, now.Add(wait))
	tr.DeleteService("shop", "web")
	expect("it goes", tr, -1, none)
	if tr.pending() || len(tr.entries) > 0 {
		t.Error("the Service that is gone is kept")
	}

	tr = begin()
	tr.Take()
	must(t, tr.SetSlice(part))
	must(t, tr.SetService(newService()))
	expect("a Service after its slice", tr, 1, none)
}
