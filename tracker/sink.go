package tracker

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A Sink receives objects from a source, such as an API server or files. *Tracker is one. Its methods are called from
// several goroutines, but never two at a time for objects of one kind. An error says which part of an object
// could not be used.
type Sink interface {
	SetService(*corev1.Service) error
	DeleteService(namespace, name string)
	SetSlice(*discoveryv1.EndpointSlice) error
	DeleteSlice(namespace, name string)
	SetNode(*corev1.Node) error
	DeleteNode(name string)
	SetServiceCIDR(*networkingv1.ServiceCIDR) error
	DeleteServiceCIDR(name string)
}
