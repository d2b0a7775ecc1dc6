package tracker

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// named makes a Service another one, with a cluster IP and an age of its own.
func named(namespace, name string, n int) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Namespace, s.Name, s.UID = namespace, name, types.UID(fmt.Sprint(n))
		s.Spec.ClusterIP, s.Spec.ClusterIPs = fmt.Sprintf("10.96.%d.%d", 1+n/250, 1+n%250), nil
		s.CreationTimestamp.Time = started.Add(time.Duration(n) * time.Second)
	}
}

// newStopped returns a tracker whose clock stands still at *now, and that has handed out what setup made. A namespace
// owes only what a test charges it, however slow the machine is.
func newStopped(now *time.Time, config Config, setup func(tr *Tracker)) *Tracker {
	config.NodeName, config.Clock = "node-a", func() time.Time { return *now }
	if config.CPUTime == nil {
		config.CPUTime = func() time.Duration { return 0 }
	}
	tr := New(config)
	if setup != nil {
		setup(tr)
	}
	tr.Take()
	return tr
}

// TestTakeIsBounded: one Take hands out about mostWork elements, and the rest is due at once.
func TestTakeIsBounded(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, nil)
	n := 3 * mostWork
	for i := range n {
		must(t, tr.SetService(newService(named("many", fmt.Sprint("s", i), i))))
	}
	must(t, tr.SetService(newService(named("shop", "web", n))))
	for handedOut := 0; handedOut <= n; {
		d := tr.Take()
		if len(d.Changed) == 0 || len(d.Changed) > mostWork {
			t.Fatalf("%d of %d Services are handed out at once, after %d", len(d.Changed), n+1, handedOut)
		}
		if handedOut += len(d.Changed); (handedOut <= n) != !d.Due.IsZero() {
			t.Fatalf("after %d of %d the rest is due at %v", handedOut, n+1, d.Due)
		}
	}
}

// TestTakeAll: a Take before the first commit leaves out nothing, though it is not the first one.
func TestTakeAll(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, nil)
	n := 3 * mostWork
	for i := range n {
		must(t, tr.SetService(newService(named("many", fmt.Sprint("s", i), i))))
	}
	handedOut := len(tr.Take().Changed)
	tr.TakeAll()
	if d := tr.Take(); handedOut+len(d.Changed) != n || !d.Due.IsZero() {
		t.Errorf("%d and %d of %d Services are handed out, the rest is due at %v", handedOut, len(d.Changed), n, d.Due)
	}
}

// TestNamespaceThatWorkedLeastGoesFirst: changes of a neighbour come before those of a namespace that had a turn.
func TestNamespaceThatWorkedLeastGoesFirst(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, nil)
	for i := range 3 * mostWork {
		must(t, tr.SetService(newService(named("many", fmt.Sprint("s", i), i))))
	}
	tr.Take()
	tr.Charge("many", time.Millisecond)
	must(t, tr.SetService(newService(named("shop", "web", 1))))
	d := tr.Take()
	if !slices.ContainsFunc(d.Changed, func(p *ServicePort) bool { return p.ID.Namespace == "shop" }) {
		t.Error("a neighbour waits for a namespace that has had its turn")
	}
}

// TestNamespacesThatWorkOften: a neighbour comes before many namespaces that change often and owe nothing.
func TestNamespacesThatWorkOften(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, nil)
	for i := range 3 * mostWork {
		must(t, tr.SetService(newService(named(fmt.Sprint("many-", i%30), fmt.Sprint("s", i), i))))
	}
	for i := range 30 {
		tr.Charge(fmt.Sprint("many-", i), 20*time.Millisecond)
	}
	now = now.Add(time.Second)
	must(t, tr.SetService(newService(named("shop", "web", 3*mostWork))))
	tr.Charge("shop", time.Millisecond)
	if d := tr.Take(); d.Changed[0].ID.Namespace != "shop" {
		t.Errorf("%v comes first", d.Changed[0].ID)
	}
}

// TestWhatGoesDoesNotWaitForWhatComes: an endpoint that leaves is handed out at once, whatever other namespaces add,
// and however much more work there was for its own.
func TestWhatGoesDoesNotWaitForWhatComes(t *testing.T) {
	for _, owed := range []time.Duration{0, time.Second, time.Minute} {
		now := started
		tr := newStopped(&now, Config{}, func(tr *Tracker) {
			must(t, tr.SetService(newService()))
			must(t, tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2")...)))
		})
		tr.Charge("shop", owed)
		for i := range 3 * mostWork {
			must(t, tr.SetService(newService(named("many", fmt.Sprint("s", i), i))))
		}
		must(t, tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1")...)))
		at := func(p *ServicePort) bool { return p.ID.Namespace == "shop" && len(p.Cluster) == 1 }
		if d := tr.Take(); !slices.ContainsFunc(d.Changed, at) {
			t.Errorf("%v of work: the endpoint stays", owed)
		}
	}
}

// TestWhatGoesDoesNotWaitForSibling: an endpoint that leaves is handed out with the second Take, though another Service
// of its namespace, which changed before, gives up much more.
func TestWhatGoesDoesNotWaitForSibling(t *testing.T) {
	large := func(clusterIP int) *corev1.Service {
		return newService(named("shop", "large", clusterIP), manyPorts, annotated("lb-algorithm", "maglev"),
			func(s *corev1.Service) {
				for i := range 900 {
					s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("203.0.%d.%d", i/250, 1+i%250))
				}
			})
	}
	for _, owed := range []time.Duration{0, time.Minute} {
		now := started
		tr := newStopped(&now, Config{}, func(tr *Tracker) {
			must(t, tr.SetService(newService()))
			must(t, tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2")...)))
			must(t, tr.SetService(large(1)))
			slice := withEndpoints(20)
			slice.Name, slice.Labels = "large-1", map[string]string{discoveryv1.LabelServiceName: "large"}
			must(t, tr.SetSlice(slice))
		})
		tr.Charge("shop", owed)
		must(t, tr.SetService(large(2)))
		must(t, tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1")...)))
		at := func(p *ServicePort) bool { return p.ID.Service == "web" && len(p.Cluster) == 1 }
		takes := 1
		for !slices.ContainsFunc(tr.Take().Changed, at) {
			takes++
		}
		if takes > 2 {
			t.Errorf("%v of work: the endpoint goes with Take number %d", owed, takes)
		}
	}
}

// TestSmallServicesGoFirst: a Service that is deleted does not wait until a larger one has gone.
func TestSmallServicesGoFirst(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService()))
		must(t, tr.SetService(newService(named("many", "large", 1), func(s *corev1.Service) {
			s.Spec.Ports = nil
			for i := range 3 * mostWork {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1 + i)})
			}
		})))
	})
	tr.Charge("shop", time.Minute)
	tr.DeleteService("many", "large")
	tr.DeleteService("shop", "web")
	if d := tr.Take(); !d.Removed[PortID{"shop", "web", "http", TCP, IPv4}] || d.Due.IsZero() {
		t.Errorf("%d ports are removed, the rest is due at %v", len(d.Removed), d.Due)
	}
}

// TestNamespaceThatOwesWaits: what a namespace adds waits until its work is paid off; its neighbours do not.
func TestNamespaceThatOwesWaits(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService()))
		must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1"))))
	})
	tr.Charge("shop", burst)
	must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1"), newEndpoint("10.0.0.2"))))
	if d := tr.Take(); d.Empty() {
		t.Error("a namespace waits that has used its burst and no more")
	}
	tr.Charge("shop", time.Second)
	must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1"), newEndpoint("10.0.0.2"), newEndpoint("10.0.0.3"))))
	must(t, tr.SetService(newService(named("other", "web", 1))))
	d := tr.Take()
	if want := now.Add(shareOfTime * time.Second); len(d.Changed) != 1 || only(t, d).ID.Namespace != "other" ||
		d.Due.Before(want) ||
		d.Waiting != 1 || d.Slowest != "shop" || !now.Add(d.Wait).Equal(d.Due) {
		t.Errorf("beside a namespace that owes a second, Take hands out %+v, want the other namespace and the rest at %v", d,
			want)
	}
	now = d.Due // Take's own work is charged, too
	if d := tr.Take(); len(d.Changed) != 1 || len(only(t, d).Cluster) != 3 || d.Waiting != 0 {
		t.Errorf("when its work is paid off: %+v", d)
	}
}

// TestHeldNamespaceTakesAway: a namespace that is held gives up an endpoint at once, and what it adds waits until it is
// held no more.
func TestHeldNamespaceTakesAway(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService()))
		must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1"), newEndpoint("10.0.0.2"))))
	})
	tr.Hold([]string{"shop"})
	must(t, tr.SetService(newService(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"192.0.2.1"} })))
	must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1"))))
	d := tr.Take()
	if p := only(t, d); len(p.Cluster) != 1 || len(p.ExternalIPs) != 0 || !d.Due.IsZero() || d.Waiting != 1 {
		t.Errorf("held: endpoints %v, external IPs %v, due %v, %d Services wait", p.Cluster, p.ExternalIPs, d.Due, d.Waiting)
	}
	tr.Hold(nil)
	if d := tr.Take(); len(only(t, d).ExternalIPs) != 1 || d.Waiting != 0 {
		t.Errorf("held no more: %+v", d)
	}
}

// TestFallbackOfNamespaceThatOwes: with local-fallback, clients pass from the endpoints of this node to the others and
// back, though the namespace may add nothing: a port has one of the two lists only.
func TestFallbackOfNamespaceThatOwes(t *testing.T) {
	now := started
	service := newService(internalLocal, annotated("local-fallback", "cluster"))
	there, here := newEndpoint("10.0.0.1"), newEndpoint("10.0.0.2 node=node-a")
	tr := newStopped(&now, Config{NodeName: "node-a"}, func(tr *Tracker) {
		must(t, tr.SetService(service))
		must(t, tr.SetSlice(newSlice("web-1", there, here)))
	})
	tr.Charge("shop", time.Hour)
	must(t, tr.SetSlice(newSlice("web-1", there)))
	if p := only(t, tr.Take()); len(p.Cluster) != 1 || len(p.Local) != 0 {
		t.Errorf("without an endpoint on this node: %v, on this node %v", p.Cluster, p.Local)
	}
	must(t, tr.SetSlice(newSlice("web-1", there, here)))
	if p := only(t, tr.Take()); len(p.Cluster) != 0 || len(p.Local) != 1 {
		t.Errorf("with an endpoint on this node: %v, on this node %v", p.Cluster, p.Local)
	}
}

// TestWaitingCostsNothing: a namespace that waits pays nothing for the commits of others meanwhile. It would wait for
// good beside one that commits all the time.
func TestWaitingCostsNothing(t *testing.T) {
	now, work := started, time.Duration(0)
	cpuTime := func() time.Duration { // each look at a namespace takes a millisecond
		work += time.Millisecond
		return work
	}
	tr := newStopped(&now, Config{CPUTime: cpuTime}, func(tr *Tracker) {
		must(t, tr.SetService(newService()))
		must(t, tr.SetService(newService(named("calm", "web", 1))))
	})
	tr.Charge("shop", 10*time.Second)
	must(t, tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1")...)))
	waits := tr.Take().Wait
	for i := range 100 {
		must(t, tr.SetService(newService(named("calm", "web", 2+i))))
		if d := tr.Take(); len(d.Changed) == 0 || d.Wait != waits {
			t.Fatalf("change %d of another namespace: %d ports, and a wait of %v, before %v", i, len(d.Changed), d.Wait, waits)
		}
	}
	now = now.Add(waits)
	if d := tr.Take(); len(d.Changed) != 1 {
		t.Errorf("after the wait %d ports change", len(d.Changed))
	}
}

// TestWhatIsTakenAwayNeverWaits: whatever a namespace owes, endpoints, frontends, source ranges and Services that go
// are handed out at once, and nothing else is.
func TestWhatIsTakenAwayNeverWaits(t *testing.T) {
	balanced := func(ports, ips, ranges []string, eps ...string) func(tr *Tracker) {
		return func(tr *Tracker) {
			must(t, tr.SetService(newService(func(s *corev1.Service) {
				s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, ranges
				s.Spec.Ports[0].NodePort = 30080
				for i, name := range ports[1:] {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP,
						Port: int32(1000 + i), NodePort: int32(31000 + i)})
				}
				for _, ip := range ips {
					s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
				}
			})))
			slice := newSlice("web-1")
			for _, ep := range eps {
				slice.Endpoints = append(slice.Endpoints, newEndpoint(ep))
			}
			must(t, tr.SetSlice(slice))
		}
	}
	show := func(d Delta) string {
		var parts []string
		for _, p := range d.Changed {
			parts = append(parts, fmt.Sprintf("%s %v%v%v", p.ID.Port, p.LoadBalancers, p.Sources, p.Endpoints(p.Cluster)))
		}
		for id := range d.Removed {
			parts = append(parts, "without "+id.Port)
		}
		slices.Sort(parts)
		return strings.Join(parts, "; ")
	}
	one, two := []string{"http"}, []string{"http", "more"}
	a, b := "198.51.100.1", "198.51.100.2"
	for _, tt := range []struct {
		name          string
		before, after func(tr *Tracker)
		want          string
	}{
		{"an endpoint", balanced(one, []string{a}, nil, "10.0.0.1", "10.0.0.2"), balanced(one, []string{a}, nil, "10.0.0.2",
			"10.0.0.3"),
			"http [198.51.100.1][][10.0.0.2:8080 10.0.0.3:8080]"},
		{"all endpoints for others", balanced(one, []string{a}, nil, "10.0.0.1"), balanced(one, []string{a}, nil, "10.0.0.2"),
			"http [198.51.100.1][][10.0.0.2:8080]"},
		{"an address", balanced(one, []string{a}, nil, "10.0.0.1"), balanced(one, []string{b}, nil, "10.0.0.1"),
			"http [][][10.0.0.1:8080]"},
		{"a port", balanced(two, []string{a}, nil, "10.0.0.1"), balanced(one, []string{a, b}, nil, "10.0.0.1"),
			"without more"},
		{"a range", balanced(one, []string{a}, []string{"192.0.2.0/24", "203.0.113.0/24"}, "10.0.0.1"),
			balanced(one, []string{a}, []string{"192.0.2.0/25", "198.18.0.0/15"}, "10.0.0.1"),
			"http [198.51.100.1][192.0.2.0/25][10.0.0.1:8080]"},
		{"all clients, then a range", balanced(one, []string{a}, nil, "10.0.0.1"),
			balanced(one, []string{a}, []string{"192.0.2.0/24"}, "10.0.0.1"),
			"http [198.51.100.1][192.0.2.0/24][10.0.0.1:8080]"},
		{"the Service", balanced(one, []string{a}, nil, "10.0.0.1"), func(tr *Tracker) { tr.DeleteService("shop", "web") },
			"without http"},
		{"the Service for another one of its name", balanced(one, []string{a}, nil, "10.0.0.1"), func(tr *Tracker) {
			must(t, tr.SetService(newService(func(s *corev1.Service) { s.UID = "another" })))
		}, "without http"},
		{"nothing", balanced(one, []string{a}, nil, "10.0.0.1"), balanced(two, []string{a, b}, nil, "10.0.0.1", "10.0.0.2"),
			""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := started
			tr := newStopped(&now, Config{}, tt.before)
			tr.Charge("shop", time.Hour)
			tt.after(tr)
			d := tr.Take()
			if got := show(d); got != tt.want {
				t.Errorf("handed out %q, want %q", got, tt.want)
			}
			if d := tr.Take(); !d.Empty() {
				t.Errorf("handed out again: %q", show(d))
			}
			now = now.Add(2 * shareOfTime * time.Hour)
			tr.Take()
			fresh := newStopped(&now, Config{}, nil)
			tt.before(fresh)
			tt.after(fresh)
			want := Delta{}
			for name, e := range fresh.entries {
				want.replace(nil, fresh.resolve(e))
				if got := tr.entries[name]; got != nil && !slices.EqualFunc(got.out, fresh.resolve(e), (*ServicePort).Equal) {
					t.Errorf("after the wait: %v, want %v", got.out[0], want.Changed)
				}
			}
		})
	}
}

// TestReduceKeepsCommonPart: what reduce leaves is a part of both, and reducing again changes nothing.
func TestReduceKeepsCommonPart(t *testing.T) {
	prefixes := func(texts ...string) (list []netip.Prefix) {
		for _, text := range texts {
			list = append(list, netip.MustParsePrefix(text))
		}
		return list
	}
	for _, tt := range []struct{ a, b, want []netip.Prefix }{
		{prefixes("10.0.0.0/8"), prefixes("10.1.0.0/16", "10.3.0.0/16", "11.0.0.0/8"),
			prefixes("10.1.0.0/16", "10.3.0.0/16")},
		{prefixes("10.1.0.0/16", "10.2.0.0/16"), prefixes("10.1.0.0/16", "10.2.0.0/24"),
			prefixes("10.1.0.0/16", "10.2.0.0/24")},
		{prefixes("10.0.0.0/8"), prefixes("11.0.0.0/8"), nil},
		{prefixes("0.0.0.0/0"), prefixes("11.0.0.0/8"), prefixes("11.0.0.0/8")},
	} {
		for _, pair := range [][2][]netip.Prefix{{tt.a, tt.b}, {tt.b, tt.a}} {
			if got := commonPrefixes(pair[0], pair[1]); !slices.Equal(got, tt.want) {
				t.Errorf("%v and %v have %v in common, want %v", pair[0], pair[1], got, tt.want)
			}
		}
	}
}

// TestQuota: the oldest Services of a namespace are served until its quota is used up; slot tables go first, and
// other namespaces are not concerned.
func TestQuota(t *testing.T) {
	now := started
	const each = frontendElements + servedElements + 1 // a cluster IP and an endpoint
	tr := newStopped(&now, Config{Quota: 3 * each}, nil)
	add := func(namespace, name string, n int, endpoints int, edit ...func(*corev1.Service)) {
		t.Helper()
		must(t, tr.SetService(newService(append(edit, named(namespace, name, n))...)))
		slice := newSlice(name + "-1")
		slice.Namespace, slice.Labels["kubernetes.io/service-name"] = namespace, name
		for i := range endpoints {
			slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
		}
		must(t, tr.SetSlice(slice))
	}
	served := make(map[string]*ServicePort)
	expect := func(when string, names, refused string, unserved int) {
		t.Helper()
		d := tr.Take()
		for _, p := range d.Changed {
			served[p.ID.Namespace+"/"+p.ID.Service] = p
		}
		for id := range d.Removed {
			delete(served, id.Namespace+"/"+id.Service)
		}
		var told []string
		for _, r := range d.OverQuota {
			told = append(told, r.Namespace+"/"+r.Name)
		}
		if n := len(tr.Unserved(100)); n != unserved {
			t.Errorf("%s: Unserved lists %d, want %d", when, n, unserved)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(served)), " "); got != names || strings.Join(told, " ") != refused ||
			d.Unserved != unserved {
			t.Errorf("%s: served %q, refused %q, %d in all; want %q, %q, %d", when, got, told, d.Unserved, names,
				refused, unserved)
		}
	}
	add("shop", "a", 2, 1)
	add("shop", "b", 3, 1)
	add("shop", "c", 4, 1)
	expect("three fit", "shop/a shop/b shop/c", "", 0)
	add("shop", "d", 5, 1)
	expect("a younger one takes nothing", "shop/a shop/b shop/c", "shop/d", 1)
	add("other", "x", 6, 1)
	expect("another namespace", "other/x shop/a shop/b shop/c", "", 1)
	tr.DeleteService("shop", "b")
	tr.DeleteSlice("shop", "b-1")
	expect("one goes", "other/x shop/a shop/c shop/d", "", 0)
	add("shop", "e", 1, 1)
	expect("an older one", "other/x shop/a shop/c shop/e", "shop/d", 1)
	add("shop", "a", 2, 1+each)
	expect("one grows", "other/x shop/a shop/e", "shop/c", 2)
	add("shop", "e", 1, 100)
	expect("the oldest asks for too much", "other/x shop/a shop/c", "shop/e", 2)
	add("other", "x", 6, 2, annotated("lb-algorithm", "maglev"))
	expect("a table of 503 slots", "other/x shop/a shop/c", "", 2)
	if p := served["other/x"]; !p.WithoutSlots || len(p.Cluster) != 2 {
		t.Errorf("a Service whose slots do not fit is served as %+v", p)
	}
}

// TestFewAreReportedOverQuota: when many Services do not fit any more, a delta names a few of each namespace.
func TestFewAreReportedOverQuota(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{Quota: 100 * frontendElements}, nil)
	for i := range 101 {
		must(t, tr.SetService(newService(named("loud", fmt.Sprint("s", i), 1+i))))
	}
	must(t, tr.SetService(newService(named("shop", "web", 1), func(s *corev1.Service) {
		for i := range 100 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprint("198.51.100.", i))
		}
	})))
	settle(tr)
	must(t, tr.SetService(newService(named("loud", "old", 0), func(s *corev1.Service) {
		for i := range 99 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprint("203.0.113.", i))
		}
	})))
	d := tr.Take()
	if len(d.OverQuota) != mostOverQuota || d.Unserved != 102 || len(tr.Unserved(200)) != 102 {
		t.Errorf("a delta names %d of %d unserved Services, Unserved %d", len(d.OverQuota), d.Unserved,
			len(tr.Unserved(200)))
	}
}

// TestQuotaBesideSlicesWithoutService: the oldest Service is served, whatever EndpointSlices there are that belong to
// no Service of ours, such as those of another proxy's Services.
func TestQuotaBesideSlicesWithoutService(t *testing.T) {
	now := started
	for range 50 { // the order of maps differs
		tr := newStopped(&now, Config{Quota: frontendElements}, nil)
		for age, name := range []string{"g", "e", "c", "a"} { // from the oldest
			must(t, tr.SetService(newService(named("shop", name, age))))
		}
		for _, name := range []string{"b", "d", "f"} {
			slice := newSlice(name + "-1")
			slice.Namespace, slice.Labels["kubernetes.io/service-name"] = "shop", name
			must(t, tr.SetSlice(slice))
		}
		d := tr.Take()
		for _, p := range d.Changed {
			if p.ID.Service != "g" {
				t.Fatalf("%s is served, but g is older", p.ID.Service)
			}
		}
		if len(d.Changed) != 1 || d.Unserved != 3 {
			t.Fatalf("%d served, %d over the quota; want 1 and 3", len(d.Changed), d.Unserved)
		}
	}
}

// TestDemands is the arithmetic of docs/limits.md: what a Service asks for, in elements.
func TestDemands(t *testing.T) {
	ports := func(n int) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for i := range n - 1 {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP,
					Port: int32(81 + i)})
			}
		}
	}
	for _, tt := range []struct {
		name              string
		edit              func(*corev1.Service)
		endpoints, slices int
		want              int
	}{
		{"a frontend and ten endpoints", ports(1), 10, 1, 8 + 4 + 10},
		{"a second slice that lists them", ports(1), 10, 2, 8 + 2*4 + 20},
		{"a second slice, both without endpoints", ports(1), 0, 2, 8 + 2*4},
		{"a node port and a load balancer", func(s *corev1.Service) {
			balanced("198.51.100.1")(s)
			s.Spec.Ports[0].NodePort = 30080
		}, 0, 1, 3*8 + 4},
		{"30 ports at 701 addresses", func(s *corev1.Service) {
			ports(30)(s)
			for i := range 700 {
				s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("198.51.%d.%d", 100+i/100, 1+i%100))
			}
		}, 0, 1, 20_000*8 + 1_030*80 + 30*4},
		{"source ranges", func(s *corev1.Service) {
			balanced("198.51.100.1")(s)
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "203.0.113.0/24"}
		}, 0, 1, 2*8 + 4 + 2},
		{"session affinity", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }, 10, 1,
			8 + 4 + 10 + 10 + 40},
		{"a slot table of 21 endpoints", annotated("lb-algorithm", "maglev"), 21, 1, 8 + 4 + 21 + 4001},
		{"10 ports with 100 endpoints", ports(10), 100, 1, 10*(8+4) + 10*100},
		{"a policy Local: two slot tables", func(s *corev1.Service) {
			annotated("lb-algorithm", "maglev")(s)
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}, 21, 1, 8 + 4 + 21 + 2*4001},
		{"session affinity and a policy Local", func(s *corev1.Service) {
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		}, 10, 1, 8 + 4 + 10 + 2*10 + 40},
		{"16 ports with 63 endpoints", ports(16), 63, 1, 16*(8+4) + 16*63},
		{"16 ports with 64 endpoints", ports(16), 64, 1, 16*(8+4+2) + 64},
		{"some of them UDP", func(s *corev1.Service) {
			ports(16)(s)
			s.Spec.Ports[1].Protocol = corev1.ProtocolUDP
		}, 64, 1, 16*(8+4+2) + 2*64},
		{"some of them with a node port", func(s *corev1.Service) {
			ports(16)(s)
			s.Spec.Type, s.Spec.Ports[1].NodePort = corev1.ServiceTypeNodePort, 30080
		}, 64, 1, 16*(8+4+2) + 8 + 2*64},
		{"500 ports with the same 500 endpoints", ports(500), 500, 1, 7500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr, service := newTracker(Config{Quota: 1 << 20}), newService(tt.edit)
			must(t, tr.SetService(service))
			for n := range tt.slices {
				slice := newSlice(fmt.Sprint("web-", n))
				slice.Ports = nil
				for _, p := range service.Spec.Ports {
					slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Port: new(8000 + p.Port),
						Protocol: new(p.Protocol)})
				}
				for i := range tt.endpoints {
					slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
				}
				must(t, tr.SetSlice(slice))
			}
			tr.Take()
			if got := tr.namespaces["shop"].demand; got != tt.want {
				t.Errorf("%d elements, want %d", got, tt.want)
			}
		})
	}
}

// TestDemandOfWeights: what an endpoint counts as if two EndpointSlices differ in weight.
func TestDemandOfWeights(t *testing.T) {
	for _, tt := range []struct{ endpoints, places int }{{2, 2 * 64}, {32, 32 * 64}, {257, 257 * 7}, {512, 2048},
		{513, 2048}} {
		tr := newTracker(Config{Quota: 1 << 20})
		must(t, tr.SetService(newService()))
		light, heavy := weighing(newSlice("web-1", newEndpoint("10.1.0.1")), "1"), weighing(newSlice("web-2"), "2")
		for i := range tt.endpoints - 1 {
			heavy.Endpoints = append(heavy.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
		}
		must(t, tr.SetSlice(light))
		must(t, tr.SetSlice(heavy))
		tr.Take()
		want := 8 + 2*4 + tt.endpoints + tt.places
		if tt.endpoints >= jointFrom {
			want += 2 // as for ports that share their lists
		}
		if got := tr.namespaces["shop"].demand; got != want {
			t.Errorf("%d endpoints are %d elements, want %d", tt.endpoints, got, want)
		}
	}
}

// TestDemandOfLongLists: each endpoint beyond the first 10,000 of a list counts as ten.
func TestDemandOfLongLists(t *testing.T) {
	for _, tt := range []struct{ endpoints, more int }{{longList, 0}, {longList + 3, 3 * 9}} {
		tr := newTracker(Config{Quota: 1 << 20})
		must(t, tr.SetService(newService()))
		for first := 0; first < tt.endpoints; first += 1000 {
			slice := newSlice(fmt.Sprintf("web-%d", first/1000))
			for i := first; i < min(first+1000, tt.endpoints); i++ {
				slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.%d.%d.%d", 1+i/50_000, i/250%200, 1+i%250)))
			}
			must(t, tr.SetSlice(slice))
		}
		tr.Take()
		want := 8 + (tt.endpoints+999)/1000*servedElements + tt.endpoints + 2 + tt.more
		if got := tr.namespaces["shop"].demand; got != want {
			t.Errorf("%d endpoints are %d elements, want %d", tt.endpoints, got, want)
		}
	}
}

// TestWritesOfWeights: where the frontends of a port do not share a short list with weights, each of them counts.
func TestWritesOfWeights(t *testing.T) {
	list := []netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")}
	p := &ServicePort{PortSpec: &PortSpec{}, Lists: &Lists{Cluster: list, ClusterWeights: []uint16{1, 2}}}
	for i := range 300 {
		p.ExternalIPs = append(p.ExternalIPs, netip.AddrFrom4([4]byte{192, 0, byte(i / 250), byte(i % 250)}))
	}
	if n := p.size(); n < 301*(1+3) {
		t.Errorf("a port of 301 frontends with 3 places each counts as %d elements", n)
	}
}

// TestWritesOfNodePorts: a node port that comes or goes counts with its list of endpoints.
func TestWritesOfNodePorts(t *testing.T) {
	p := &ServicePort{PortSpec: &PortSpec{}, Lists: &Lists{}}
	for i := range 17 {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80))
	}
	q := p.With(func(spec *PortSpec) { spec.NodePort = 30080 })
	if comes, goes := writes(p, q), writes(q, p); comes < 18 || goes < 18 {
		t.Errorf("a node port that comes is %d elements, one that goes %d", comes, goes)
	}
}

// TestFewEndpointsReplaceOthers: while a namespace waits, up to 16 endpoints of a port come for those that leave.
func TestFewEndpointsReplaceOthers(t *testing.T) {
	for _, n := range []int{replacements, replacements + 4} {
		now := started
		slice := func(first int) *discoveryv1.EndpointSlice {
			s := newSlice("web-1")
			for i := range n {
				s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", first, 1+i)))
			}
			return s
		}
		tr := newStopped(&now, Config{}, func(tr *Tracker) {
			must(t, tr.SetService(newService()))
			must(t, tr.SetSlice(slice(0)))
		})
		tr.Charge("shop", time.Hour)
		must(t, tr.SetSlice(slice(1)))
		if p := only(t, tr.Take()); len(p.Cluster) != replacements || p.Cluster[0].Addr().As4()[2] != 1 {
			t.Errorf("of %d endpoints that others replace, %v are there", n, p.Cluster)
		}
	}
}

// TestSharedListsStayWhileNamespaceWaits: where ports share their endpoints, one endpoint that gets other ports leaves
// their list at once. It comes back with a list for each port, when the namespace has its turn. If all get other ports,
// or the others leave, it comes at once.
func TestSharedListsStayWhileNamespaceWaits(t *testing.T) {
	const ports, endpoints = 40, 100
	slice := func(name string, from, to int, targets int32) *discoveryv1.EndpointSlice {
		s := newSlice(name)
		s.Ports = nil
		for i := range ports {
			name, protocol, number := fmt.Sprint("p", i), corev1.ProtocolTCP, targets+int32(i)
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
		}
		for i := from; i < to; i++ {
			s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprint("10.0.0.", 1+i)))
		}
		return s
	}
	most, few := slice("web-1", 0, endpoints, 2000), slice("web-2", endpoints, endpoints+1, 2000)
	moved := slice("web-2", endpoints, endpoints+1, 3000)
	for _, tt := range []struct {
		name string
		next *discoveryv1.EndpointSlice // after moved
		want int                        // endpoints while the namespace waits
	}{
		{"it gets the usual ones again", few, endpoints},
		{"all get other ports", slice("web-1", 0, endpoints, 3000), endpoints},
		{"the others leave", slice("web-1", 0, 0, 2000), 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := started
			objects := func(tr *Tracker) {
				must(t, tr.SetService(newService(manyPorts)))
				must(t, tr.SetSlice(most))
				must(t, tr.SetSlice(few))
			}
			tr := newStopped(&now, Config{}, objects)
			served := make(map[PortID]*ServicePort)
			change := func(slice *discoveryv1.EndpointSlice, want int) {
				t.Helper()
				must(t, tr.SetSlice(slice))
				for d := tr.Take(); ; d = tr.Take() {
					maps.Copy(served, byPort(d.Changed))
					if d.Due.IsZero() || d.Due.After(now) {
						break
					}
				}
				var first *ServicePort
				for id, p := range served {
					if first == nil {
						first = p
					}
					if len(p.Cluster) != want || want == endpoints && (p.TargetPort == 0 || p.Lists != first.Lists) {
						t.Errorf("%s has %d endpoints at port %d, want %d in the list of all ports", id, len(p.Cluster),
							p.TargetPort, want)
					}
				}
				if len(served) != ports {
					t.Errorf("%d ports have changed, want %d", len(served), ports)
				}
			}
			tr.Charge("shop", time.Minute)
			change(moved, endpoints)
			change(tt.next, tt.want)
			now = now.Add(time.Hour)
			for d := tr.Take(); !d.Due.IsZero() || len(d.Changed) > 0; d = tr.Take() {
				maps.Copy(served, byPort(d.Changed))
			}
			fresh := newStopped(&now, Config{}, nil)
			objects(fresh)
			must(t, fresh.SetSlice(moved))
			must(t, fresh.SetSlice(tt.next))
			fresh.TakeAll()
			for _, want := range fresh.Take().Changed {
				if got := served[want.ID]; !got.Equal(want) {
					t.Errorf("%s has %d endpoints in the end, want %d", want.ID, len(got.Cluster), len(want.Cluster))
				}
			}
		})
	}
}

// TestWaitingServicesAreNotWorkedOutAgain: a Service whose namespace waits, and that has nothing to give up, costs
// nothing at the changes of others.
func TestWaitingServicesAreNotWorkedOutAgain(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts)))
		must(t, tr.SetSlice(withEndpoints(100)))
	})
	tr.Charge("shop", time.Hour)
	must(t, tr.SetSlice(withEndpoints(200)))
	tr.Take()
	if n := testing.AllocsPerRun(10, func() { tr.Take() }); n > 10 {
		t.Errorf("a Take makes %v allocations for a Service that waits", n)
	}
	now = now.Add(2 * shareOfTime * time.Hour)
	if d := tr.Take(); len(d.Changed) != 40 {
		t.Errorf("%d of 40 ports get their endpoints when the namespace has paid", len(d.Changed))
	}
}

// TestWaitingPortsAreNotWorkedOutAtEachTurn: a Service changes port by port, whenever its namespace has paid. While the
// namespace waits again, what is left of the change costs nothing.
func TestWaitingPortsAreNotWorkedOutAtEachTurn(t *testing.T) {
	now := started
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts)))
		must(t, tr.SetSlice(withEndpoints(100)))
	})
	tr.Charge("shop", time.Hour)
	must(t, tr.SetService(newService(manyPorts, sticky)))
	tr.Take() // it has nothing to give up
	for turn := range 3 {
		now = now.Add(2 * shareOfTime * time.Hour)
		if d := tr.Take(); len(d.Changed) == 0 || d.Due.IsZero() || d.Due.After(now) {
			t.Fatalf("turn %d: %d ports change, and the next are due at %v", turn, len(d.Changed), d.Due)
		}
		tr.Charge("shop", time.Hour)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		d := tr.Take()
		runtime.ReadMemStats(&after)
		if n := after.Mallocs - before.Mallocs; n > 30 || !d.Due.After(now) { // one for each port that waits would be more
			t.Errorf("turn %d: a Take makes %d allocations for a Service that waits until %v", turn, n, d.Due)
		}
	}
}

// TestManyPortsWaitForTheirFirstEndpoint: ports whose Service waits for its first endpoint are not handed out, and
// neither are those that a step has left no room for. A further step does not work them out again.
func TestManyPortsWaitForTheirFirstEndpoint(t *testing.T) {
	defer func(most int) { mostWork = most }(mostWork)
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts)))
		must(t, tr.SetSlice(withEndpoints(0)))
	})
	tr.Charge("shop", time.Hour)
	must(t, tr.SetSlice(withEndpoints(1)))
	if d := tr.Take(); len(d.Changed) > 0 {
		t.Errorf("%d of 40 ports change while their endpoint waits", len(d.Changed))
	}
	now = now.Add(2 * shareOfTime * time.Hour)
	mostWork = 10
	first := len(tr.Take().Changed)
	if first == 0 || first > 10 {
		t.Fatalf("%d of 40 ports are handed out in a step of 10 elements", first)
	}
	if n := testing.AllocsPerRun(1, func() { tr.Take() }); n > 40 { // one of each port that waits would be more
		t.Errorf("a Take makes %v allocations for ports of which most wait", n)
	}
}

// TestManyPortsLoseTheLastEndpointInSteps: when many ports that share their endpoints get the first one or lose the
// last one, all their frontends change, in steps.
func TestManyPortsLoseTheLastEndpointInSteps(t *testing.T) {
	defer func(most, joint int) { mostWork, jointFrom = most, joint }(mostWork, jointFrom)
	mostWork, jointFrom = 30, 40
	now := started
	slice := func(endpoints int) *discoveryv1.EndpointSlice {
		s := withEndpoints(3)
		s.Endpoints = s.Endpoints[:endpoints]
		return s
	}
	tr := newStopped(&now, Config{}, nil)
	must(t, tr.SetService(newService(manyPorts)))
	must(t, tr.SetSlice(slice(3)))
	settle(tr)
	for _, endpoints := range []int{0, 3} {
		must(t, tr.SetSlice(slice(endpoints)))
		is := make(map[PortID]bool)
		for steps := 0; len(is) < 40; steps++ {
			n := 0
			for _, p := range tr.Take().Changed {
				if p.hasEndpoints() == (endpoints > 0) && !is[p.ID] {
					n, is[p.ID] = n+1, true
				}
			}
			if n > mostWork/2+1 || steps > 100 {
				t.Fatalf("%d of 40 ports, which have two frontends each, get %d endpoints in step %d", n, endpoints, steps)
			}
		}
	}
}

// TestAllEndpointsLeaveWhateverWaits: endpoints that leave, or get another port, are gone after a few steps, also while
// the namespace waits; then other endpoints are there, whatever else of the Service waits.
func TestAllEndpointsLeaveWhateverWaits(t *testing.T) {
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	none := func(*corev1.Service) {}
	for _, tt := range []struct {
		name       string
		base, edit func(*corev1.Service)
		target     int32 // of the endpoints that come
		steps      int
	}{
		{"a rollout", none, none, 8080, 5},
		{"a rollout, sticky", sticky, none, 8080, 50},
		{"an annotation", none, annotated("ping", "true"), 8080, 50},
		{"an annotation, sticky", sticky, annotated("ping", "true"), 8080, 50},
		{"a policy", none, internalLocal, 8080, 50},
		{"target ports", none, none, 9090, 50},
		{"target ports, sticky", sticky, none, 9090, 50},
	} {
		now := started
		tr := newStopped(&now, Config{}, nil)
		must(t, tr.SetService(newService(manyPorts, tt.base)))
		must(t, tr.SetSlice(withEndpoints(100)))
		settle(tr)
		tr.Charge("shop", time.Minute)
		must(t, tr.SetService(newService(manyPorts, tt.base, tt.edit)))
		slice := withEndpoints(100)
		for i := range slice.Endpoints {
			slice.Endpoints[i] = newEndpoint(fmt.Sprintf("10.1.0.%d node=node-a", 1+i))
		}
		for i := range slice.Ports {
			slice.Ports[i].Port = &tt.target
		}
		must(t, tr.SetSlice(slice))
		steps := 0
		for d := tr.Take(); !d.Due.IsZero() && !d.Due.After(now); d = tr.Take() {
			if steps++; steps > tt.steps {
				t.Fatalf("%s: the old endpoints are there after %d steps", tt.name, steps)
			}
		}
		for _, p := range tr.entries[objectName{"shop", "web"}].out {
			list := p.Endpoints(slices.Concat(p.Cluster, p.Local))
			if len(list) == 0 && tt.target == 8080 {
				t.Errorf("%s: port %s has no endpoint", tt.name, p.ID.Port)
			}
			for _, ep := range list {
				if ep.Addr().As4()[1] != 1 {
					t.Fatalf("%s: port %s still has %v", tt.name, p.ID.Port, ep)
				}
			}
		}
	}
}

// TestSharedEndpointsAllLeaveInFewSteps: ports that share their endpoints lose all of them together.
func TestSharedEndpointsAllLeaveInFewSteps(t *testing.T) {
	for most, edit := range map[int]func(*corev1.Service){
		5:  func(*corev1.Service) {},
		60: func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP },
	} {
		for _, owing := range []bool{false, true} {
			now, steps := started, 0
			tr := newStopped(&now, Config{}, nil)
			must(t, tr.SetService(newService(manyPorts, edit)))
			must(t, tr.SetSlice(withEndpoints(900)))
			settle(tr)
			must(t, tr.SetSlice(withEndpoints(0)))
			if owing {
				tr.Charge("shop", time.Minute)
			}
			for d := tr.Take(); !d.Due.IsZero() && !d.Due.After(now); d = tr.Take() {
				if steps++; steps > most {
					t.Fatalf("owing %v: 900 endpoints have not left 40 ports after %d steps", owing, steps)
				}
			}
		}
	}
}

// TestStickyPortsGetOtherNumbers: ports that share a list and have session affinity get other endpoints, and other
// numbers or another UID.
func TestStickyPortsGetOtherNumbers(t *testing.T) {
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	for name, edit := range map[string]func(*corev1.Service){
		"numbers": func(s *corev1.Service) {
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].Port += 1000
			}
		},
		"a UID": func(s *corev1.Service) { s.UID = "another" },
	} {
		now := started
		tr := newStopped(&now, Config{}, nil)
		must(t, tr.SetService(newService(manyPorts, sticky)))
		must(t, tr.SetSlice(withEndpoints(100)))
		settle(tr)
		must(t, tr.SetService(newService(manyPorts, sticky, edit)))
		must(t, tr.SetSlice(withEndpoints(90)))
		settle(tr)
		want := newService(manyPorts, edit)
		for i, p := range tr.entries[objectName{"shop", "web"}].out {
			if p.UID != string(want.UID) || i == 0 && int32(p.Port) != want.Spec.Ports[0].Port || len(p.Cluster) != 90 {
				t.Errorf("%s: port %s has the number %d, the UID %s and %d endpoints", name, p.ID.Port, p.Port, p.UID,
					len(p.Cluster))
			}
		}
	}
}

// TestPolicyComesWithItsList: a port whose policy becomes Local always has an endpoint, however long its lists are.
func TestPolicyComesWithItsList(t *testing.T) {
	for _, n := range []int{600, 1200} {
		now := started
		edits := []func(*corev1.Service){func(s *corev1.Service) {
			if n == 600 {
				s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			}
		}}
		tr := newStopped(&now, Config{}, nil)
		slice := newSlice("web-1")
		for i := range n {
			slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
		}
		slice.Endpoints[n/2].NodeName = new("node-a")
		must(t, tr.SetService(newService(edits...)))
		must(t, tr.SetSlice(slice))
		settle(tr)
		must(t, tr.SetService(newService(append(edits, internalLocal)...)))
		for d := tr.Take(); len(d.Changed) > 0; d = tr.Take() {
			for _, p := range d.Changed {
				if p.InternalLocal && len(p.Local) == 0 || !p.InternalLocal && len(p.Cluster) == 0 {
					t.Errorf("%d endpoints: the policy Local is %v, with %d and %d endpoints", n, p.InternalLocal, len(p.Cluster),
						len(p.Local))
				}
			}
		}
	}
}

// TestMostAddresses: of each list of addresses a Service is served at the first thousand, and an event names the next
// one.
func TestMostAddresses(t *testing.T) {
	tr := newTracker(Config{Quota: 1 << 20})
	service := newService(func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for i := range mostAddresses + 2 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("192.0.%d.%d", i/250, 1+i%250))
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: fmt.Sprintf("203.0.%d.%d", i/250, 1+i%250)})
		}
	})
	err := tr.SetService(service)
	for _, field := range []string{"spec.externalIPs[1000]", "status.loadBalancer.ingress[1000]"} {
		if err == nil || strings.Count(err.Error(), field+": only the first 1000 addresses") != 1 {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
	must(t, tr.SetSlice(newSlice("web-1")))
	if p := only(t, tr.Take()); len(p.ExternalIPs) != mostAddresses || len(p.LoadBalancers) != mostAddresses {
		t.Errorf("served at %d external IPs and %d addresses of a load balancer", len(p.ExternalIPs), len(p.LoadBalancers))
	}
}

// TestPortsThatWaitShareLists: ports with session affinity that wait for another policy lose an endpoint, and go on to
// share their lists.
func TestPortsThatWaitShareLists(t *testing.T) {
	now := started
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts, sticky)))
		must(t, tr.SetSlice(withEndpoints(100)))
	})
	tr.Charge("shop", time.Minute)
	must(t, tr.SetService(newService(manyPorts, sticky, func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	})))
	must(t, tr.SetSlice(withEndpoints(99)))
	d := tr.Take()
	for _, p := range d.Changed {
		if p.InternalLocal || len(p.Cluster) != 99 || p.Lists != d.Changed[0].Lists {
			t.Fatalf("%v has %d endpoints, policy Local %v, lists of its own %v", p.ID, len(p.Cluster), p.InternalLocal,
				p.Lists != d.Changed[0].Lists)
		}
	}
	if len(d.Changed) != 40 {
		t.Errorf("%d ports change", len(d.Changed))
	}
}

// TestSharedListsCountOnce: what ports of a Service share in the tables counts once for them, also with session
// affinity.
func TestSharedListsCountOnce(t *testing.T) {
	const ports, endpoints = 40, 200
	sticky := func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	local := func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal) }
	for _, edits := range [][]func(*corev1.Service){{manyPorts}, {manyPorts, sticky}, {manyPorts, sticky, local}} {
		now := started
		tr := newStopped(&now, Config{Quota: 1 << 20}, nil)
		must(t, tr.SetService(newService(edits...)))
		must(t, tr.SetSlice(withEndpoints(endpoints)))
		tr.Take()
		demand := tr.namespaces["shop"].demand
		if most := ports*(2*frontendElements+affinityElements+servedElements+2) + 3*endpoints; demand == 0 || demand > most {
			t.Errorf("%d edits: the demand is %d, want at most %d", len(edits), demand, most)
		}
	}
}

// TestNamespacesAreForgotten: what is known of a namespace goes with its last object, when its work is paid off.
func TestNamespacesAreForgotten(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, nil)
	for i := range 100 {
		name := fmt.Sprint("ns", i)
		must(t, tr.SetService(newService(named(name, "web", i))))
		tr.Take()
		tr.Charge(name, time.Second)
		tr.DeleteService(name, "web")
		tr.Take()
		now = now.Add(2 * shareOfTime * time.Second)
	}
	if n := len(tr.namespaces); n > 2 || tr.pending() {
		t.Errorf("%d namespaces are known", n)
	}
}

// manyPorts gives a Service 40 ports, and an address of a load balancer.
func manyPorts(s *corev1.Service) {
	s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeLoadBalancer, nil
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
	for i := range 40 {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{
			Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: int32(80 + i),
		})
	}
}

// settle takes until nothing is left.
func settle(tr *Tracker) {
	for d := tr.Take(); len(d.Changed) > 0; d = tr.Take() {
	}
}

// withEndpoints returns a slice that has so many endpoints for each port of a Service with manyPorts.
func withEndpoints(endpoints int) *discoveryv1.EndpointSlice {
	s := newSlice("web-1")
	s.Ports = nil
	for i := range 40 {
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Protocol: new(corev1.ProtocolTCP),
			Port: new(int32(8080))})
	}
	for i := range endpoints {
		s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
	}
	return s
}

// TestDeletionLeavesTimeForOthers: while a large Service is removed, a neighbour's change comes with the next Take, and
// all ports of the large Service give way to others from the first Take on.
func TestDeletionLeavesTimeForOthers(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts)))
		must(t, tr.SetSlice(withEndpoints(6000)))
	})
	tr.Charge("shop", time.Millisecond)
	tr.DeleteService("shop", "web")
	must(t, tr.SetService(newService(named("other", "web", 1))))
	d := tr.Take()
	neighbour := false
	for _, p := range d.Changed {
		neighbour = neighbour || p.ID.Namespace == "other"
	}
	if !d.Leaving[ServiceID{"shop", "web"}] {
		t.Error("a deleted Service does not give way")
	}
	if !neighbour {
		t.Error("a neighbour waits until a large Service is removed")
	}
	takes := 1
	for removed := len(d.Removed); removed < 40; takes++ {
		d = tr.Take()
		if removed += len(d.Removed); d.Empty() {
			t.Fatalf("%d of 40 ports are removed, and then no more", removed)
		}
	}
	if takes < 6 { // the ports share the endpoints
		t.Errorf("6,000 elements are removed in %d steps", takes)
	}
}

// TestDeletedServiceGoesOnce: a Service takes one step with each Take, however many slices go with it.
func TestDeletedServiceGoesOnce(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService()))
		must(t, tr.SetSlice(newSlice("web-1", newEndpoint("10.0.0.1"))))
		must(t, tr.SetSlice(newSlice("web-2", newEndpoint("10.0.0.2"))))
	})
	tr.DeleteService("shop", "web")
	tr.DeleteSlice("shop", "web-1")
	tr.DeleteSlice("shop", "web-2")
	if n := len(tr.removed); n != 1 {
		t.Errorf("the Service is to go %d times", n)
	}
}

// TestPortsWithoutEndpointsGoInSteps: the ports of a deleted Service without endpoints all give way to others at once,
// and go in steps.
func TestPortsWithoutEndpointsGoInSteps(t *testing.T) {
	defer func(most int) { mostWork = most }(mostWork)
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts, func(s *corev1.Service) {
			s.Spec.Type, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeClusterIP, nil
		})))
		must(t, tr.SetSlice(withEndpoints(0)))
	})
	mostWork = 20
	tr.DeleteService("shop", "web")
	d := tr.Take()
	if len(d.Removed) == 0 || len(d.Removed) > mostWork || len(d.Changed) > 0 || !d.Leaving[ServiceID{"shop", "web"}] {
		t.Errorf("the first step of 20 elements removes %d of 40 ports, %d change, %v give way", len(d.Removed),
			len(d.Changed), d.Leaving)
	}
	for removed := len(d.Removed); removed < 40; removed += len(d.Removed) {
		if d = tr.Take(); len(d.Removed) == 0 || len(d.Removed) > mostWork {
			t.Fatalf("after %d of 40 ports, %d are removed at once", removed, len(d.Removed))
		}
	}
}

// TestPortsWithoutEndpointsComeInSteps: a port whose elements do not fit into what is left of a step is not free.
func TestPortsWithoutEndpointsComeInSteps(t *testing.T) {
	defer func(most int) { mostWork = most }(mostWork)
	now := started
	tr := newStopped(&now, Config{}, nil)
	mostWork = 21 // ports of two elements leave one
	must(t, tr.SetService(newService(manyPorts, func(s *corev1.Service) {
		s.Spec.Type, s.Status.LoadBalancer.Ingress = corev1.ServiceTypeClusterIP, nil
	})))
	must(t, tr.SetSlice(withEndpoints(0)))
	for handedOut := 0; handedOut < 40; {
		n := len(tr.Take().Changed)
		if n == 0 || 2*n > mostWork+1 {
			t.Fatalf("after %d of 40 ports, a step of %d elements hands out %d", handedOut, mostWork, n)
		}
		handedOut += n
	}
}

// TestDeletedServicesGiveWayTogether: many large Services are deleted together. All give way to others with the next
// Take, which costs no more than their last step, and one of them that comes back gets all of its ports back.
func TestDeletedServicesGiveWayTogether(t *testing.T) {
	defer func(most int) { mostWork = most }(mostWork)
	now := started
	const large = 50
	name := func(i int) string { return fmt.Sprint("web-", i) }
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		for i := range large {
			must(t, tr.SetService(newService(named("shop", name(i), i), manyPorts)))
		}
	})
	back := tr.entries[objectName{"shop", name(large - 1)}].out
	mostWork = 20
	var have Delta
	for i := range large {
		tr.DeleteService("shop", name(i))
	}
	d := tr.Take()
	have.Merge(d)
	if len(d.Leaving) != large || len(d.Changed)+len(d.Removed) > mostWork {
		t.Errorf("of %d Services, %d give way; %d ports change, %d go", large, len(d.Leaving), len(d.Changed),
			len(d.Removed))
	}
	must(t, tr.SetService(newService(named("shop", name(large-1), large-1), manyPorts)))
	for d.Due != (time.Time{}) {
		if d = tr.Take(); len(d.Leaving) > 0 || len(d.Changed)+len(d.Removed) > 2*mostWork {
			t.Errorf("%v give way again; %d ports change, %d go", d.Leaving, len(d.Changed), len(d.Removed))
		}
		have.Merge(d)
	}
	comparePorts(t, byPort(have.Changed), byPort(back))
	if len(have.Removed) != (large-1)*len(back) {
		t.Errorf("%d ports have gone", len(have.Removed))
	}
}

// TestMergeLeaving: what a delta has changed of a Service gives way if a later one says so, and comes back if a still
// later one does.
func TestMergeLeaving(t *testing.T) {
	port := func(service string) *ServicePort {
		return &ServicePort{Lists: noLists, PortSpec: &PortSpec{ID: PortID{Namespace: "shop", Service: service},
			HealthCheckNodePort: 30000}}
	}
	web, other := port("web"), port("other")
	d := Delta{Changed: []*ServicePort{web, other}}
	d.Merge(Delta{Leaving: map[ServiceID]bool{{"shop", "web"}: true}})
	want := web.leaving()
	comparePorts(t, byPort(d.Changed), byPort([]*ServicePort{want, other}))
	if !d.Leaving[ServiceID{"shop", "web"}] || web.Leaving || want.HealthCheckNodePort != 0 {
		t.Errorf("leaving: %v; the port has become %+v", d.Leaving, web)
	}
	d.Merge(Delta{Changed: []*ServicePort{web}})
	comparePorts(t, byPort(d.Changed), byPort([]*ServicePort{web, other}))
}

// TestGivenUpAddressIsFreeAtOnce: a Service with many ports loses its load-balancer IP. The ports that a first step
// does not reach say that they give it up.
func TestGivenUpAddressIsFreeAtOnce(t *testing.T) {
	defer func(most int) { mostWork = most }(mostWork)
	mostWork = 20
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts)))
		must(t, tr.SetSlice(withEndpoints(1000)))
	})
	must(t, tr.SetService(newService(manyPorts, func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = nil })))
	address := []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	waiting := 0
	for _, p := range tr.Take().Changed {
		if !slices.Equal(p.LoadBalancers, p.GivenUp) || len(p.GivenUp) > 0 && !slices.Equal(p.GivenUp, address) {
			t.Errorf("port %s has %v and gives up %v", p.ID.Port, p.LoadBalancers, p.GivenUp)
		}
		waiting += len(p.GivenUp)
	}
	if waiting == 0 {
		t.Error("the first step removes the address from all ports: the Service is too small for this test")
	}
	for tr.Take().Due != (time.Time{}) {
		continue
	}
	for _, p := range tr.entries[objectName{"shop", "web"}].out {
		if len(p.LoadBalancers)+len(p.GivenUp) > 0 {
			t.Errorf("at the end port %s has %v and gives up %v", p.ID.Port, p.LoadBalancers, p.GivenUp)
		}
	}
}

// TestAffinityOfManyPortsComesInSteps: switching session affinity on rewrites the lists of all ports.
func TestAffinityOfManyPortsComesInSteps(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService(manyPorts)))
		must(t, tr.SetSlice(withEndpoints(100)))
	})
	must(t, tr.SetService(newService(manyPorts, func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	})))
	for done := 0; done < 40; {
		d := tr.Take()
		if done += len(d.Changed); len(d.Changed) == 0 || len(d.Changed) > mostWork/(2*100) {
			t.Fatalf("%d ports change in one step, after %d of 40", len(d.Changed), done)
		}
	}
}

// TestPolicyOfManyPortsComesInSteps: when a traffic policy changes and endpoints leave, ports give them up in
// steps. Those of lists that ports share count once.
func TestPolicyOfManyPortsComesInSteps(t *testing.T) {
	now, sticky := started, func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP }
	slice := withEndpoints(200)
	for i := range slice.Endpoints {
		slice.Endpoints[i].NodeName = new("node-a")
	}
	served := make(map[PortID]*ServicePort)
	tr := newStopped(&now, Config{}, nil)
	must(t, tr.SetService(newService(manyPorts, sticky)))
	must(t, tr.SetSlice(slice))
	for d := tr.Take(); len(d.Changed) > 0; d = tr.Take() {
		maps.Copy(served, byPort(d.Changed))
	}
	must(t, tr.SetService(newService(manyPorts, sticky, func(s *corev1.Service) {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	})))
	slice.Endpoints = slice.Endpoints[100:]
	must(t, tr.SetSlice(slice))
	for first := true; ; first = false {
		d, gone, known := tr.Take(), 0, make(map[[2]*Lists]bool)
		for _, p := range d.Changed {
			had := served[p.ID]
			served[p.ID] = p
			if lists := [2]*Lists{had.Lists, p.Lists}; !known[lists] {
				n, _ := differingEndpoints(had, p)
				gone, known[lists] = gone+n, true
			}
		}
		if gone > mostWork || first && gone == 0 {
			t.Fatalf("%d endpoints leave ports in one step", gone)
		}
		if d.Due.IsZero() {
			break
		}
	}
	for id, p := range served {
		if !p.InternalLocal || len(p.Local) != 100 {
			t.Errorf("port %s has %d endpoints on the node, policy Local %v", id.Port, len(p.Local), p.InternalLocal)
		}
	}
}

// TestChangesWithoutEffectComeInSteps: to work out what large Services want takes time, even if the tables stay.
func TestChangesWithoutEffectComeInSteps(t *testing.T) {
	defer func(most int) { mostWork = most }(mostWork)
	mostWork = 20
	const services = 10
	set := func(tr *Tracker, addr string) {
		for i := range services {
			must(t, tr.SetService(newService(manyPorts, named("shop", fmt.Sprint("s", i), i))))
			slice := withEndpoints(20)
			slice.Name, slice.Labels[discoveryv1.LabelServiceName] = fmt.Sprint("s", i), fmt.Sprint("s", i)
			slice.Endpoints = append(slice.Endpoints, newEndpoint(addr+" notready notserving"))
			must(t, tr.SetSlice(slice))
		}
	}
	now := started
	tr := newStopped(&now, Config{Quota: 1 << 20}, func(tr *Tracker) { set(tr, "10.9.0.1") })
	set(tr, "10.9.0.2")
	for left := services; left > 0; {
		d := tr.Take()
		worked := left - len(tr.namespaces["shop"].dirty)
		if left -= worked; worked == 0 || worked > services/2 || len(d.Changed) > 0 || (left > 0) != !d.Due.IsZero() {
			t.Fatalf("one Take works out %d Services, changes %d ports and is due at %v; %d Services are left",
				worked, len(d.Changed), d.Due, left)
		}
	}
}

// TestChangeWithoutEffectDoesNotWait: a Service of which nothing changes waits for nothing, whatever its namespace
// owes.
func TestChangeWithoutEffectDoesNotWait(t *testing.T) {
	now := started
	set := func(tr *Tracker, addr string) {
		must(t, tr.SetService(newService(manyPorts)))
		slice := withEndpoints(20)
		slice.Endpoints = append(slice.Endpoints, newEndpoint(addr+" notready notserving"))
		must(t, tr.SetSlice(slice))
	}
	tr := newStopped(&now, Config{}, func(tr *Tracker) { set(tr, "10.9.0.1") })
	tr.Charge("shop", time.Hour)
	set(tr, "10.9.0.2")
	if d := tr.Take(); len(d.Changed) != 0 || d.Waiting != 0 {
		t.Errorf("%d ports changed, %d Services wait", len(d.Changed), d.Waiting)
	}
	must(t, tr.SetSlice(withEndpoints(40)))
	if d := tr.Take(); d.Waiting != 1 {
		t.Errorf("%d Services wait for 20 endpoints more", d.Waiting)
	}
}

// TestModesOfManyAddressesChangeInSteps: the verdict of each frontend follows from the ipMode of its address.
func TestModesOfManyAddressesChangeInSteps(t *testing.T) {
	const addresses = 300
	balanced := func(mode *corev1.LoadBalancerIPMode) *corev1.Service {
		return newService(manyPorts, func(s *corev1.Service) {
			for i := range addresses {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress,
					corev1.LoadBalancerIngress{IP: fmt.Sprintf("203.0.%d.%d", i/250, 1+i%250), IPMode: mode})
			}
		})
	}
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(balanced(nil)))
		must(t, tr.SetSlice(newSlice("web-1")))
	})
	must(t, tr.SetService(balanced(new(ipModeRouter))))
	for done, ports := 0, len(tr.entries[objectName{"shop", "web"}].out); done < ports; {
		d := tr.Take()
		if len(d.Changed) == 0 || len(d.Changed) > mostWork/addresses+1 {
			t.Fatalf("%d ports get another mode of %d addresses in one step, after %d", len(d.Changed), addresses, done)
		}
		done += len(d.Changed)
	}
}

// TestSharedListsComeInSteps: ports that share their endpoints take each step together, a step is large by the
// endpoints and not by ports times endpoints, and the quota counts the endpoints once.
func TestSharedListsComeInSteps(t *testing.T) {
	now := started
	const ports, endpoints = 500, 500
	tr := newStopped(&now, Config{Quota: ports*(frontendElements+servedElements+2) + endpoints}, nil)
	service := newService()
	service.Spec.Ports = nil
	for i := range ports {
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i),
			Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
	}
	must(t, tr.SetService(service))
	served := make(map[PortID]*ServicePort)
	take := func(want int) {
		t.Helper()
		for steps := 1; ; steps++ {
			d := tr.Take()
			maps.Copy(served, byPort(d.Changed))
			for id := range d.Removed {
				delete(served, id)
			}
			var first *ServicePort
			for _, p := range served {
				if first == nil {
					first = p
				}
				if p.hasEndpoints() && first.hasEndpoints() && !SameMemory(p.Cluster, first.Cluster) {
					t.Fatalf("step %d: the lists of two ports have %d and %d endpoints, or memory of their own", steps,
						len(p.Cluster), len(first.Cluster))
				}
			}
			if d.Due.IsZero() {
				if steps > 4 || first != nil && len(first.Cluster) != want || d.Unserved > 0 {
					t.Errorf("after %d steps there are %d endpoints, want %d; %d Services are not served", steps,
						len(first.Cluster), want, d.Unserved)
				}
				return
			}
		}
	}
	slice := func(endpoints int, target func(port int) int32) {
		t.Helper()
		s := newSlice("web-1")
		s.Ports = nil
		for i := range ports {
			name, protocol, number := fmt.Sprint("p", i), corev1.ProtocolTCP, target(i)
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
		}
		for i := range endpoints {
			s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
		}
		must(t, tr.SetSlice(s))
	}
	each := func(port int) int32 { return int32(2000 + port) }
	take(0)
	slice(endpoints, each)
	take(endpoints)
	slice(endpoints-1, each)
	take(endpoints - 1)
	slice(endpoints-1, func(port int) int32 { return int32(3000 + port) }) // other ports of the same endpoints
	take(endpoints - 1)
	for id, p := range served {
		if want := p.Port + 2000; p.TargetPort != want {
			t.Errorf("%s goes to port %d, want %d", id, p.TargetPort, want)
		}
	}
	tr.DeleteService("shop", "web")
	take(0)
	if len(served) > 0 {
		t.Errorf("%d ports of the deleted Service are left", len(served))
	}
}

// TestNewPortLeavesSourceRanges: the ports of a Service have their source ranges in common, so that a port that comes
// in steps must not narrow those of another port, and one that waits must not widen them.
func TestNewPortLeavesSourceRanges(t *testing.T) {
	defer func(most int) { mostWork = most }(mostWork)
	mostWork = 20
	ranges := func(from, n int) func(*corev1.Service) {
		return func(s *corev1.Service) {
			for i := range n {
				s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, fmt.Sprintf("192.0.2.%d/32", from+2*i))
			}
		}
	}
	another := func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "a", Protocol: corev1.ProtocolTCP, Port: 1000},
			corev1.ServicePort{Name: "z", Protocol: corev1.ProtocolTCP, Port: 1001})
	}
	now := started
	for name, after := range map[string][]func(*corev1.Service){
		"new ports":            {balanced("198.51.100.1"), ranges(0, 100), another},
		"other ranges":         {balanced("198.51.100.1"), ranges(1, 100)},
		"more of both":         {balanced("198.51.100.1"), ranges(0, 120), another},
		"new ports, new range": {balanced("198.51.100.1"), ranges(1, 100), another},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newStopped(&now, Config{}, func(tr *Tracker) {
				must(t, tr.SetService(newService(balanced("198.51.100.1"), ranges(0, 100))))
			})
			old := tr.entries[objectName{"shop", "web"}].out[0].Sources
			must(t, tr.SetService(newService(after...)))
			fresh := newStopped(&now, Config{}, func(tr *Tracker) { must(t, tr.SetService(newService(after...))) })
			last := fresh.entries[objectName{"shop", "web"}].out[0].Sources
			both := commonPrefixes(old, last)
			for d := (Delta{Due: now}); !d.Due.IsZero(); {
				d = tr.Take()
				var all []netip.Prefix
				for i, p := range tr.entries[objectName{"shop", "web"}].out {
					if i > 0 && p.HasSourceRanges && !slices.Equal(p.Sources, all) {
						t.Fatalf("ports %v have the ranges %v and %v", p.ID, p.Sources, all)
					}
					all = p.Sources
				}
				if !slices.Equal(commonPrefixes(all, both), both) {
					t.Fatalf("%v meanwhile, but %v are in force before and after", all, both)
				}
			}
		})
	}
}

// longLists returns a Service with ports that have a list of 1,000 endpoints each: the ports of the endpoints differ
// between two slices.
func longLists(ports int) (service *corev1.Service, slices [2]*discoveryv1.EndpointSlice) {
	service, slices = newService(), [...]*discoveryv1.EndpointSlice{newSlice("web-0"), newSlice("web-1")}
	service.Spec.Ports = nil
	for i := range ports {
		name := fmt.Sprint("p", i)
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP,
			Port: int32(1000 + i)})
		for j, s := range slices {
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(2000 + 1000*j + i))})
		}
	}
	for j, s := range slices {
		for i := range 500 {
			s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.%d.%d.%d", j, i/250, 1+i%250)))
		}
	}
	return service, slices
}

// TestLongListsComeInSteps: when an endpoint of ports with long lists is replaced, a step goes through a bounded number
// of endpoints, whether the namespace has to wait or not. The other ports get no lists yet.
func TestLongListsComeInSteps(t *testing.T) {
	const ports = 200
	service, slices := longLists(ports)
	for _, waits := range []bool{false, true} {
		now := started
		tr := newStopped(&now, Config{}, func(tr *Tracker) {
			must(t, tr.SetService(service))
			must(t, tr.SetSlice(slices[0]))
			must(t, tr.SetSlice(slices[1]))
		})
		if waits {
			tr.Charge("shop", time.Hour)
		}
		other := slices[0].DeepCopy()
		other.Endpoints[0] = newEndpoint("10.0.9.9")
		must(t, tr.SetSlice(other))
		for done := 0; done < ports; {
			d, length := tr.Take(), 0
			for _, p := range d.Changed {
				length += 2 * p.length()
			}
			if done += len(d.Changed); length == 0 || length > endpointsPerElement*mostWork {
				t.Fatalf("waits %v: a step goes through %d endpoints of %d ports", waits, length, len(d.Changed))
			}
			made := 0
			for _, p := range tr.entries[objectName{"shop", "web"}].want {
				if !p.unnumbered() {
					made++
				}
			}
			if made > done+1 { // the step may end at a port whose lists it has made
				t.Fatalf("waits %v: %d ports have new lists when %d have changed", waits, made, done)
			}
		}
	}
}

// TestLongListsStay: a change that leaves the endpoints alone leaves long lists where they are, so that no step
// compares them.
func TestLongListsStay(t *testing.T) {
	service, slices := longLists(20)
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(service))
		must(t, tr.SetSlice(slices[0]))
		must(t, tr.SetSlice(slices[1]))
	})
	e := tr.entries[objectName{"shop", "web"}]
	service.UID = "uid-other"
	must(t, tr.SetService(service))
	for i, p := range tr.resolve(e) {
		if p.Lists != e.out[i].Lists {
			t.Errorf("port %s gets other lists", p.ID.Port)
		}
	}
}

// TestManyPortsLoseSharedEndpoints: ports that share as many endpoints as a step may write lose them all. A step
// reaches many of the ports, for the list goes once.
func TestManyPortsLoseSharedEndpoints(t *testing.T) {
	const ports = 1000
	service, slice := newService(), newSlice("web-1")
	service.Spec.Ports, slice.Ports = nil, nil
	for i := range ports {
		name := fmt.Sprint("p", i)
		service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP,
			Port: int32(1000 + i)})
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &name, Port: new(int32(2000 + i))})
	}
	for i := range mostWork {
		slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)))
	}
	unready := slice.DeepCopy()
	for i := range unready.Endpoints {
		unready.Endpoints[i].Conditions.Ready = new(false)
	}
	for i, waits := range []bool{false, true, false, true} {
		now := started
		tr := newStopped(&now, Config{}, func(tr *Tracker) {
			must(t, tr.SetService(service))
			must(t, tr.SetSlice(slice))
		})
		if waits {
			tr.Charge("shop", time.Hour)
		}
		must(t, tr.SetSlice([]*discoveryv1.EndpointSlice{newSlice("web-1"), unready}[i/2]))
		steps := 0
		for left := ports; left > 0 && steps <= 10; steps++ {
			for _, p := range tr.Take().Changed {
				if len(p.Cluster) == 0 {
					left--
				}
			}
		}
		if steps > 10 {
			t.Errorf("case %d, waits %v: after %d steps ports still have endpoints", i, waits, steps)
		}
	}
}
