package apiserver

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// object is what every API type offers.
type object interface {
	runtime.Object
	metav1.Object
	Marshal() ([]byte, error) // protobuf
}

// A kind is one type of object that is served.
type kind struct {
	gvk      schema.GroupVersionKind
	resource string // plural, as in paths
	empty    func() object
}

// kinds lists what is served.
var kinds = [...]kind{
	{corev1.SchemeGroupVersion.WithKind("Service"), "services", func() object { return &corev1.Service{} }},
	{corev1.SchemeGroupVersion.WithKind("Node"), "nodes", func() object { return &corev1.Node{} }},
	{corev1.SchemeGroupVersion.WithKind("Pod"), "pods", func() object { return &corev1.Pod{} }},
	{corev1.SchemeGroupVersion.WithKind("Event"), "events", func() object { return &corev1.Event{} }},
	{appsv1.SchemeGroupVersion.WithKind("DaemonSet"), "daemonsets", func() object { return &appsv1.DaemonSet{} }},
	{discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), "endpointslices",
		func() object { return &discoveryv1.EndpointSlice{} }},
	{networkingv1.SchemeGroupVersion.WithKind("ServiceCIDR"), "servicecidrs",
		func() object { return &networkingv1.ServiceCIDR{} }},
}

// kindOf returns the name of o's kind, empty if it is none of kinds.
func kindOf(o object) string {
	switch o.(type) {
	case *corev1.Service:
		return "Service"
	case *corev1.Node:
		return "Node"
	case *corev1.Pod:
		return "Pod"
	case *corev1.Event:
		return "Event"
	case *appsv1.DaemonSet:
		return "DaemonSet"
	case *discoveryv1.EndpointSlice:
		return "EndpointSlice"
	case *networkingv1.ServiceCIDR:
		return "ServiceCIDR"
	}
	return ""
}

// selectable returns the fields of o that field selectors may name.
func selectable(o object) fields.Set {
	set := fields.Set{"metadata.name": o.GetName()}
	if o.GetNamespace() != "" {
		set["metadata.namespace"] = o.GetNamespace()
	}
	if service, ok := o.(*corev1.Service); ok {
		set["spec.clusterIP"] = service.Spec.ClusterIP
		set["spec.type"] = string(service.Spec.Type)
	}
	if pod, ok := o.(*corev1.Pod); ok {
		set["spec.nodeName"] = pod.Spec.NodeName
		set["status.podIP"] = pod.Status.PodIP
	}
	return set
}
