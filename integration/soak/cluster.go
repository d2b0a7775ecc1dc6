package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nft/kube-nft/integration/apiserver"
)

const (
	namespace = "soak"
	nodeName  = "node-0"
)

// after returns the address that comes n after a.
func after(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+uint32(n))))
}

// allServers lists the endpoints that answer.
func allServers() []netip.Addr {
	addrs := make([]netip.Addr, servers)
	for i := range addrs {
		addrs[i] = after(firstServer, i)
	}
	return addrs
}

// A cluster is what the API server holds: Services that change at random, and those of the
// clients, which stay.
type cluster struct {
	server   *apiserver.Server
	random   *rand.Rand
	services int
	rolling  []netip.Addr // the endpoints of Service rolling
	changes  int          // so far
}

// newCluster fills a server.
func newCluster(server *apiserver.Server, random *rand.Rand, services int) *cluster {
	c := &cluster{server: server, random: random, services: services}
	server.Apply(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddress.String()}}},
	})
	for i := range services {
		server.Apply(c.randomService(i), c.randomSlice(i, 0))
	}
	server.Apply(newService(steady, steadyIP), newSlice(steady, 0, allServers()), newService(rolling, rollingIP))
	c.roll()
	return c
}

// clusterIP is that of the changing Service i.
func clusterIP(i int) netip.Addr { return after(serviceCIDR.Addr(), 1024+i) }

func serviceName(i int) string { return fmt.Sprintf("service-%d", i) }

// newService returns a Service with a port for TCP and one for UDP.
func newService(name string, ip netip.Addr) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip.String(), ClusterIPs: []string{ip.String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{
				{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: servicePort},
				{Name: "udp", Protocol: corev1.ProtocolUDP, Port: servicePort},
			},
		},
	}
}

// newSlice returns slice number part of a Service.
func newSlice(service string, part int, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: sliceName(service, part), Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("tcp"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(serverPort))},
			{Name: new("udp"), Protocol: new(corev1.ProtocolUDP), Port: new(int32(serverPort))},
		},
	}
	for _, addr := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}})
	}
	return slice
}

func sliceName(service string, part int) string { return fmt.Sprintf("%s-%d", service, part) }

// randomService returns some value of the changing Service i. Its external IP may be claimed
// by others, too.
func (c *cluster) randomService(i int) *corev1.Service {
	s := newService(serviceName(i), clusterIP(i))
	s.Spec.Ports = s.Spec.Ports[c.random.IntN(2):]
	switch c.random.IntN(6) {
	case 0:
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports[0].NodePort = int32(30000 + i)
	case 1:
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		timeout := int32(1 + c.random.IntN(3600))
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	case 2:
		s.Spec.ExternalIPs = []string{fmt.Sprintf("198.51.100.%d", c.random.IntN(8))}
	case 3:
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
	}
	return s
}

// randomSlice returns a slice of the changing Service i with up to ten endpoints, some of
// which are on this node, not ready or terminating.
func (c *cluster) randomSlice(i, part int) *discoveryv1.EndpointSlice {
	var addrs []netip.Addr
	for range c.random.IntN(11) {
		addrs = append(addrs, after(podCIDR.Addr(), 1+c.random.IntN(1<<16)))
	}
	slice := newSlice(serviceName(i), part, addrs)
	for e := range slice.Endpoints {
		endpoint := &slice.Endpoints[e]
		switch c.random.IntN(5) {
		case 0:
			endpoint.NodeName = new(nodeName)
		case 1:
			endpoint.Conditions.Ready = new(false)
		case 2:
			endpoint.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
		}
	}
	return slice
}

// change changes something at random.
func (c *cluster) change() {
	c.changes++
	i, part := c.random.IntN(c.services), c.random.IntN(2)
	switch c.random.IntN(8) {
	case 0:
		c.server.Delete("Service", namespace, serviceName(i))
	case 1, 2:
		c.server.Apply(c.randomService(i))
	case 3:
		c.server.Delete("EndpointSlice", namespace, sliceName(serviceName(i), part))
	case 4:
		c.roll()
	default:
		c.server.Apply(c.randomSlice(i, part))
	}
}

// roll gives Service rolling other endpoints, two of those that answer.
func (c *cluster) roll() {
	first := c.random.IntN(servers)
	c.rolling = []netip.Addr{after(firstServer, first), after(firstServer, (first+1)%servers)}
	c.server.Apply(newSlice(rolling, 0, c.rolling))
}
