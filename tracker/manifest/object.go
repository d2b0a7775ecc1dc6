package manifest

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/tracker"
)

// An id names an object.
type id struct {
	kind, namespace, name string
}

// String returns the id as logs show it: "Service shop/web", "Node one".
func (i id) String() string {
	if i.namespace == "" {
		return i.kind + " " + i.name
	}
	return i.kind + " " + i.namespace + "/" + i.name
}

// compare orders ids by kind, namespace and name.
func (i id) compare(j id) int {
	return cmp.Or(
		cmp.Compare(i.kind, j.kind),
		cmp.Compare(i.namespace, j.namespace),
		cmp.Compare(i.name, j.name),
	)
}

// A position is a line of a file; lines count from 1.
type position struct {
	path string
	line int
}

func (p position) String() string {
	return fmt.Sprintf("%s:%d", p.path, p.line)
}

// An object is what a document defines. Its value never changes.
type object struct {
	id
	position // where its document begins
	value    metav1.Object
}

// kinds are the readable objects, by apiVersion and kind.
var kinds = map[metav1.TypeMeta]func() metav1.Object{
	{APIVersion: "v1", Kind: "Service"}: func() metav1.Object { return &corev1.Service{} },
	{APIVersion: "v1", Kind: "Node"}:    func() metav1.Object { return &corev1.Node{} },
	{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}: func() metav1.Object {
		return &discoveryv1.EndpointSlice{}
	},
	{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"}: func() metav1.Object { return &networkingv1.ServiceCIDR{} },
}

// give hands o to s.
func (o object) give(s tracker.Sink) error {
	switch value := o.value.(type) {
	case *corev1.Service:
		return s.SetService(value)
	case *discoveryv1.EndpointSlice:
		return s.SetSlice(value)
	case *corev1.Node:
		return s.SetNode(value)
	case *networkingv1.ServiceCIDR:
		return s.SetServiceCIDR(value)
	}
	panic("manifest: object of unknown kind " + o.kind)
}

// remove deletes the object with this id from s.
func (i id) remove(s tracker.Sink) {
	switch i.kind {
	case "Service":
		s.DeleteService(i.namespace, i.name)
	case "EndpointSlice":
		s.DeleteSlice(i.namespace, i.name)
	case "Node":
		s.DeleteNode(i.name)
	case "ServiceCIDR":
		s.DeleteServiceCIDR(i.name)
	}
}
