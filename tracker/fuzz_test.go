package tracker

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// newNeighbour returns a Tracker with a Service shop/neighbour that has an endpoint, which
// no hostile object may disturb.
func newNeighbour(t *testing.T) *Tracker {
	tr := newTracker(Config{})
	must(t, tr.SetNode(newNode("a", "192.168.0.2")))
	must(t, tr.SetService(newService(func(s *corev1.Service) { s.Name = "neighbour" })))
	part := newSlice("neighbour-1", newEndpoint("10.0.0.1"))
	part.Labels[discoveryv1.LabelServiceName] = "neighbour"
	must(t, tr.SetSlice(part))
	tr.Take()
	return tr
}

// checkHostile takes what a hostile object led to, and fails if that breaks a promise.
func checkHostile(t *testing.T, tr *Tracker, refused error) {
	for _, c := range errorText(refused) {
		if unicode.IsControl(c) && c != '\n' {
			t.Errorf("control character %q in %q", c, refused)
		}
	}
	if _, ok := errors.AsType[*InvalidField](refused); refused != nil && !ok {
		t.Errorf("%T is not an InvalidField", refused)
	}
	d := tr.Take()
	for _, p := range d.Changed {
		if p.ID.Service == "neighbour" {
			t.Errorf("another Service changed to %+v", p)
		}
		checkPort(t, p.withPorts())
	}
	if len(d.Removed) > 0 {
		t.Errorf("removed %v", d.Removed)
	}
}

// checkPort fails unless p keeps what its type promises.
func checkPort(t *testing.T, p *ServicePort) {
	if p.Port == 0 || FamilyOf(p.ClusterIP) != p.ID.Family || nameFault(p.ID.Service, false) != "" ||
		p.HasSourceRanges != (len(p.Sources) > 0) {
		t.Errorf("broken port %+v", p)
	}
	for _, list := range [][]netip.Addr{p.LoadBalancers, p.ExternalIPs} {
		for _, addr := range list {
			if FamilyOf(addr) != p.ID.Family {
				t.Errorf("%v: foreign address %v", p.ID, addr)
			}
		}
		if !slices.Equal(distinct(slices.Clone(list)), list) {
			t.Errorf("%v: %v is not sorted, or has duplicates", p.ID, list)
		}
	}
	for _, list := range [][]netip.AddrPort{p.Cluster, p.Local, p.OnNode, p.Serving} {
		for _, at := range list {
			if FamilyOf(at.Addr()) != p.ID.Family || at.Port() == 0 {
				t.Errorf("%v: impossible endpoint %v", p.ID, at)
			}
		}
		if !sorted(list) {
			t.Errorf("%v: %v is not sorted, or has duplicates", p.ID, list)
		}
	}
}

// FuzzService puts hostile texts and numbers into every field that is read.
func FuzzService(f *testing.F) {
	f.Add("shop", "web", "172.30.0.1", "IPv6", "fd00::1", "192.168.99.1", "198.51.100.1", " 192.168.0.0/16", "http", "TCP",
		"Local", int32(80), int32(30080), int32(10800))
	f.Add("shop", "a.b", "None", "", "::ffff:1.2.3.4", "010.0.0.1", "127.0.0.1", "0.0.0.0/0", "A\n", "x", "x", int32(-1),
		int32(70000), int32(0))
	f.Fuzz(func(t *testing.T,
		namespace, name, clusterIP, family, second, external, balancer, sources, port, protocol, word string,
		number, nodePort, timeout int32) {
		s := newService(balanced(balancer, external, balancer), internalLocal, func(s *corev1.Service) {
			s.Namespace, s.Name = namespace, name
			s.Spec.ClusterIP, s.Spec.ClusterIPs = clusterIP, []string{clusterIP, second}
			s.Spec.IPFamilies = append(s.Spec.IPFamilies, corev1.IPFamily(family))
			s.Spec.ExternalIPs = []string{external, balancer, external}
			s.Spec.LoadBalancerSourceRanges = []string{sources, "10.0.0.0/8", sources}
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: port, Protocol: corev1.Protocol(protocol), Port: number,
				NodePort: nodePort})
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicy(word)
			s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
			s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
				ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout},
			}
			s.Spec.HealthCheckNodePort = nodePort
			s.Status.LoadBalancer.Ingress[0].IPMode = new(corev1.LoadBalancerIPMode(word))
		})
		if name == "neighbour" && namespace == "shop" {
			t.Skip()
		}
		before := s.DeepCopy()
		tr := newNeighbour(t)
		err := tr.SetService(s)
		if !equality.Semantic.DeepEqual(before, s) {
			t.Error("the object was changed")
		}
		checkHostile(t, tr, err)
	})
}

// FuzzSlice puts hostile texts and numbers into every field that is read.
func FuzzSlice(f *testing.F) {
	f.Add("web-1", "web", "IPv4", "10.0.0.1", "010.0.0.2", "node-a", "a", "http", "TCP", int32(8080), uint8(0xff))
	f.Add("web-1", "neighbour", "FQDN", "fd00::1", "", "node-b", "a\x00b", "HTTP", "x", int32(-1), uint8(0))
	f.Fuzz(func(t *testing.T, name, service, kind, first, second, node, zone, port, protocol string, number int32,
		conditions uint8) {
		if service == "neighbour" || name == "neighbour-1" {
			t.Skip()
		}
		s := newSlice(name, newEndpoint("10.0.0.3"))
		s.Labels[discoveryv1.LabelServiceName] = service
		s.AddressType = discoveryv1.AddressType(kind)
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &port, Protocol: new(corev1.Protocol(protocol)),
			Port: &number})
		for i, address := range []string{first, second, first} {
			bit := func(n int) *bool { return new(conditions>>(i+n)&1 == 1) }
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address}, NodeName: &node,
				Conditions: discoveryv1.EndpointConditions{Ready: bit(0), Serving: bit(1), Terminating: bit(2)},
				Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}, {Name: "a"}},
					ForNodes: []discoveryv1.ForNode{{Name: node}}},
			})
		}
		before := s.DeepCopy()
		tr := newNeighbour(t)
		must(t, tr.SetService(newService(externalLocal, balanced("198.51.100.1"))))
		err := tr.SetSlice(s)
		if !equality.Semantic.DeepEqual(before, s) {
			t.Error("the object was changed")
		}
		checkHostile(t, tr, err)
	})
}

func FuzzExternalIPs(f *testing.F) {
	for _, s := range []string{"all", "none", "", "203.0.113.0/24,2001:db8::/32", "all,none", "0.0.0.0/0,::/0",
		"010.0.0.0/8"} {
		f.Add(s, "203.0.113.7")
	}
	f.Fuzz(func(t *testing.T, s, ip string) {
		e, err := ParseExternalIPs(strings.Split(s, ","))
		if err != nil {
			return
		}
		again, err := ParseExternalIPs(strings.Split(e.String(), ","))
		if err != nil || again.String() != e.String() {
			t.Fatalf("%q gives %s, which gives %s, %v", s, e, again, err)
		}
		if addr, err := parseAddr(ip); err == nil && again.Allows(addr) != e.Allows(addr) {
			t.Errorf("%q and %s do not agree on %s", s, e, addr)
		}
	})
}

func FuzzAddress(f *testing.F) {
	for _, s := range []string{"10.0.0.1", "010.00.0.1", "::ffff:010.0.0.1", "fe80::1%eth0", "10.0.0.0/08", "::/0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if addr, err := parseAddr(s); err == nil {
			if again, err := parseAddr(addr.String()); err != nil || again != addr || addr.Is4In6() || addr.Zone() != "" {
				t.Errorf("%q gives %v, which gives %v, %v", s, addr, again, err)
			}
		}
		if prefix, err := parsePrefix(s); err == nil {
			if again, err := parsePrefix(prefix.String()); err != nil || again != prefix || prefix != prefix.Masked() {
				t.Errorf("%q gives %v, which gives %v, %v", s, prefix, again, err)
			}
		}
	})
}
