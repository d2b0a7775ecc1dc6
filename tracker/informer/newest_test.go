package informer_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
	"github.com/kube-nft/kube-nft/tracker/trackertest"
)

// These tests hold what is new in Kubernetes 1.31 to 1.38, through client-go and in every mode, to what
// docs/drop-in.md says of it.

// A meaning is what a tracker makes of a server's objects: the ports by their IDs.
type meaning struct {
	*tracker.Tracker
	ports map[string]*tracker.ServicePort
}

// follow feeds a tracker on node "one" in zone "a".
func follow(t *testing.T, server *apiserver.Server, client kubernetes.Interface) *meaning {
	t.Helper()
	server.Apply(node("one", "a"))
	m := &meaning{tracker.New(tracker.Config{NodeName: "one"}), make(map[string]*tracker.ServicePort)}
	source := informer.New(client, informer.Options{NodeName: "one"})
	go source.Run(t.Context(), m.Tracker)
	awaitSync(t, source)
	return m
}

// await takes changes until the port of this ID is as wanted; nil stands for no such port.
func (m *meaning) await(t *testing.T, id, what string, wanted func(*tracker.ServicePort) bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		delta := m.Take()
		for _, port := range delta.Changed {
			m.ports[port.ID.String()] = port
		}
		for id := range delta.Removed {
			delete(m.ports, id.String())
		}
		if wanted(m.ports[id]) {
			return
		}
	}
	t.Fatalf("%s: %s is %+v", what, id, m.ports[id])
}

func endpoints(list ...string) func(*tracker.ServicePort) bool {
	return func(p *tracker.ServicePort) bool {
		var texts []string
		if p != nil {
			for _, ep := range p.Endpoints(p.Cluster) {
				texts = append(texts, ep.String())
			}
		}
		return p != nil && slices.Equal(texts, list)
	}
}

func webService(name, ip string) *corev1.Service {
	o := service(name, ip)
	o.Spec.ClusterIPs, o.Spec.IPFamilies = []string{ip}, []corev1.IPFamily{corev1.IPv4Protocol}
	o.Spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	return o
}

func webSlice(service string, list ...discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	o := slice(service+"-1", 0, discoveryv1.LabelServiceName, service)
	o.AddressType, o.Endpoints = discoveryv1.AddressTypeIPv4, list
	o.Ports = []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
	return o
}

// TestCompressedStreamingLists: what comes compressed means the same, and so does what follows.
func TestCompressedStreamingLists(t *testing.T) {
	for _, contentType := range []string{"", "application/json"} {
		server, url := start(t)
		server.Compress()
		for i := range 500 {
			server.Apply(service("web-"+strings.Repeat("x", i%20)+string(rune('a'+i%26)), "10.96.0.1"))
		}
		server.Apply(service("web", "10.96.0.1"))
		sink := trackertest.NewSink()
		awaitSync(t, run(t, dial(t, url, contentType), informer.Options{}, sink))
		if got := sink.Snapshot()["Service shop/web"]; got != "10.96.0.1" {
			t.Errorf("the list brought %q", got)
		}
		server.Apply(service("web", "10.96.0.2"))
		for deadline := time.Now().Add(patience); sink.Snapshot()["Service shop/web"] !=
			"10.96.0.2"; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("the watch brought nothing")
			}
		}
		for _, request := range server.Requests() {
			if request.Verb == "list" {
				t.Errorf("a plain list of %s", request.Resource)
			}
		}
	}
}

// TestSlicesWithoutEndpoints: an EndpointSlice may have no endpoints, as those of a Service whose pods are
// gone, and no ports.
func TestSlicesWithoutEndpoints(t *testing.T) {
	inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
		bare := webSlice("web")
		bare.Ports = nil
		server.Apply(webService("web", "10.96.0.1"), bare)
		m := follow(t, server, client)
		const id = "shop/web:http/tcp"
		m.await(t, id, "no endpoints, no ports", func(p *tracker.ServicePort) bool { return p != nil && !p.HasEndpoints })
		server.Apply(webSlice("web", discoveryv1.Endpoint{Addresses: []string{"10.244.0.5"}}))
		m.await(t, id, "one endpoint", endpoints("10.244.0.5:8080"))
		server.Apply(webSlice("web"))
		m.await(t, id, "none again", func(p *tracker.ServicePort) bool {
			return p != nil && !p.HasEndpoints && len(p.Cluster) == 0
		})
	})
}

// TestRelaxedServiceNames: names of Services may begin with a digit.
func TestRelaxedServiceNames(t *testing.T) {
	inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
		server.Apply(webService("1st-web", "10.96.0.1"),
			webSlice("1st-web", discoveryv1.Endpoint{Addresses: []string{"10.244.0.5"}}))
		follow(t, server, client).await(t, "shop/1st-web:http/tcp", "a name that begins with a digit",
			endpoints("10.244.0.5:8080"))
	})
}

// TestStrictAddresses: a server that is strict stores canonical addresses, and keeps what was stored
// before; both mean what they meant.
func TestStrictAddresses(t *testing.T) {
	inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
		web := webService("web", "010.096.000.001")
		web.Spec.ExternalIPs = []string{"203.0.113.5"}
		web.Spec.LoadBalancerSourceRanges = []string{"192.0.2.7/24"} // with bits of the host
		web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.051.100.007"}}
		server.Apply(web, webSlice("web", discoveryv1.Endpoint{Addresses: []string{"010.244.000.005"}}))
		m := follow(t, server, client)
		same := func(p *tracker.ServicePort) bool {
			return endpoints("10.244.0.5:8080")(p) && p.ClusterIP == netip.MustParseAddr("10.96.0.1") && p.HasSourceRanges &&
				slices.Equal(p.Sources, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}) &&
				slices.Equal(p.LoadBalancers, []netip.Addr{netip.MustParseAddr("198.51.100.7")})
		}
		m.await(t, "shop/web:http/tcp", "addresses from before", same)
		strict := web.DeepCopy()
		strict.Spec.ClusterIP, strict.Spec.ClusterIPs = "10.96.0.1", []string{"10.96.0.1"}
		strict.Spec.LoadBalancerSourceRanges, strict.Status.LoadBalancer.Ingress[0].IP = []string{"192.0.2.0/24"},
			"198.51.100.7"
		server.Apply(strict, webSlice("web", discoveryv1.Endpoint{Addresses: []string{"10.244.0.5"}}),
			webService("next", "10.96.0.2"))
		m.await(t, "shop/next:http/tcp", "the Service after it", func(p *tracker.ServicePort) bool { return p != nil })
		m.await(t, "shop/web:http/tcp", "canonical addresses", same)
	})
}

// TestPreferSameNodeAndZone: hints for nodes come before hints for zones, and either counts only where all
// ready endpoints have it.
func TestPreferSameNodeAndZone(t *testing.T) {
	hinted := func(addr, node, zone string) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Addresses: []string{addr}, Hints: new(discoveryv1.EndpointHints)}
		if node != "" {
			e.NodeName, e.Hints.ForNodes = &node, []discoveryv1.ForNode{{Name: node}}
		}
		if zone != "" {
			e.Zone, e.Hints.ForZones = &zone, []discoveryv1.ForZone{{Name: zone}}
		}
		return e
	}
	inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
		web := webService("web", "10.96.0.1")
		web.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameNode)
		server.Apply(web, webSlice("web", hinted("10.244.0.5", "one", "a"), hinted("10.244.1.5", "two", "a"),
			hinted("10.244.2.5", "three", "b")))
		m := follow(t, server, client)
		const id = "shop/web:http/tcp"
		m.await(t, id, "PreferSameNode", endpoints("10.244.0.5:8080"))
		server.Apply(webSlice("web", hinted("10.244.1.5", "two", "a"), hinted("10.244.2.5", "three", "b")))
		m.await(t, id, "none on this node: the zone", endpoints("10.244.1.5:8080"))
		server.Apply(webSlice("web", hinted("10.244.0.5", "", "a"), hinted("10.244.1.5", "", "a"),
			hinted("10.244.2.5", "", "b")))
		m.await(t, id, "PreferSameZone", endpoints("10.244.0.5:8080", "10.244.1.5:8080"))
		server.Apply(webSlice("web", hinted("10.244.0.5", "", "a"), discoveryv1.Endpoint{Addresses: []string{"10.244.2.5"}}))
		m.await(t, id, "not all have hints", endpoints("10.244.0.5:8080", "10.244.2.5:8080"))
	})
}
