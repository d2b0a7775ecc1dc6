package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The addresses of a made-up cluster. Endpoints take the first half of podCIDR; the other
// half is for those that come while something is measured, each with an address that
// nobody had before.
var (
	serviceCIDR   = netip.MustParsePrefix("10.96.0.0/12")
	podCIDR       = netip.MustParsePrefix("10.128.0.0/9")
	firstEndpoint = netip.MustParseAddr("10.128.0.0")
	firstNewcomer = netip.MustParseAddr("10.192.0.0")
	clientAddress = netip.MustParsePrefix("10.255.255.1/32")
)

// What parseSizes allows: addresses for all, and one EndpointSlice for each Service.
const (
	maxServices  = 1 << 19
	maxEndpoints = perSlice
	maxAddresses = 1 << 22
	perSlice     = 100 // as many as the EndpointSlice controller puts into one
)

// The ports of all Services and of all their endpoints.
const (
	servicePort  = 80
	endpointPort = 8080
)

const (
	namespace = "scale"
	nodeName  = "node-0"
	portName  = "http"
)

// after returns the address that comes n after a.
func after(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+uint32(n))))
}

// clusterIP is that of Service i; the first addresses of the range stay free.
func clusterIP(i int) netip.Addr { return after(serviceCIDR.Addr(), 16+i) }

func serviceName(i int) string { return fmt.Sprintf("service-%d", i) }

// newService returns a Service of the given name and cluster IP, as an API server stores
// it.
func newService(name string, ip netip.Addr) *corev1.Service {
	created := metav1.NewTime(time.Unix(1_700_000_000, 0))
	policy := corev1.ServiceInternalTrafficPolicyCluster
	family := corev1.IPFamilyPolicySingleStack
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name), CreationTimestamp: created,
			Labels:        map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "Helm"},
			Annotations:   map[string]string{"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "helm", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip.String(), ClusterIPs: []string{ip.String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &family,
			InternalTrafficPolicy: &policy, SessionAffinity: corev1.ServiceAffinityNone,
			Selector: map[string]string{"app.kubernetes.io/name": name},
			Ports:    []corev1.ServicePort{{Name: portName, Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(endpointPort)}},
		},
	}
}

// newSlice returns slice number part of a Service with ready endpoints at these addresses.
func newSlice(service string, part int, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%d", service, part),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
				"app.kubernetes.io/name": service,
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service, UID: types.UID("uid-" + service), Controller: new(true)}},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(portName), Protocol: new(corev1.ProtocolTCP), Port: new(int32(endpointPort))}},
	}
	for i, addr := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addr.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", 1+i)),
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%x", service, addr.As4()), UID: types.UID(addr.String())},
		})
	}
	return slice
}

// newNode returns the node that the proxy runs on.
func newNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: clientAddress.Addr().String()}},
		},
	}
}

// endpointsOf returns the addresses of the endpoints of Service i.
func (s size) endpointsOf(i int) []netip.Addr {
	addrs := make([]netip.Addr, s.endpoints)
	for e := range addrs {
		addrs[e] = after(firstEndpoint, 1+i*s.endpoints+e)
	}
	return addrs
}

// A sequence hands out addresses that no endpoint had before.
type sequence struct{ used int }

func (s *sequence) next() netip.Addr {
	s.used++
	return after(firstNewcomer, s.used)
}
