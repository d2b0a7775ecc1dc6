package tracker

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestWhichEndpoints holds the conditions, topology and the traffic policies against each other. The
// node is node-a in zone a; addresses are written by their last octet.
func TestWhichEndpoints(t *testing.T) {
	both := []func(*corev1.Service){balanced("198.51.100.1"), externalLocal}
	tests := []struct {
		name                            string
		service                         []func(*corev1.Service)
		endpoints                       []string
		cluster, local, onNode, serving string
		any                             bool
	}{
		{name: "no endpoints", cluster: "-", local: "-", onNode: "-", serving: "-"},
		{name: "conditions unset", endpoints: []string{"1", "2 node=node-a"},
			cluster: "1 2", local: "-", onNode: "2", serving: "1 2", any: true},
		{name: "not ready", endpoints: []string{"1 notready"}, cluster: "-", local: "-", onNode: "-", serving: "1"},
		{name: "not ready and not serving", endpoints: []string{"1 notready notserving"},
			cluster: "-", local: "-", onNode: "-", serving: "-"},
		{name: "published although not serving", endpoints: []string{"1 notserving", "2 notserving terminating"},
			cluster: "1 2", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "ready beats draining", endpoints: []string{"1", "2 notready terminating"},
			cluster: "1", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "draining without ready", endpoints: []string{"1 notready", "2 notready terminating",
			"3 notready notserving terminating"},
			cluster: "2", local: "-", onNode: "-", serving: "1 2", any: true},

		{name: "internal Local", service: []func(*corev1.Service){internalLocal},
			endpoints: []string{"1 node=node-a", "2 node=node-b", "3"},
			cluster:   "-", local: "1", onNode: "1", serving: "1 2 3", any: true},
		{name: "internal Local, none here", service: []func(*corev1.Service){internalLocal},
			endpoints: []string{"1 node=node-b"},
			cluster:   "-", local: "-", onNode: "-", serving: "1", any: true},
		{name: "internal Local, none anywhere", service: []func(*corev1.Service){internalLocal},
			cluster: "-", local: "-", onNode: "-", serving: "-"},
		{name: "internal Local, reachable from outside",
			service:   []func(*corev1.Service){internalLocal, balanced("198.51.100.1")},
			endpoints: []string{"1 node=node-a", "2"}, cluster: "1 2", local: "1", onNode: "1", serving: "1 2", any: true},
		{name: "internal Local with fallback, none here",
			service:   []func(*corev1.Service){internalLocal, annotated("local-fallback", "cluster")},
			endpoints: []string{"1 node=node-b", "2"}, cluster: "1 2", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "internal Local with fallback, one here",
			service:   []func(*corev1.Service){internalLocal, annotated("local-fallback", "cluster")},
			endpoints: []string{"1 node=node-b", "2 node=node-a"}, cluster: "-", local: "2", onNode: "2", serving: "1 2",
			any: true},
		{name: "internal Local with fallback, draining here",
			service:   []func(*corev1.Service){internalLocal, annotated("local-fallback", "cluster")},
			endpoints: []string{"1 node=node-b", "2 node=node-a notready terminating"}, cluster: "-", local: "2", onNode: "2",
			serving: "1 2", any: true},
		{name: "resets keep what terminates", service: []func(*corev1.Service){annotated("connections-of-departed", "reset")},
			endpoints: []string{"1", "2 notready", "3 notready notserving", "4 notready notserving terminating"}, cluster: "1",
			local: "-", onNode: "-", serving: "1 2 4", any: true},

		{name: "external Local", service: both, endpoints: []string{"1 node=node-a", "2 node=node-b"},
			cluster: "1 2", local: "1", onNode: "1", serving: "1 2", any: true},
		{name: "external Local, nothing external", service: []func(*corev1.Service){externalLocal},
			endpoints: []string{"1 node=node-a"},
			cluster:   "1", local: "-", onNode: "1", serving: "1", any: true},
		{name: "external Local, remote draining", service: both, endpoints: []string{"1 node=node-b notready terminating"},
			cluster: "1", local: "-", onNode: "-", serving: "1", any: true},
		{name: "draining here, ready elsewhere", service: both,
			endpoints: []string{"1 node=node-a notready terminating", "2 node=node-b"},
			cluster:   "2", local: "1", onNode: "1", serving: "1 2", any: true},
		{name: "node name differs in case", service: both, endpoints: []string{"1 node=Node-A"},
			cluster: "1", local: "-", onNode: "-", serving: "1", any: true},

		{name: "zone hints", endpoints: []string{"1 zones=a", "2 zones=b", "3 zones=c,b,a"},
			cluster: "1 3", local: "-", onNode: "-", serving: "1 2 3", any: true},
		{name: "zone hint missing on a ready one", endpoints: []string{"1 zones=a", "2"},
			cluster: "1 2", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "zone hint missing on an unready one", endpoints: []string{"1 zones=a", "2 notready", "3 zones=b"},
			cluster: "1", local: "-", onNode: "-", serving: "1 2 3", any: true},
		{name: "no ready one for the zone", endpoints: []string{"1 zones=a notready", "2 zones=b", "3 zones=c"},
			cluster: "2 3", local: "-", onNode: "-", serving: "1 2 3", any: true},
		{name: "draining ignores zones", endpoints: []string{"1 zones=a notready terminating",
			"2 zones=b notready terminating"},
			cluster: "1 2", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "zone names are not prefixes", endpoints: []string{"1 zones=ab", "2 zones=b,ca"},
			cluster: "1 2", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "Local ignores zones", service: both, endpoints: []string{"1 zones=b node=node-a", "2 zones=a node=node-b"},
			cluster: "2", local: "1", onNode: "1", serving: "1 2", any: true},

		{name: "node hints", endpoints: []string{"1 nodes=node-a", "2 nodes=node-b", "3 nodes=node-b,node-a"},
			cluster: "1 3", local: "-", onNode: "-", serving: "1 2 3", any: true},
		{name: "node hints beat zone hints", endpoints: []string{"1 nodes=node-a zones=b", "2 nodes=node-b zones=a"},
			cluster: "1", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "node hint missing, zone hints complete", endpoints: []string{"1 nodes=node-a zones=b", "2 zones=a"},
			cluster: "2", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "no node hint for this node, zone hints complete",
			endpoints: []string{"1 nodes=node-b zones=b", "2 nodes=node-c zones=a"},
			cluster:   "2", local: "-", onNode: "-", serving: "1 2", any: true},
		{name: "unready one hinted for this node", endpoints: []string{"1 nodes=node-a notready", "2 nodes=node-b"},
			cluster: "2", local: "-", onNode: "-", serving: "1 2", any: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{})
			must(t, tr.SetNode(newNode("a", "192.168.0.2")))
			must(t, tr.SetService(newService(tt.service...)))
			must(t, tr.SetSlice(newSlice("web-1", octetEndpoints(tt.endpoints)...)))
			d := tr.Take()
			p := only(t, d)
			if p.HasEndpoints != tt.any {
				t.Errorf("HasEndpoints %v, want %v", p.HasEndpoints, tt.any)
			}
			for _, list := range []struct{ name, got, want string }{
				{"Cluster", octets(p.Cluster), tt.cluster}, {"Local", octets(p.Local), tt.local},
				{"OnNode", octets(p.OnNode), tt.onNode}, {"Serving", octets(p.Serving), tt.serving},
			} {
				if list.got != list.want {
					t.Errorf("%s [%s], want [%s]", list.name, list.got, list.want)
				}
			}
		})
	}
}

// octetEndpoints reads endpoints whose addresses are given by the last octet.
func octetEndpoints(texts []string) []discoveryv1.Endpoint {
	full := make([]string, len(texts))
	for i, text := range texts {
		full[i] = "10.0.0." + text
	}
	return newEndpoints(full...)
}

// TestDuplicateEndpoints gives one address to several slices, in both orders of arrival.
func TestDuplicateEndpoints(t *testing.T) {
	tests := []struct {
		name           string
		a, b           string
		cluster, local string
	}{
		{name: "not terminating wins", a: "1 notready terminating node=node-b", b: "1 node=node-a", cluster: "1", local: "1"},
		{name: "not terminating wins even if not ready", a: "1 terminating node=node-a", b: "1 notready", cluster: "-",
			local: "-"},
		{name: "ready wins", a: "1 notready node=node-b", b: "1 node=node-a", cluster: "1", local: "1"},
		{name: "the first slice wins", a: "1 node=node-a", b: "1 node=node-b", cluster: "1", local: "1"},
		{name: "the first slice wins, the other way round", a: "1 node=node-b", b: "1 node=node-a", cluster: "1",
			local: "-"},
		{name: "hints are those of the winner", a: "1 node=node-a", b: "1 zones=a notready", cluster: "1", local: "1"},
	}
	for _, tt := range tests {
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			t.Run(fmt.Sprint(tt.name, order), func(t *testing.T) {
				tr := newTracker(Config{})
				must(t, tr.SetService(newService(balanced("198.51.100.1"), externalLocal)))
				parts := []*discoveryv1.EndpointSlice{newSlice("a", octetEndpoints([]string{tt.a})...),
					newSlice("b", octetEndpoints([]string{tt.b})...)}
				for _, i := range order {
					must(t, tr.SetSlice(parts[i]))
				}
				p := only(t, tr.Take())
				if octets(p.Cluster) != tt.cluster || octets(p.Local) != tt.local {
					t.Errorf("Cluster [%s], Local [%s]; want [%s], [%s]", octets(p.Cluster), octets(p.Local), tt.cluster, tt.local)
				}
			})
		}
	}
}

// TestNodeChanges changes the node at run time and looks at which Services are handed out.
func TestNodeChanges(t *testing.T) {
	named := func(name string) func(*corev1.Service) { return func(s *corev1.Service) { s.Name = name } }
	ranges := func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.168.0.0/24"} }
	sliceOf := func(service string, e ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
		s := newSlice(service+"-1", e...)
		s.Labels[discoveryv1.LabelServiceName] = service
		return s
	}
	tests := []struct {
		name   string
		change func(*Tracker)
		want   map[string]bool // Services that change
		node   bool
	}{
		{name: "nothing", change: func(tr *Tracker) { tr.SetNode(newNode("a", "192.168.0.2")) }},
		{name: "heartbeat", change: func(tr *Tracker) {
			n := newNode("a", "192.168.0.2")
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
			tr.SetNode(n)
		}},
		{name: "zone", change: func(tr *Tracker) { tr.SetNode(newNode("b", "192.168.0.2")) },
			want: map[string]bool{"hinted": true}, node: true},
		{name: "address", change: func(tr *Tracker) { tr.SetNode(newNode("a", "192.168.9.2")) },
			want: map[string]bool{"guarded": true}, node: true},
		{name: "pod CIDR", change: func(tr *Tracker) {
			n := newNode("a", "192.168.0.2")
			n.Spec.PodCIDRs = []string{"10.244.0.0/24"}
			tr.SetNode(n)
		}, node: true},
		{name: "taint", change: func(tr *Tracker) {
			n := newNode("a", "192.168.0.2")
			n.Spec.Taints = []corev1.Taint{{Key: ToBeDeletedTaint}}
			tr.SetNode(n)
		}, node: true},
		{name: "deleted", change: func(tr *Tracker) { tr.DeleteNode("node-a") }, node: true},
		{name: "deleted and back", change: func(tr *Tracker) {
			tr.DeleteNode("node-a")
			tr.SetNode(newNode("a", "192.168.0.2"))
		}},
		{name: "deleted and back, without addresses yet",
			change: func(tr *Tracker) { tr.DeleteNode("node-a"); tr.SetNode(newNode("a")) }},
		{name: "deleted and back elsewhere", change: func(tr *Tracker) {
			tr.DeleteNode("node-a")
			tr.SetNode(newNode("b", "192.168.9.2"))
		},
			want: map[string]bool{"hinted": true, "guarded": true}, node: true},
		{name: "another one deleted", change: func(tr *Tracker) { tr.DeleteNode("node-b") }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{})
			must(t, tr.SetNode(newNode("a", "192.168.0.2")))
			must(t, tr.SetService(newService(named("plain"))))
			must(t, tr.SetService(newService(named("hinted"))))
			must(t, tr.SetService(newService(named("guarded"), balanced("198.51.100.1"), ranges)))
			must(t, tr.SetSlice(sliceOf("plain", newEndpoints("10.0.0.1", "10.0.0.2")...)))
			must(t, tr.SetSlice(sliceOf("hinted", newEndpoints("10.0.0.3 zones=a", "10.0.0.4 zones=b")...)))
			tr.Take()
			tt.change(tr)
			for _, n := range tr.dirty {
				for _, e := range n.dirty {
					if !tt.want[e.name] {
						t.Errorf("Service %s is resolved again", e.name)
					}
				}
			}
			d := tr.Take()
			if len(d.Changed) != len(tt.want) || len(d.Removed) != 0 {
				t.Errorf("changed %v, removed %v; want %v", d.Changed, d.Removed, tt.want)
			}
			if (d.Node != nil) != tt.node || tt.node && d.Node.Gone != (tt.name == "deleted") {
				t.Errorf("Node %+v, want one: %v", d.Node, tt.node)
			}
		})
	}
}

// TestHintsWithoutNames has a node without a zone, and hints that name none.
func TestHintsWithoutNames(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetNode(newNode("", "192.168.0.2")))
	must(t, tr.SetService(newService()))
	must(t, tr.SetSlice(newSlice("web-1", octetEndpoints([]string{"1 zones=", "2 zones=b"})...)))
	if got := octets(only(t, tr.Take()).Cluster); got != "1 2" {
		t.Errorf("Cluster [%s], want [1 2]", got)
	}
}

// TestManyDuplicates has two slices with the same endpoints, of which the first puts them here.
func TestManyDuplicates(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService(internalLocal)))
	for _, name := range []string{"b", "a"} {
		s := newSlice(name)
		for i := range 100 {
			s.Endpoints = append(s.Endpoints, newEndpoint(fmt.Sprintf("10.0.0.%d node=node-%s", i, name)))
		}
		must(t, tr.SetSlice(s))
	}
	if n := len(only(t, tr.Take()).Local); n != 100 {
		t.Errorf("%d local endpoints, want 100", n)
	}
}

// TestPortsShareSourceRanges: the ports of a Service keep one list of source ranges while other fields change, so that
// to compare ports costs no walk through 20,000 ranges for each. The node is within the ranges, which adds to them.
func TestPortsShareSourceRanges(t *testing.T) {
	now := started
	service := func(edits ...func(*corev1.Service)) *corev1.Service {
		return newService(append(edits, func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.1"}}
			s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24", "198.51.100.0/24"}
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443})
		})...)
	}
	tr := newStopped(&now, Config{NodeAddresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, func(tr *Tracker) {
		must(t, tr.SetService(service()))
	})
	e := tr.entries[objectName{"shop", "web"}]
	first := e.out[0].Sources
	must(t, tr.SetService(service(func(s *corev1.Service) { s.Spec.ExternalIPs = []string{"203.0.113.9"} })))
	tr.Take()
	for _, p := range e.out {
		if len(p.ExternalIPs) != 1 || len(p.Sources) != 3 || !SameMemory(p.Sources, first) {
			t.Errorf("%v has external IPs %v, and its own list %v", p.ID, p.ExternalIPs, p.Sources)
		}
	}
}

// TestSourceRangesChangeOnce: a Service takes the step from one list of source ranges to another once in each family,
// and not for each of its ports.
func TestSourceRangesChangeOnce(t *testing.T) {
	now := started
	const ports, ranges = 200, 2000
	service := func(last byte) *corev1.Service {
		return newService(dualStack, balanced("203.0.113.1", "2001:db8::1"), func(s *corev1.Service) {
			for i := range ports {
				s.Spec.Ports = append(s.Spec.Ports,
					corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)})
			}
			for i := range ranges {
				addr := netip.AddrFrom4([4]byte{20, byte(i / 100), byte(i % 100), 1})
				s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, addr.String()+"/32",
					fmt.Sprintf("2001:db8:1::%x/128", 2*i))
			}
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges,
				netip.AddrFrom4([4]byte{30, 0, 0, last}).String()+"/32", fmt.Sprintf("2001:db8:2::%x/128", last))
		})
	}
	tr := newStopped(&now, Config{}, func(tr *Tracker) { must(t, tr.SetService(service(1))) })
	tr.Charge("shop", time.Hour) // it may not add the range, but the other one goes
	must(t, tr.SetService(service(2)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	d := tr.Take()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 {
		t.Errorf("a step from one source range to another allocates %d KiB", n>>10)
	}
	if len(d.Changed) != 2*(ports+1) || len(d.Changed[0].Sources) != ranges {
		t.Errorf("%d ports have changed, and have %d ranges", len(d.Changed), len(d.Changed[0].Sources))
	}
}

// TestSharingHasNoHistory: whether two ports share their lists follows from what the Service asks for now. One has a
// node port and the other has none; before, both had one.
func TestSharingHasNoHistory(t *testing.T) {
	service := func(nodePorts ...int32) *corev1.Service {
		return newService(func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeNodePort
			s.Spec.Ports = nil
			for i, nodePort := range nodePorts {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP,
					Port: int32(80 + i), NodePort: nodePort})
			}
		})
	}
	shares := func(before ...*corev1.Service) bool {
		tr, slice := newTracker(Config{}), newSlice("web-1", newEndpoints("10.0.0.1", "10.0.0.2")...)
		slice.Ports = append(slice.Ports[:0], discoveryv1.EndpointPort{Name: new("p0"), Port: new(int32(8080))},
			discoveryv1.EndpointPort{Name: new("p1"), Port: new(int32(8080))})
		must(t, tr.SetSlice(slice))
		for _, s := range before {
			must(t, tr.SetService(s))
			tr.Take()
		}
		ports := tr.entries[objectName{"shop", "web"}].out
		return SameMemory(ports[0].Cluster, ports[1].Cluster)
	}
	for _, before := range []*corev1.Service{service(30080, 30081), service(30080, 0), service(0, 0)} {
		for _, now := range []*corev1.Service{service(30080, 30081), service(30080, 0), service(0, 0)} {
			if got, want := shares(before, now), shares(now); got != want {
				t.Errorf("%v: shared after another value: %t, from the start: %t", now.Spec.Ports, got, want)
			}
		}
	}
}
