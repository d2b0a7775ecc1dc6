package informer

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// toBeDeletedTaint is set by the cluster autoscaler on nodes that it is about to remove.
const toBeDeletedTaint = "ToBeDeletedByClusterAutoscaler"

// The functions of this file leave of an object what the tracker reads, and only that: a
// field that is missing here stays unseen on this node.

// trimMeta keeps what names, orders and versions an object.
func trimMeta(meta *metav1.ObjectMeta, labels ...string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace:         meta.Namespace,
		Name:              meta.Name,
		UID:               meta.UID,
		ResourceVersion:   meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp,
		DeletionTimestamp: meta.DeletionTimestamp,
		Labels:            only(meta.Labels, labels...),
	}
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
	spec := &service.Spec
	*service = corev1.Service{
		ObjectMeta: trimMeta(&service.ObjectMeta, serviceProxyNameLabel),
		Spec: corev1.ServiceSpec{
			Type:                     spec.Type,
			ClusterIP:                spec.ClusterIP,
			ClusterIPs:               spec.ClusterIPs,
			IPFamilies:               spec.IPFamilies,
			Ports:                    trimServicePorts(spec.Ports),
			ExternalIPs:              spec.ExternalIPs,
			LoadBalancerSourceRanges: spec.LoadBalancerSourceRanges,
			ExternalTrafficPolicy:    spec.ExternalTrafficPolicy,
			InternalTrafficPolicy:    spec.InternalTrafficPolicy,
			HealthCheckNodePort:      spec.HealthCheckNodePort,
			SessionAffinity:          spec.SessionAffinity,
			SessionAffinityConfig:    spec.SessionAffinityConfig,
		},
		Status: corev1.ServiceStatus{
			LoadBalancer: corev1.LoadBalancerStatus{Ingress: trimIngress(service.Status.LoadBalancer.Ingress)},
		},
	}
}

func trimServicePorts(ports []corev1.ServicePort) []corev1.ServicePort {
	if ports == nil {
		return nil
	}
	trimmed := make([]corev1.ServicePort, len(ports))
	for i, port := range ports {
		trimmed[i] = corev1.ServicePort{
			Name:     port.Name,
			Protocol: port.Protocol,
			Port:     port.Port,
			NodePort: port.NodePort,
		}
	}
	return trimmed
}

func trimIngress(ingress []corev1.LoadBalancerIngress) []corev1.LoadBalancerIngress {
	if ingress == nil {
		return nil
	}
	trimmed := make([]corev1.LoadBalancerIngress, len(ingress))
	for i, entry := range ingress {
		trimmed[i] = corev1.LoadBalancerIngress{IP: entry.IP, IPMode: entry.IPMode}
	}
	return trimmed
}

func trimSlice(slice *discoveryv1.EndpointSlice) {
	meta := trimMeta(&slice.ObjectMeta, discoveryv1.LabelServiceName, corev1.IsHeadlessService)
	meta.Annotations = only(slice.Annotations, corev1.EndpointsLastChangeTriggerTime)
	*slice = discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: slice.AddressType,
		Ports:       trimSlicePorts(slice.Ports),
		Endpoints:   trimEndpoints(slice.Endpoints),
	}
}

func trimSlicePorts(ports []discoveryv1.EndpointPort) []discoveryv1.EndpointPort {
	if ports == nil {
		return nil
	}
	trimmed := make([]discoveryv1.EndpointPort, len(ports))
	for i, port := range ports {
		trimmed[i] = discoveryv1.EndpointPort{Name: port.Name, Protocol: port.Protocol, Port: port.Port}
	}
	return trimmed
}

func trimEndpoints(endpoints []discoveryv1.Endpoint) []discoveryv1.Endpoint {
	if endpoints == nil {
		return nil
	}
	trimmed := make([]discoveryv1.Endpoint, len(endpoints))
	for i, endpoint := range endpoints {
		trimmed[i] = discoveryv1.Endpoint{
			// Only the first address counts: the API calls the others fungible.
			Addresses:  endpoint.Addresses[:min(1, len(endpoint.Addresses))],
			Conditions: endpoint.Conditions,
			NodeName:   endpoint.NodeName,
			Hints:      endpoint.Hints,
		}
	}
	return trimmed
}

func trimNode(node *corev1.Node) {
	*node = corev1.Node{
		ObjectMeta: trimMeta(&node.ObjectMeta, corev1.LabelTopologyZone),
		Spec: corev1.NodeSpec{
			PodCIDR:  node.Spec.PodCIDR,
			PodCIDRs: node.Spec.PodCIDRs,
			Taints:   trimTaints(node.Spec.Taints),
		},
		Status: corev1.NodeStatus{Addresses: node.Status.Addresses},
	}
}

func trimTaints(taints []corev1.Taint) []corev1.Taint {
	for _, taint := range taints {
		if taint.Key == toBeDeletedTaint {
			return []corev1.Taint{taint}
		}
	}
	return nil
}

func trimServiceCIDR(cidr *networkingv1.ServiceCIDR) {
	*cidr = networkingv1.ServiceCIDR{
		ObjectMeta: trimMeta(&cidr.ObjectMeta),
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidr.Spec.CIDRs},
	}
}
