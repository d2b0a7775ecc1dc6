package main

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// The addresses of a made-up cluster. Endpoints take the first half of podCIDR; the other
// half is for those that come while something is measured, each with an address that
// no endpoint had before.
var (
	serviceCIDR   = netip.MustParsePrefix("10.96.0.0/12")
	podCIDR       = netip.MustParsePrefix("10.128.0.0/9")
	firstEndpoint = netip.MustParseAddr("10.128.0.0")
	firstNewcomer = netip.MustParseAddr("10.192.0.0")
	clientAddress = netip.MustParsePrefix("10.255.255.1/32")
)

// What parseSizes allows: addresses for all.
const (
	maxServices  = 1 << 19
	maxEndpoints = 100_000
	maxAddresses = 1 << 22
	perSlice     = 100 // as many as the EndpointSlice controller puts into one
)

const namespace = "scale"

// clusterIP is the cluster IP of Service i; the first addresses of the range stay free.
func clusterIP(i int) netip.Addr { return lab.After(serviceCIDR.Addr(), 16+i) }

func serviceName(i int) string { return fmt.Sprintf("service-%d", i) }

// newService returns a Service of the given name and cluster IP, with what most have besides.
func newService(name string, ip netip.Addr) *corev1.Service {
	s := lab.Service(namespace, name, ip)
	s.Labels = map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "Helm"}
	s.Annotations = map[string]string{"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace}
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "helm", Operation: metav1.ManagedFieldsOperationUpdate,
		APIVersion: "v1", Time: &s.CreationTimestamp}}
	s.Spec.Selector = map[string]string{"app.kubernetes.io/name": name}
	return s
}

// newSlice returns slice number part of a Service with ready endpoints at these addresses.
func newSlice(service string, part int, addrs []netip.Addr) *discoveryv1.EndpointSlice {
	s := lab.Slice(namespace, service, part, corev1.IPv4Protocol, addrs)
	s.Labels[discoveryv1.LabelManagedBy], s.Labels["app.kubernetes.io/name"] = "endpointslice-controller.k8s.io", service
	s.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: service,
		UID: types.UID("uid-" + service), Controller: new(true)}}
	for i, addr := range addrs {
		e := &s.Endpoints[i]
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
		e.NodeName = new(fmt.Sprintf("node-%d", 1+i))
		e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: namespace,
			Name: fmt.Sprintf("%s-%x", service, addr.As4()), UID: types.UID(addr.String())}
	}
	return s
}

// newNode returns the node that the proxy runs on.
func newNode() *corev1.Node { return lab.Node(lab.NodeName, clientAddress.Addr()) }

// endpointsOf returns the addresses of the endpoints of Service i.
func (s size) endpointsOf(i int) []netip.Addr {
	addrs := make([]netip.Addr, s.endpoints)
	for e := range addrs {
		addrs[e] = lab.After(firstEndpoint, 1+i*s.endpoints+e)
	}
	return addrs
}

// A sequence hands out addresses that no endpoint had before.
type sequence struct{ used atomic.Int64 }

func (s *sequence) next() netip.Addr { return lab.After(firstNewcomer, int(s.used.Add(1))) }

// newSpace returns a namespace in which Service addresses and endpoints can be reached: cluster
// IPs lead to a device that swallows everything, and so do endpoints, unless answering:
// then they are addresses of the namespace itself.
func newSpace(answering bool) (*lab.Namespace, error) {
	space, err := lab.NewNamespace()
	if err != nil {
		return nil, err
	}
	err = space.Do(func() error {
		if answering {
			return errors.Join(layNode(), lab.AddLocal(podCIDR))
		}
		return errors.Join(layNode(), lab.AddRoute(sink, podCIDR, netip.Addr{}))
	})
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	return space, nil
}

// sink is a device that swallows everything.
const sink = "sink"

// layNode gives the calling thread's namespace the node's address, and routes to cluster IPs.
func layNode() error {
	return errors.Join(lab.AddSink(sink), lab.AddAddress(sink, clientAddress),
		lab.AddRoute(sink, serviceCIDR, netip.Addr{}), lab.Forward())
}

// A size is how large a cluster is: so many Services with so many endpoints each.
type size struct{ services, endpoints int }

// String returns "SERVICESxENDPOINTS", the form that parseSizes reads.
func (s size) String() string { return fmt.Sprintf("%dx%d", s.services, s.endpoints) }

// parseSizes reads sizes that are separated by commas.
func parseSizes(text string) (sizes []size, err error) {
	for _, part := range strings.Split(text, ",") {
		var s size
		n, err := fmt.Sscanf(part+"\n", "%dx%d\n", &s.services, &s.endpoints)
		switch {
		case err != nil || n != 2:
			return nil, fmt.Errorf("size %q: want SERVICESxENDPOINTS, such as 1000x10", part)
		case s.services < 1 || s.services > maxServices || s.endpoints < 1 || s.endpoints > maxEndpoints:
			return nil, fmt.Errorf("size %q: want 1 to %d Services of 1 to %d endpoints", part, maxServices, maxEndpoints)
		case s.services*s.endpoints > maxAddresses:
			return nil, fmt.Errorf("size %q: want at most %d endpoints in all", part, maxAddresses)
		}
		sizes = append(sizes, s)
	}
	return sizes, nil
}
