// Package trackertest stands in for a Tracker in tests of its sources.
package trackertest

import (
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A Sink keeps a mark of every object: kind, namespace and name, as in "Service shop/web", lead to
// a field that distinguishes versions. Its methods may be called from any goroutine.
type Sink struct {
	// Refusal is returned for every object that is set. It is not changed while the Sink is fed.
	Refusal error

	mu      sync.Mutex
	objects map[string]string
	calls   int
}

// NewSink returns a Sink that holds nothing.
func NewSink() *Sink { return &Sink{objects: make(map[string]string)} }

// Snapshot returns the marks of what the Sink holds.
func (s *Sink) Snapshot() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.objects)
}

// Calls returns how many objects were set and deleted.
func (s *Sink) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *Sink) set(id, mark string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[id] = mark
	s.calls++
	return s.Refusal
}

func (s *Sink) unset(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, id)
	s.calls++
}

// SetService marks the Service with its cluster IP.
func (s *Sink) SetService(o *corev1.Service) error {
	return s.set("Service "+o.Namespace+"/"+o.Name, o.Spec.ClusterIP)
}

// DeleteService forgets the Service.
func (s *Sink) DeleteService(namespace, name string) { s.unset("Service " + namespace + "/" + name) }

// SetSlice marks the EndpointSlice with its number of endpoints.
func (s *Sink) SetSlice(o *discoveryv1.EndpointSlice) error {
	return s.set("EndpointSlice "+o.Namespace+"/"+o.Name, fmt.Sprint(len(o.Endpoints)))
}

// DeleteSlice forgets the EndpointSlice.
func (s *Sink) DeleteSlice(namespace, name string) {
	s.unset("EndpointSlice " + namespace + "/" + name)
}

// SetNode marks the Node with its zone.
func (s *Sink) SetNode(o *corev1.Node) error {
	return s.set("Node "+o.Name, o.Labels[corev1.LabelTopologyZone])
}

// DeleteNode forgets the Node.
func (s *Sink) DeleteNode(name string) { s.unset("Node " + name) }

// SetServiceCIDR marks the ServiceCIDR with its ranges.
func (s *Sink) SetServiceCIDR(o *networkingv1.ServiceCIDR) error {
	return s.set("ServiceCIDR "+o.Name, fmt.Sprint(o.Spec.CIDRs))
}

// DeleteServiceCIDR forgets the ServiceCIDR.
func (s *Sink) DeleteServiceCIDR(name string) { s.unset("ServiceCIDR " + name) }
