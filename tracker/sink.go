package tracker

import (
	"time"

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

// SafetyPeriod is how long Services stay that the source of objects no longer has, if TooFew are left. Then
// the source is right: the rules of a cluster that was emptied must not stay for good.
const SafetyPeriod = 10 * time.Minute

// TooFew is the safety check: it reports whether a source that keeps so many of the objects that there were
// is more likely wrong than right. A wiped API server, a wrong one and an empty directory lose nearly all
// at once; clusters seldom do. Objects that are deleted while a watch runs need no check.
// It only delays. A takeover removes at once and for good, and is refused for less: migrate.Comparison.Refusal.
func TooFew(kept, of int) bool { return of >= 20 && kept*10 < of }
