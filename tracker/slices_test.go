package tracker

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestSlices(t *testing.T) {
	endpoint := func(e discoveryv1.Endpoint) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, e) }
	}
	ports := func(ports ...discoveryv1.EndpointPort) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Ports = ports }
	}
	label := func(value string) func(*discoveryv1.EndpointSlice) {
		return func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = value }
	}
	http, udp, odd := new("http"), new(corev1.ProtocolUDP), new(corev1.Protocol("X"))
	const one, none = "10.0.0.1:8080", "nil"
	const unlabelled = "metadata.labels[kubernetes.io/service-name]: is missing: no Service has these endpoints; the " +
		"slice is ignored"
	tests := []struct {
		name    string
		edit    func(*discoveryv1.EndpointSlice)
		want    string // Cluster
		refused string // after "EndpointSlice shop/web-1: "
	}{
		{name: "ordinary", edit: func(*discoveryv1.EndpointSlice) {}, want: one},
		{name: "label missing", edit: func(s *discoveryv1.EndpointSlice) { s.Labels = nil }, want: none, refused: unlabelled},
		{name: "label empty", edit: label(""), want: none, refused: unlabelled},
		{name: "label no Service can have", edit: label("a.b"), want: none,
			refused: `metadata.labels[kubernetes.io/service-name]: "a.b" is no DNS label: use a-z, 0-9 and, inside, '-'`},
		{name: "headless", edit: func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" }, want: none},
		{name: "headless without the Service's label", edit: func(s *discoveryv1.EndpointSlice) {
			s.Labels = map[string]string{corev1.IsHeadlessService: ""}
		}, want: none},
		{name: "FQDN", edit: func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }, want: none,
			refused: `addressType: "FQDN" is not IPv4 or IPv6; the slice is ignored`},
		{name: "namespace", edit: func(s *discoveryv1.EndpointSlice) { s.Namespace = "other" }, want: none},

		{name: "no ports", edit: ports(), want: none},
		{name: "port without a name", edit: ports(discoveryv1.EndpointPort{Port: new(int32(8080))}), want: none},
		{name: "port without a number", edit: ports(discoveryv1.EndpointPort{Name: http}), want: none},
		{name: "port zero", edit: ports(discoveryv1.EndpointPort{Name: http, Port: new(int32(0))}), want: none},
		{name: "one port without a number among others",
			edit: ports(discoveryv1.EndpointPort{Name: http}, discoveryv1.EndpointPort{Name: http, Port: new(int32(8080))}),
			want: one},
		{name: "another protocol", edit: ports(discoveryv1.EndpointPort{Name: http, Port: new(int32(8080)), Protocol: udp}),
			want: none},
		{name: "another name", edit: ports(discoveryv1.EndpointPort{Name: new("https"), Port: new(int32(8080))}), want: none},
		{name: "two numbers", edit: ports(discoveryv1.EndpointPort{Name: http, Port: new(int32(8081))},
			discoveryv1.EndpointPort{Name: http, Port: new(int32(8080))}),
			want: "10.0.0.1:8080 10.0.0.1:8081"},
		{name: "unknown protocol", edit: ports(discoveryv1.EndpointPort{Name: http, Port: new(int32(8080)), Protocol: odd}),
			want:    none,
			refused: `ports[0].protocol: "X" is not TCP, UDP or SCTP`},
		{name: "port too large", edit: ports(discoveryv1.EndpointPort{Name: http, Port: new(int32(65536))}), want: none,
			refused: "ports[0].port: 65536 is not in the range 1 to 65535"},

		{name: "no addresses", edit: endpoint(discoveryv1.Endpoint{}), want: one,
			refused: "endpoints[1].addresses: is empty; the endpoint is ignored"},
		{name: "first address only", edit: endpoint(discoveryv1.Endpoint{Addresses: []string{"10.0.0.2", "10.0.0.3"}}),
			want: one + " 10.0.0.2:8080"},
		{name: "sorted by address", edit: endpoint(newEndpoint("9.0.0.10")), want: "9.0.0.10:8080 " + one},
		{name: "twice", edit: endpoint(newEndpoint("10.0.0.01")), want: one},
		{name: "empty hints",
			edit: endpoint(discoveryv1.Endpoint{Addresses: []string{"10.0.0.2"}, Hints: &discoveryv1.EndpointHints{}}),
			want: one + " 10.0.0.2:8080"},
		{name: "not an address", edit: endpoint(newEndpoint("x")), want: one,
			refused: `endpoints[1].addresses[0]: "x" is not an IP address`},
		{name: "loopback", edit: endpoint(newEndpoint("127.0.0.1")), want: one,
			refused: `endpoints[1].addresses[0]: "127.0.0.1" is a loopback address`},
		{name: "other family", edit: endpoint(newEndpoint("fd00::1")), want: one,
			refused: `endpoints[1].addresses[0]: "fd00::1" is not an IPv4 address, but addressType is IPv4`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{})
			must(t, tr.SetService(newService()))
			s := newSlice("web-1", newEndpoint("10.0.0.1"))
			tt.edit(s)
			err := tr.SetSlice(s)
			if refused := strings.TrimPrefix(errorText(err), "EndpointSlice shop/web-1: "); refused != tt.refused {
				t.Errorf("refused\n%s\nwant\n%s", refused, tt.refused)
			}
			if got := texts(only(t, tr.Take()).withPorts().Cluster); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestSliceNames(t *testing.T) {
	for name, want := range map[string]string{
		"web.x-1": "",
		"":        "EndpointSlice shop/: metadata.name: is empty; the object is ignored",
		"a..b":    `EndpointSlice shop/a..b: metadata.name: "a..b" is no DNS subdomain: use a-z, 0-9 and, inside, '-' and '.'; the object is ignored`,
		"a/b":     `EndpointSlice shop/a/b: metadata.name: "a/b" is no DNS subdomain: use a-z, 0-9 and, inside, '-' and '.'; the object is ignored`,
		strings.Repeat("y", 254): `EndpointSlice shop/"` + strings.Repeat("y", 64) + `"...: metadata.name: "` +
			strings.Repeat("y", 64) +
			`"... has 254 bytes, at most 253 are allowed; the object is ignored`,
	} {
		tr := newTracker(Config{})
		if err := tr.SetSlice(newSlice(name)); errorText(err) != want {
			t.Errorf("%q: refused\n%v\nwant\n%s", name, err, want)
		}
		if tr.pending() != (want == "") {
			t.Errorf("%q: pending is %v", name, tr.pending())
		}
	}
}

// TestLocalReady counts over the ports of a Service, and for those with a health check port only.
func TestLocalReady(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService(balanced("198.51.100.1"), externalLocal, func(s *corev1.Service) {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "https", Port: 443})
	})))
	must(t, tr.SetSlice(newSlice("web-1", newEndpoints("10.0.0.1 node=node-a", "10.0.0.2 node=node-b",
		"10.0.0.3 node=node-a notready terminating")...)))
	https := newSlice("web-2", newEndpoints("10.0.0.1 node=node-a", "10.0.0.4 node=node-a")...)
	https.Ports[0].Name = new("https")
	must(t, tr.SetSlice(https))
	for _, p := range tr.Take().Changed {
		if p.LocalReady != 2 {
			t.Errorf("%v: LocalReady %d, want 2", p.ID, p.LocalReady)
		}
	}
	must(t, tr.SetService(newService()))
	for _, p := range tr.Take().Changed {
		if p.LocalReady != 0 {
			t.Errorf("%v: LocalReady %d without a health check port", p.ID, p.LocalReady)
		}
	}
}

// TestLargeServices has one slice of many endpoints and one Service of many slices.
func TestLargeServices(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService()))
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("10.1.%d.%d", i/250, i%250))
	}
	must(t, tr.SetSlice(newSlice("large", newEndpoints(many...)...)))
	for i := range 100 {
		must(t, tr.SetSlice(newSlice(fmt.Sprintf("part-%d", i), newEndpoints(fmt.Sprintf("10.2.0.%d", i),
			fmt.Sprintf("10.2.1.%d", i))...)))
	}
	if n := len(only(t, tr.Take()).Cluster); n != 5200 {
		t.Errorf("%d endpoints, want 5200", n)
	}
	for i := range 99 {
		tr.DeleteSlice("shop", fmt.Sprintf("part-%d", i))
	}
	tr.DeleteSlice("shop", "large")
	d := tr.Take()
	for steps := 1; !d.Due.IsZero(); steps++ {
		if n := len(only(t, d).Cluster); n != 5200-steps*mostWork {
			t.Fatalf("after step %d %d endpoints are left", steps, n)
		}
		d = tr.Take()
	}
	if got, want := texts(only(t, d).withPorts().Cluster), "10.2.0.99:8080 10.2.1.99:8080"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestEachServed compares a walk over both lists of ports with one over all pairs.
func TestEachServed(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var ports []port
		var s slice
		for i := range 12 {
			p := port{name: fmt.Sprint("p", i/2), protocol: Protocol(i % 2)}
			if random.IntN(3) > 0 {
				ports = append(ports, p)
			}
			for range random.IntN(3) {
				s.ports = append(s.ports, slicePort{name: p.name, protocol: p.protocol, number: uint16(random.IntN(3))})
			}
		}
		served := make([][]slicePort, len(ports))
		s.eachServed(ports, func(i, first, n int) { served[i] = s.ports[first:][:n] })
		for i := range ports {
			want := slices.DeleteFunc(slices.Clone(s.ports), func(p slicePort) bool {
				return p.compare(ports[i].name, ports[i].protocol) != 0
			})
			if !slices.Equal(served[i], want) {
				t.Fatalf("ports %v, slice %v: port %d is served by %v", ports, s.ports, i, served[i])
			}
		}
	}
}

// TestManyPortsAndSlices: which slices serve which ports is found in the time that the ports of all slices take
// together. 1,000 slices of 20 ports take about as long as one of 20,000.
func TestManyPortsAndSlices(t *testing.T) {
	took := func(parts, each int) time.Duration {
		tr, e := newTracker(Config{}), &entry{service: &service{}}
		for i := range 20_000 {
			e.service.ports = append(e.service.ports, port{name: fmt.Sprintf("p%05d", i)})
		}
		for i := range parts {
			s := &slice{family: IPv4}
			for _, p := range e.service.ports[i*each:][:each] {
				s.ports = append(s.ports, slicePort{name: p.name, number: 80})
			}
			e.slices = append(e.slices, s)
		}
		shortest := time.Hour
		for range 5 {
			began := time.Now()
			tr.portGroups(e, IPv4)
			shortest = min(shortest, time.Since(began))
		}
		return shortest
	}
	if one, many := took(1, 20_000), took(1000, 20); many > 20*one {
		t.Errorf("1,000 slices take %v, one with as many ports takes %v", many, one)
	} else {
		t.Logf("1,000 slices take %v, one with as many ports takes %v", many, one)
	}
}
