package tracker

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A Config says for whom a Tracker works.
type Config struct {
	// NodeName is the name of this node's Node object. It is compared in lower case and
	// without blanks around it, as the kubelet registers it.
	NodeName string
	// NodeAddresses take the place of the addresses of the same family in
	// Node.status.addresses, and the first is the primary one. Unspecified addresses are
	// ignored. May be empty.
	NodeAddresses []netip.Addr
	// ServiceProxyName limits the Tracker to Services whose label
	// service.kubernetes.io/service-proxy-name has this value; empty: to those without it.
	// If it is set, ServiceCIDR objects are read but not in force: an address that no known
	// Service has may be one of the other proxy's.
	ServiceProxyName string
	// ServiceCIDRs hold in addition to the ServiceCIDR objects. May be empty.
	ServiceCIDRs []netip.Prefix
	// Clock tells the time at which changes are observed; nil: time.Now.
	Clock func() time.Time
}

// A Tracker holds what the Kubernetes objects that it was given mean on one node. All
// methods may be called from any goroutine. Objects that are passed in are neither kept
// nor changed.
//
// Set methods read an object and note which Service it touches; Take works out what that
// means. The cost of both depends on the Service, not on how many there are, but for
// changes of this node's zone or addresses.
type Tracker struct {
	config  Config
	started time.Time

	mu      sync.Mutex
	entries map[objectName]*entry
	owners  map[objectName]*entry // EndpointSlice -> the Service that has it
	dirty   []*entry
	seen    Changes // since New
	taken   Changes // what seen was at the last Take

	gathering gathering // reused by Take

	node     versioned[*Node]
	reported []netip.Addr // the node's addresses as of the last Take
	cidrs    versioned[[]netip.Prefix]
	cidrObjs map[string][]netip.Prefix // ServiceCIDR objects by name
}

// A versioned value remembers what of it Take handed out last.
type versioned[T any] struct {
	current, out T
	dirty        bool      // current was set after Take
	since        time.Time // when that was observed first; meaningful if dirty
}

// New returns a Tracker without objects.
func New(config Config) *Tracker {
	config.NodeName = strings.ToLower(strings.TrimSpace(config.NodeName))
	config.NodeAddresses = slices.Clone(config.NodeAddresses)
	config.ServiceCIDRs = slices.Clone(config.ServiceCIDRs)
	if config.Clock == nil {
		config.Clock = time.Now
	}
	t := &Tracker{
		config:   config,
		started:  config.Clock(),
		entries:  make(map[objectName]*entry),
		owners:   make(map[objectName]*entry),
		cidrObjs: make(map[string][]netip.Prefix),
	}
	t.mergeCIDRs()
	return t
}

// SetService takes the current value of a Service. The error joins a *Refusal for each
// field that could not be used; the rest is in force. A Service whose name or namespace is
// refused is ignored.
func (t *Tracker) SetService(obj *corev1.Service) error {
	name := objectName{obj.Namespace, obj.Name}
	if err := name.check("Service", labelFault); err != nil {
		return err
	}
	parsed, err := parseService(obj, t.config.ServiceProxyName)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setService(name, parsed)
	return err
}

// DeleteService forgets a Service; one that is not known is ignored.
func (t *Tracker) DeleteService(namespace, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setService(objectName{namespace, name}, nil)
}

// setService makes parsed the value of the Service of that name.
func (t *Tracker) setService(name objectName, parsed *service) {
	e := t.entries[name]
	if e == nil && parsed == nil {
		return
	}
	if e == nil {
		e = t.addEntry(name)
	}
	if !e.service.equal(parsed) {
		e.service = parsed
		e.forgetListings()
		t.seen.Services++
		t.mark(e)
	}
}

// SetSlice takes the current value of an EndpointSlice, which may belong to another
// Service than before. The error joins a *Refusal for each field that could not be used; the rest
// is in force. A slice whose name, namespace or Service's name is refused is ignored.
func (t *Tracker) SetSlice(obj *discoveryv1.EndpointSlice) error {
	name := objectName{obj.Namespace, obj.Name}
	if err := name.check("EndpointSlice", subdomainFault); err != nil {
		return err
	}
	parsed, err := parseSlice(obj, t.config.NodeName)
	trigger := triggerTime(obj)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setSlice(name, parsed, trigger)
	return err
}

// DeleteSlice forgets an EndpointSlice; one that is not known is ignored.
func (t *Tracker) DeleteSlice(namespace, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setSlice(objectName{namespace, name}, nil, time.Time{})
}

// setSlice makes parsed the value of the slice of that name.
func (t *Tracker) setSlice(name objectName, parsed *slice, trigger time.Time) {
	owner := t.owners[name]
	if owner != nil && (parsed == nil || parsed.service != owner.name) {
		owner.removeSlice(name.name)
		delete(t.owners, name)
		t.seen.Slices++
		t.mark(owner)
	}
	if parsed == nil {
		return
	}
	e := t.entries[objectName{name.namespace, parsed.service}]
	if e == nil {
		e = t.addEntry(objectName{name.namespace, parsed.service})
	}
	if !e.putSlice(parsed) {
		return
	}
	t.owners[name] = e
	t.seen.Slices++
	t.mark(e)
	if trigger.After(t.started) && len(e.triggers) < maxServiceTriggers {
		e.triggers = append(e.triggers, Trigger{parsed.family, trigger})
	}
}

// triggerTime returns when the control plane saw what made it write obj; zero if obj does not say.
func triggerTime(obj *discoveryv1.EndpointSlice) time.Time {
	text, ok := obj.Annotations[corev1.EndpointsLastChangeTriggerTime]
	if !ok {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// SetNode takes the current value of a Node; others than this node are ignored. The error
// joins a *Refusal for each field that could not be used; the rest is in force.
func (t *Tracker) SetNode(obj *corev1.Node) error {
	if obj.Name != t.config.NodeName {
		return nil
	}
	parsed, err := parseNode(obj, t.config.NodeAddresses)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setNode(parsed)
	return err
}

// DeleteNode forgets the Node; others than this node are ignored. Nothing is known of its
// zone then, nor of its addresses but for Config.NodeAddresses.
func (t *Tracker) DeleteNode(name string) {
	if name != t.config.NodeName {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setNode(nil)
}

// setNode makes parsed the value of the Node and marks the Services to which that matters.
func (t *Tracker) setNode(parsed *Node) {
	if parsed.same(t.node.current) {
		return
	}
	zone, addrs := t.zone(), t.addresses()
	t.node.set(parsed, t.config.Clock())
	moved, readdressed := t.zone() != zone, !slices.Equal(t.addresses(), addrs)
	if !moved && !readdressed {
		return
	}
	for _, e := range t.entries {
		if moved && e.hinted() || readdressed && e.service.guarded() {
			e.forgetListings()
			t.mark(e)
		}
	}
}

// zone returns the zone of this node, empty if it is not known.
func (t *Tracker) zone() string {
	if t.node.current == nil {
		return ""
	}
	return t.node.current.Zone
}

// addresses returns the address of this node in each family in which it is known.
func (t *Tracker) addresses() []netip.Addr {
	if t.node.current == nil {
		return primaryAddresses(t.config.NodeAddresses, nil)
	}
	return t.node.current.Addresses
}

// SetServiceCIDR takes the current value of a ServiceCIDR. The error joins a *Refusal for
// each field that could not be used; the rest is in force.
func (t *Tracker) SetServiceCIDR(obj *networkingv1.ServiceCIDR) error {
	prefixes, err := parseServiceCIDR(obj)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cidrObjs[obj.Name] = prefixes
	t.mergeCIDRs()
	return err
}

// DeleteServiceCIDR forgets a ServiceCIDR; one that is not known is ignored.
func (t *Tracker) DeleteServiceCIDR(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.cidrObjs, name)
	t.mergeCIDRs()
}

// mergeCIDRs makes the Service CIDRs the union of all sources.
func (t *Tracker) mergeCIDRs() {
	all := slices.Clone(t.config.ServiceCIDRs)
	if t.config.ServiceProxyName == "" {
		for _, prefixes := range t.cidrObjs {
			all = append(all, prefixes...)
		}
	}
	if merged := mergePrefixes(all); !slices.Equal(merged, t.cidrs.current) {
		t.cidrs.set(merged, t.config.Clock())
	}
}

// set makes value the current one, observed at now.
func (v *versioned[T]) set(value T, now time.Time) {
	v.current = value
	if !v.dirty {
		v.dirty, v.since = true, now
	}
}
