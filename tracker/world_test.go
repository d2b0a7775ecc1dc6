package tracker

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// started is when the trackers of the tests begin to work.
var started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// newTracker returns a Tracker for node-a whose clock advances a second with each reading.
func newTracker(config Config) *Tracker {
	now := started.Add(-time.Second)
	config.NodeName = "node-a"
	config.CPUTime = func() time.Duration { return 0 } // however slow the machine is
	config.Clock = func() time.Time {
		now = now.Add(time.Second)
		return now
	}
	return New(config)
}

// pending reports whether Take has something to work out.
func (t *Tracker) pending() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.dirty) > 0 || t.node.dirty || t.cidrs.dirty
}

// newService returns a Service shop/web with one port http, 80/TCP, at 172.30.0.1.
func newService(edits ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "uid-web",
			CreationTimestamp: metav1.NewTime(started)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "172.30.0.1", ClusterIPs: []string{"172.30.0.1"},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

// dualStack gives a Service a cluster IP in each family.
func dualStack(s *corev1.Service) {
	s.Spec.ClusterIPs = []string{"172.30.0.1", "fd00::1"}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}

// balanced makes s a Service of type LoadBalancer with the addresses ips.
func balanced(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeLoadBalancer
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func internalLocal(s *corev1.Service) {
	policy := corev1.ServiceInternalTrafficPolicyLocal
	s.Spec.InternalTrafficPolicy = &policy
}

// externalLocal gives s the external policy Local, and the health check port that the API
// server adds to it.
func externalLocal(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.HealthCheckNodePort = 32000
}

// newSlice returns an IPv4 slice of shop/web with one port http, 8080/TCP.
func newSlice(name string, endpoints ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080))}},
		Endpoints:   endpoints,
	}
}

// newEndpoint reads "address [node=NAME] [zones=A,B] [nodes=A,B] [notready] [notserving] [terminating]".
func newEndpoint(text string) discoveryv1.Endpoint {
	words := strings.Fields(text)
	e := discoveryv1.Endpoint{Addresses: []string{words[0]}}
	for _, word := range words[1:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "node":
			e.NodeName = new(value)
		case "zones", "nodes":
			addHints(&e, key, strings.Split(value, ","))
		case "notready":
			e.Conditions.Ready = new(false)
		case "notserving":
			e.Conditions.Serving = new(false)
		case "terminating":
			e.Conditions.Terminating = new(true)
		default:
			panic(word)
		}
	}
	return e
}

func addHints(e *discoveryv1.Endpoint, kind string, names []string) {
	if e.Hints == nil {
		e.Hints = &discoveryv1.EndpointHints{}
	}
	for _, name := range names {
		if kind == "zones" {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: name})
		} else {
			e.Hints.ForNodes = append(e.Hints.ForNodes, discoveryv1.ForNode{Name: name})
		}
	}
}

func newEndpoints(texts ...string) []discoveryv1.Endpoint {
	endpoints := make([]discoveryv1.Endpoint, 0, len(texts))
	for _, text := range texts {
		endpoints = append(endpoints, newEndpoint(text))
	}
	return endpoints
}

// newNode returns this node, in zone, with addresses of type InternalIP.
func newNode(zone string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	for _, address := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: address})
	}
	return n
}

func newServiceCIDR(name string, cidrs ...string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
}

// must fails the test if an object that should be fine was refused.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorText returns what err says, empty for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// only returns the single port that d changes.
func only(t testing.TB, d Delta) *ServicePort {
	t.Helper()
	if len(d.Changed) != 1 || len(d.Removed) != 0 {
		t.Fatalf("changed %v, removed %v; want one change", d.Changed, d.Removed)
	}
	return d.Changed[0]
}

// join returns values as their texts, separated by blanks; "nil" for a nil list.
func texts[T interface{ String() string }](values []T) string {
	if values == nil {
		return "nil"
	}
	list := make([]string, len(values))
	for i, value := range values {
		list[i] = value.String()
	}
	return strings.Join(list, " ")
}

// addrs reads addresses.
func addrs(texts ...string) []netip.Addr {
	list := make([]netip.Addr, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParseAddr(text)
	}
	return list
}

// octets returns the last octets of the IPv4 addresses of list; "-" if there are none.
func octets(list []netip.AddrPort) string {
	if len(list) == 0 {
		return "-"
	}
	words := make([]string, len(list))
	for i, at := range list {
		words[i] = strconv.Itoa(int(at.Addr().As4()[3]))
	}
	return strings.Join(words, " ")
}
