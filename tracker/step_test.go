package tracker

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestOneStep: a port that waits, or has its turn and few elements left, has an endpoint, only those of this node in
// its list for policies Local, and in OnNode those of its lists.
func TestOneStep(t *testing.T) {
	defer func(joint int) { jointFrom = joint }(jointFrom)
	jointFrom = 4
	list := func(octets ...byte) (list []netip.AddrPort) {
		for _, n := range octets {
			list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, n}), 0))
		}
		return list
	}
	port := func(target uint16, octets []byte, edits ...func(p *ServicePort)) *ServicePort {
		p := &ServicePort{
			PortSpec: &PortSpec{ID: PortID{Port: "a", Protocol: TCP, Family: IPv4}, Port: 80,
				ClusterIP: netip.MustParseAddr("10.96.0.1")},
			TargetPort: target, Lists: &Lists{Cluster: list(octets...)}, HasEndpoints: true,
		}
		p.Serving, p.OnNode = p.Cluster, slices.DeleteFunc(slices.Clone(p.Cluster), func(ep netip.AddrPort) bool {
			return !onNodeA(ep)
		})
		for _, edit := range edits {
			edit(p)
		}
		return p
	}
	outside := func(p *ServicePort) { p.NodePort, p.ExternalLocal, p.Local = 30080, true, p.OnNode }
	inside := func(p *ServicePort) { p.InternalLocal, p.Cluster, p.Local = true, nil, p.OnNode }
	maglev, ping := func(p *ServicePort) { p.Settings.Maglev = true }, func(p *ServicePort) { p.Settings.Ping = true }
	weighted := func(p *ServicePort) {
		p.ClusterWeights = slices.Repeat([]uint16{1}, len(p.Cluster))
		p.ClusterWeights[0] = 2
	}
	balanced := func(p *ServicePort) { p.LoadBalancers = addrs("198.51.100.1") }
	ranges := func(p *ServicePort) {
		p.HasSourceRanges = true
		p.Sources = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/28"), netip.MustParsePrefix("192.0.2.64/28")}
	}
	twice := func(p *ServicePort) []*ServicePort {
		return []*ServicePort{p, p.With(func(spec *PortSpec) { spec.ID.Port, spec.Port = "b", 81 })}
	}
	few, others := []byte{1, 2, 3}, []byte{4, 5, 6}
	var many, manyOthers []byte
	for i := range replacements + 4 {
		many, manyOthers = append(many, byte(1+i)), append(manyOthers, byte(101+i))
	}
	for _, tt := range []struct {
		name           string
		s              stepper
		have, want     *ServicePort
		cluster, local string
	}{
		{"an annotation waits", stepper{left: 100}, port(80, few, outside), port(80, others, outside, ping), "4 5 6", "6"},
		{"slots", stepper{left: 100}, port(80, few, maglev), port(80, others, maglev, ping), "4 5 6", "-"},
		{"weights", stepper{left: 100}, port(80, many, weighted), port(80, manyOthers, weighted),
			"101 102 103 104 105 106 107 108 109 110 111 112 113 114 115 116", "-"},
		{"another policy", stepper{left: 1, adds: true}, port(80, many, inside), port(80, many[:4]), "1", "-"},
		{"another policy, slots", stepper{left: 4000, adds: true}, port(80, many, maglev),
			port(80, many, inside, maglev), "-", "3 6 9 12 15 18"},
		{"another policy and target port", stepper{left: 1, adds: true}, port(80, few), port(90, few, inside),
			"1 2 3", "-"},
		{"source ranges", stepper{left: 2, adds: true}, port(80, many, balanced),
			port(80, manyOthers[:1], balanced, ranges), octets(list(many[1:]...)), "-"},
	} {
		ports, _ := tt.s.step(twice(tt.have), twice(tt.want))
		p := ports[0]
		if octets(p.Cluster) != tt.cluster || octets(p.Local) != tt.local {
			t.Errorf("%s: the lists have %s and %s, want %s and %s", tt.name, octets(p.Cluster), octets(p.Local), tt.cluster,
				tt.local)
		}
		for _, ep := range p.OnNode {
			if !slices.Contains(p.Cluster, ep) && !slices.Contains(p.Local, ep) {
				t.Errorf("%s: %v is on this node, but in no list", tt.name, ep)
			}
		}
		if p.HasSourceRanges != (len(p.Sources) == 2) {
			t.Errorf("%s: the source ranges are %v", tt.name, p.Sources)
		}
	}
}

// TestSlotsOfLeavingEndpoints: where a slot table changes its size, endpoints leave a few at a time, because the slots
// of each name others at once. If very many slots name them, all leave at once, and chance chooses meanwhile.
func TestSlotsOfLeavingEndpoints(t *testing.T) {
	port := func(net byte, endpoints int) *ServicePort {
		p := &ServicePort{PortSpec: &PortSpec{ID: PortID{Protocol: TCP, Family: IPv4}, Port: 80,
			ClusterIP: netip.MustParseAddr("10.96.0.1")}, TargetPort: 80, Lists: new(Lists), HasEndpoints: true}
		p.Settings.Maglev = true
		for i := range endpoints {
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, net, 0, byte(i)}), 0))
		}
		p.Serving = p.Cluster
		return p
	}
	have, want := port(1, 41), port(1, 31)
	steps := 1
	for ; have != want && steps < 100; steps++ {
		s := stepper{left: 1000, adds: true}
		next := s.port(have, want)
		gone, _ := differingEndpoints(have, next)
		if slots := gone * 8009 / 41; slots > 1000 {
			t.Fatalf("%d endpoints with some %d slots leave in one step", gone, slots)
		}
		have = next
	}
	if steps < 4 || have != want {
		t.Errorf("%d steps", steps)
	}
	s := stepper{left: 1000, adds: true}
	have, want = port(1, 41), port(2, 40)
	if next := s.port(have, want); !within(next.Cluster, want.Cluster) {
		t.Errorf("%d of %d endpoints are left in the next step", len(next.Cluster), len(have.Cluster))
	}
}

// TestReplacedPortsAreServed: a port that becomes another one, as by another cluster IP, is served all the time at what
// both have, as a node port. Ports that share their list are replaced a bounded number at a time.
func TestReplacedPortsAreServed(t *testing.T) {
	for _, tt := range []struct {
		ports, endpoints int
		affinity         bool
	}{{1, 300, false}, {1, 3, true}, {20, 3, true}, {1000, 300, false}, {1000, 500, false}} {
		now, old := started, netip.MustParseAddr("10.96.0.1")
		service := func(ip string) *corev1.Service {
			return newService(func(s *corev1.Service) {
				s.Spec.Type, s.Spec.ClusterIP, s.Spec.ClusterIPs = corev1.ServiceTypeNodePort, ip, []string{ip}
				if tt.affinity {
					s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				}
				s.Spec.Ports = nil
				for i := range tt.ports {
					s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Protocol: corev1.ProtocolTCP,
						Port: int32(80 + i), NodePort: int32(30080 + i)})
				}
			})
		}
		slice := newSlice("web-1")
		slice.Ports = nil
		for i := range tt.ports {
			slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", i)), Port: new(int32(8080))})
		}
		for i := range tt.endpoints {
			slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)))
		}
		tr := newStopped(&now, Config{}, func(tr *Tracker) {
			must(t, tr.SetService(service("10.96.0.1")))
			must(t, tr.SetSlice(slice))
		})
		e := tr.entries[objectName{"shop", "web"}]
		must(t, tr.SetService(service("10.96.0.2")))
		for takes := 0; ; takes++ {
			served := 0
			for _, p := range e.out {
				if len(p.Cluster) == tt.endpoints {
					served++
				}
			}
			if served != tt.ports {
				t.Errorf("%+v: after %d changes %d ports are served", tt, takes, served)
				break
			}
			d := tr.Take()
			fresh := slices.DeleteFunc(d.Changed, func(p *ServicePort) bool { return p.ClusterIP == old })
			if len(fresh) > mostWork/2 {
				t.Errorf("%+v: %d ports are replaced at once", tt, len(fresh))
			}
			if d.Due.IsZero() {
				break
			}
		}
		if e.out[0].ClusterIP != netip.MustParseAddr("10.96.0.2") {
			t.Errorf("%+v: the cluster IP is still %s", tt, e.out[0].ClusterIP)
		}
	}
}
