package main

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// Addresses that tenants ask for. Those of load balancers are routed to a device that drops everything.
var (
	balancerCIDR = netip.MustParsePrefix("198.18.0.0/15")
	rangesCIDR   = netip.MustParsePrefix("20.0.0.0/8") // of clients that Services let in
)

// A world is the content of an API server.
type world struct {
	fill func(*apiserver.Server)
	last netip.AddrPort // of the Service that comes last
}

// sliceOf is newSlice with all ports of a Service.
func sliceOf(s *corev1.Service, part int, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	slice := newSlice(s.Name, part, addrs)
	slice.Ports = nil
	for _, p := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: new(p.Name), Protocol: new(p.Protocol),
			Port: new(p.TargetPort.IntVal)})
	}
	return slice
}

// An edit makes Service i of a world other than plain.
type edit func(i int, s *corev1.Service)

// worldOf has so many Services of so many endpoints, each as edits make it.
func worldOf(services, endpoints int, edits ...edit) world {
	at := size{services, endpoints}
	fill := func(server *apiserver.Server) {
		for i := range services {
			service := newService(serviceName(i), clusterIP(i))
			for _, edit := range edits {
				edit(i, service)
			}
			server.Apply(service)
			part := 0
			for addrs := range slices.Chunk(at.endpointsOf(i), perSlice) {
				server.Apply(sliceOf(service, part, addrs))
				part++
			}
		}
	}
	return world{fill: fill, last: netip.AddrPortFrom(clusterIP(services-1), lab.ServicePort)}
}

// affine gives a Service session affinity.
func affine(_ int, s *corev1.Service) { setAffinity(s, 3*time.Hour) }

// hashed lets a Service choose endpoints by Maglev.
func hashed(_ int, s *corev1.Service) {
	s.Annotations = map[string]string{tracker.AnnotationPrefix + "lb-algorithm": "maglev"}
}

func setAffinity(s *corev1.Service, timeout time.Duration) {
	s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
		ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(timeout.Seconds()))},
	}
}

// balanced gives a Service an address of a load balancer.
func balanced(i int, s *corev1.Service) {
	s.Spec.Type, s.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, new(false)
	s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: lab.After(balancerCIDR.Addr(), 1+i).String()}}
}

// restricted lets a number of ranges in, each Service other ones.
func restricted(ranges int) edit {
	return func(i int, s *corev1.Service) {
		balanced(i, s)
		for n := range ranges {
			s.Spec.LoadBalancerSourceRanges = append(s.Spec.LoadBalancerSourceRanges, sourceRange(i*ranges+n).String())
		}
	}
}

// sourceRange is range n; no two are neighbours, which would become one.
func sourceRange(n int) netip.Prefix { return netip.PrefixFrom(lab.After(rangesCIDR.Addr(), 32*n), 28) }
