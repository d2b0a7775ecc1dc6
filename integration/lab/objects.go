package lab

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The port of every Service and of every endpoint, unless a test says otherwise.
const (
	PortName     = "http"
	ServicePort  = 80
	EndpointPort = 8080
)

// Service returns a Service as an API server stores it, of the families of its cluster IPs.
func Service(namespace, name string, ips ...netip.Addr) *corev1.Service {
	families, internal := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	if len(ips) > 1 {
		families = corev1.IPFamilyPolicyRequireDualStack
	}
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID("uid-" + name),
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ips[0].String(), IPFamilyPolicy: &families,
			InternalTrafficPolicy: &internal, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Name: PortName, Protocol: corev1.ProtocolTCP, Port: ServicePort,
				TargetPort: intstr.FromInt32(EndpointPort)}},
		},
	}
	for _, ip := range ips {
		s.Spec.ClusterIPs = append(s.Spec.ClusterIPs, ip.String())
		s.Spec.IPFamilies = append(s.Spec.IPFamilies, FamilyOf(ip))
	}
	return s
}

// Slice returns slice number part of a Service, with endpoints at addresses of a family.
func Slice(namespace, service string, part int, family corev1.IPFamily, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%d", service, part),
			Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressType(family),
		Ports: []discoveryv1.EndpointPort{{Name: new(PortName), Protocol: new(corev1.ProtocolTCP),
			Port: new(int32(EndpointPort))}},
	}
	s.Endpoints = slices.Grow(s.Endpoints, len(addrs))
	for _, addr := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}})
	}
	return s
}

// Node returns a Node with these addresses of its own.
func Node(name string, addrs ...netip.Addr) *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, addr := range addrs {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP,
			Address: addr.String()})
	}
	return n
}

// Pod returns the pod of kube-nft on a node, which runs.
func Pod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-nft-" + node,
			Labels: map[string]string{"app.kubernetes.io/name": "kube-nft"}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "kube-nft",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}},
	}
}

// Manifest returns objects as the documents of a manifest, a line each.
func Manifest(objects ...any) string {
	var b strings.Builder
	for _, object := range objects {
		document, err := json.Marshal(object)
		if err != nil {
			panic(err) // objects of the API can be written
		}
		// YAML takes no bare delete character, which JSON allows.
		b.WriteString("---\n" + strings.ReplaceAll(string(document), "\x7f", `\u007f`) + "\n")
	}
	return b.String()
}

// Web returns the manifest of a Service of the namespace shop and its endpoints, all of the
// family of the cluster IP.
func Web(name string, ip netip.Addr, endpoints []netip.Addr, edits ...func(*corev1.Service)) string {
	s := Service("shop", name, ip)
	for _, edit := range edits {
		edit(s)
	}
	return Manifest(s, Slice("shop", name, 1, FamilyOf(ip), endpoints))
}

// FamilyOf returns the family of an address as the Kubernetes API spells it.
func FamilyOf(addr netip.Addr) corev1.IPFamily {
	if addr.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

// Addresses returns n consecutive addresses.
func Addresses(first netip.Addr, n int) []netip.Addr {
	addrs := make([]netip.Addr, n)
	for i := range addrs {
		addrs[i] = first
		first = first.Next()
	}
	return addrs
}

// After returns the address that comes n after another one, counted in the last four bytes.
func After(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(n))
	next, _ := netip.AddrFromSlice(b) // as long as a
	return next
}
