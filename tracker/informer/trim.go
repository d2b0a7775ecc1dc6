package informer

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/tracker"
)

// The functions of this file drop the large parts of an object that nothing reads.

// trimMeta drops all labels except the named ones, and all annotations except ours.
func trimMeta(meta *metav1.ObjectMeta, labels ...string) {
	meta.Labels = only(meta.Labels, labels...)
	maps.DeleteFunc(meta.Annotations, func(key, _ string) bool { return !tracker.IsAnnotation(key) })
	if len(meta.Annotations) == 0 {
		meta.Annotations = nil
	}
	meta.ManagedFields, meta.OwnerReferences, meta.Finalizers = nil, nil, nil
	meta.GenerateName, meta.Generation = "", 0
}

// only returns the entries of all under the given keys, nil if there are none.
func only(all map[string]string, keys ...string) map[string]string {
	var some map[string]string
	for _, key := range keys {
		if value, found := all[key]; found {
			if some == nil {
				some = make(map[string]string, 1)
			}
			some[key] = value
		}
	}
	return some
}

func trimService(service *corev1.Service) {
	trimMeta(&service.ObjectMeta, tracker.ProxyNameLabel)
	service.Spec.Selector, service.Spec.IPFamilyPolicy = nil, nil
	for i := range service.Spec.Ports {
		service.Spec.Ports[i].AppProtocol = nil
	}
	service.Status.Conditions = nil
	for i := range service.Status.LoadBalancer.Ingress {
		ingress := &service.Status.LoadBalancer.Ingress[i]
		ingress.Hostname, ingress.Ports = "", nil
	}
}

func trimSlice(slice *discoveryv1.EndpointSlice) {
	trigger, triggered := slice.Annotations[corev1.EndpointsLastChangeTriggerTime]
	trimMeta(&slice.ObjectMeta, discoveryv1.LabelServiceName, corev1.IsHeadlessService)
	if triggered {
		metav1.SetMetaDataAnnotation(&slice.ObjectMeta, corev1.EndpointsLastChangeTriggerTime, trigger)
	}
	for i := range slice.Ports {
		slice.Ports[i].AppProtocol = nil
	}
	slice.Endpoints = slices.Clone(slice.Endpoints) // decoding leaves room for more
	for i := range slice.Endpoints {
		endpoint := &slice.Endpoints[i]
		// Only the first address counts: the API calls the others fungible.
		endpoint.Addresses = endpoint.Addresses[:min(1, len(endpoint.Addresses))]
		endpoint.Hostname, endpoint.TargetRef, endpoint.Zone, endpoint.DeprecatedTopology = nil, nil, nil, nil
	}
}

func trimNode(node *corev1.Node) {
	trimMeta(&node.ObjectMeta, corev1.LabelTopologyZone)
	var network []corev1.NodeCondition
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeNetworkUnavailable {
			network = append(network, corev1.NodeCondition{Type: condition.Type, Status: condition.Status})
		}
	}
	node.Status = corev1.NodeStatus{Addresses: node.Status.Addresses, Conditions: network}
}

func trimServiceCIDR(cidr *networkingv1.ServiceCIDR) {
	trimMeta(&cidr.ObjectMeta)
	cidr.Status = networkingv1.ServiceCIDRStatus{}
}
