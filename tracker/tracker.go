package tracker

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// A Config says for which node and which Services a Tracker works.
type Config struct {
	// NodeName is the name of this node's Node object. Case and surrounding blanks do not matter:
	// the kubelet registers names in lower case and trimmed.
	NodeName string
	// NodeAddresses replace the addresses of the same family in Node.status.addresses; the first one
	// is the primary address. Unspecified addresses are ignored. May be empty.
	NodeAddresses []netip.Addr
	// ServiceProxyName limits the Tracker to Services whose label
	// service.kubernetes.io/service-proxy-name has this value; empty limits it to Services without
	// the label. If it is set, ServiceCIDR objects are read but not in force: an address without a
	// known Service may belong to the other proxy.
	ServiceProxyName string
	// ServiceCIDRs count in addition to the ServiceCIDR objects. May be empty.
	ServiceCIDRs []netip.Prefix
	// ExternalIPs are the addresses that Services may list in spec.externalIPs. A user who may write a
	// Service can draw traffic for any address to it (CVE-2020-8554).
	ExternalIPs ExternalIPs
	// AwaitSlices is how long Take leaves out a new Service that has no EndpointSlice. Both are often
	// created together and arrive by watches of their own; programmed apart, they cost the kernel
	// twice as much. The first Take leaves out nothing. Zero: no Take does.
	AwaitSlices time.Duration
	// Quota is how many elements the Services of one namespace may ask for, see quota.go. Zero: any number.
	Quota int
	// Defaults are the settings of Services without annotations.
	Defaults Settings
	// Clock tells the time at which changes are observed; nil: time.Now.
	Clock func() time.Time
	// CPUTime tells how long the calling thread has worked, to measure what Take works for a namespace; nil: the time
	// that passes.
	CPUTime func() time.Duration
}

// A Tracker holds the meaning of Kubernetes objects on one node. All methods may be called from any
// goroutine. It neither keeps nor changes the objects passed in.
//
// Set methods read an object and record which Service it touches; Take works out what that means. The
// cost of both depends on the Service, not on the number of Services, except for changes of this
// node's zone or addresses.
type Tracker struct {
	config  Config
	started time.Time

	mu         sync.Mutex
	entries    map[objectName]*entry
	namespaces map[string]*namespace
	holders    map[objectName]*entry // EndpointSlice -> the Service that has it
	removed    []*entry              // Services that were deleted after Take
	dirty      []*namespace          // with Services that changed after Take
	held       []string              // the namespaces that Hold was last called with
	advanced   []*entry              // by the present Take
	unserved   int                   // Services that the quota leaves out
	inUse      int                   // namespaces, when those that are gone were forgotten last
	begun      bool                  // Take has been called, and TakeAll has not since
	seen       Changes               // since New
	taken      Changes               // what seen was at the last Take

	takesAwayFirst bool // the next Take begins with what goes: the last one had no room left for it

	gathering gathering // reused by Take
	which     []byte    // reused by portGroups, as numbers
	numbers   []uint16
	// Reused by served.
	firstServed, lastServed []int32
	allServed               []servedPort

	node versioned[*Node]

	zone                string       // of this node; empty if it is not known
	addresses, reported []netip.Addr // this node's known addresses by family: now, and at the last Take

	cidrs    versioned[[]netip.Prefix]
	cidrObjs map[string][]netip.Prefix // ServiceCIDR objects by name
}

// A versioned value knows which of its values Take handed out last.
type versioned[T any] struct {
	current, out T
	dirty        bool      // current was set after Take
	since        time.Time // when the first such change was observed; meaningful if dirty
}

// An objectName names an object of a namespaced kind.
type objectName struct{ namespace, name string }

// An entry is all that is known of one Service: the object, its slices, and the ports that Take
// handed out last. It exists as long as one of them does.
type entry struct {
	objectName
	in       *namespace
	service  *service       // nil: there is no such Service, or it is not for this proxy
	slices   []*slice       // sorted by name
	out      []*ServicePort // sorted by ID
	before   []*ServicePort // what out was before the present Take, if advanced
	advanced bool           // the present Take has set out
	dirty    bool           // changed after Take
	since    time.Time      // when the first such change was observed; meaningful if dirty
	triggers []Trigger      // of the changes after Take
	want     []*ServicePort // what out is to become; nil if that is to be worked out
	reduced  bool           // of want, what is taken away has been; what it adds waits
	leaving  bool           // Delta.Leaving has said that out is being removed
	groups   [][]portGroup  // of each front, from when e is measured to when want is worked out

	demand     demand
	unmeasured bool // demand is that of earlier objects
	granted    grant
	over       *OverQuota // why nothing is granted; else nil

	silent map[PortID][]netip.AddrPort // see Tracker.LeaveOut; the oldest first

	listings []listing    // of each port in each front; nil, or some of them nil: not gathered
	changed  []netip.Addr // what has changed since they were brought up to date
}

// New returns a Tracker without objects.
func New(config Config) *Tracker {
	config.NodeName = strings.ToLower(strings.TrimSpace(config.NodeName))
	config.NodeAddresses = slices.Clone(config.NodeAddresses)
	config.ServiceCIDRs = slices.Clone(config.ServiceCIDRs)
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if config.CPUTime == nil {
		began := time.Now()
		config.CPUTime = func() time.Duration { return time.Since(began) }
	}
	t := &Tracker{
		config:     config,
		started:    config.Clock(),
		entries:    make(map[objectName]*entry),
		namespaces: make(map[string]*namespace),
		holders:    make(map[objectName]*entry),
		cidrObjs:   make(map[string][]netip.Prefix),
	}
	t.addresses = primaryAddresses(config.NodeAddresses, nil)
	t.node.dirty = len(t.addresses) > 0 // Take must hand them out
	t.mergeCIDRs()
	return t
}

// SetService takes the current value of a Service. The error joins an *InvalidField for each
// field that could not be used; the rest is in force. A Service whose name or namespace is
// refused is ignored.
func (t *Tracker) SetService(obj *corev1.Service) error {
	parsed, err := parseService(obj, &t.config)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setService(objectName{obj.Namespace, obj.Name}, parsed)
	return err
}

// DeleteService forgets a Service; it ignores an unknown one.
func (t *Tracker) DeleteService(namespace, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setService(objectName{namespace, name}, nil)
}

// setService stores parsed as the value of the Service with this name.
func (t *Tracker) setService(name objectName, parsed *service) {
	e := t.entries[name]
	if e == nil && parsed == nil {
		return
	}
	if e == nil {
		e = t.newEntry(name)
	}
	if !e.service.equal(parsed) {
		if parsed == nil || !parsed.settings.Eject {
			e.silent = nil
		}
		e.setService(parsed)
		if parsed == nil && len(e.out) > 0 {
			t.removed = append(t.removed, e)
		}
		e.forgetListings()
		t.seen.Services++
		t.mark(e)
	}
}

// SetSlice takes the current value of an EndpointSlice, which may belong to another
// Service than before. The error joins an *InvalidField for each field that could not be used; the rest
// is in force. A slice whose name, namespace or Service's name is refused is ignored.
func (t *Tracker) SetSlice(obj *discoveryv1.EndpointSlice) error {
	parsed, err := parseSlice(obj, t.config.NodeName)
	var trigger time.Time // when the control plane saw the cause of this obj; zero if obj does not say
	if text := obj.Annotations[corev1.EndpointsLastChangeTriggerTime]; text != "" {
		trigger, _ = time.Parse(time.RFC3339Nano, text)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setSlice(objectName{obj.Namespace, obj.Name}, parsed, trigger)
	return err
}

// DeleteSlice forgets an EndpointSlice; it ignores an unknown one.
func (t *Tracker) DeleteSlice(namespace, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setSlice(objectName{namespace, name}, nil, time.Time{})
}

// setSlice stores parsed as the value of the slice with this name.
func (t *Tracker) setSlice(name objectName, parsed *slice, trigger time.Time) {
	holder := t.holders[name]
	if holder != nil && (parsed == nil || parsed.service != holder.name) {
		holder.removeSlice(name.name)
		delete(t.holders, name)
		t.seen.Slices++
		t.mark(holder)
	}
	if parsed == nil {
		return
	}
	service := objectName{name.namespace, parsed.service}
	e := t.entries[service]
	if e == nil {
		e = t.newEntry(service)
	}
	var before *slice
	i, found := e.findSlice(parsed.name)
	switch {
	case !found:
		e.slices = slices.Insert(e.slices, i, parsed)
	case e.slices[i].equal(parsed):
		return
	default:
		before, e.slices[i] = e.slices[i], parsed
	}
	if e.listings != nil {
		e.markChanged(before, parsed)
	}
	e.trustAgain(before, parsed)
	t.holders[name] = e
	t.seen.Slices++
	t.mark(e)
	if trigger.After(t.started) && len(e.triggers) < maxServiceTriggers {
		e.triggers = append(e.triggers, Trigger{parsed.family, trigger})
	}
}

// SetNode takes the current value of a Node and ignores other nodes. The error joins an *InvalidField for
// each field that could not be used; the rest is in force.
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

// DeleteNode records that the Node is gone and ignores other nodes. Its addresses, zone and pod CIDRs
// stay: pods and packets are where they were, whatever became of the object.
func (t *Tracker) DeleteNode(name string) {
	if name != t.config.NodeName {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.node.current != nil {
		gone := *t.node.current
		gone.Gone = true
		t.setNode(&gone)
	}
}

// setNode stores parsed as the value of the Node and marks the Services that depend on it. A new
// object may have no addresses yet.
func (t *Tracker) setNode(parsed *Node) {
	if len(parsed.Addresses) == 0 {
		parsed.Addresses = t.addresses
	}
	if parsed.Equal(t.node.current) {
		return
	}
	t.node.set(parsed, t.config.Clock())
	moved, readdressed := parsed.Zone != t.zone, !slices.Equal(parsed.Addresses, t.addresses)
	t.zone, t.addresses = parsed.Zone, parsed.Addresses
	if !moved && !readdressed {
		return
	}
	for _, e := range t.entries {
		if moved && e.hinted() || readdressed && e.service.hasSourceRanges() {
			e.forgetListings()
			t.touch(e)
		}
	}
}

// SetServiceCIDR takes the current value of a ServiceCIDR. The error joins an *InvalidField for
// each field that could not be used; the rest is in force.
func (t *Tracker) SetServiceCIDR(obj *networkingv1.ServiceCIDR) error {
	prefixes, err := parseServiceCIDR(obj)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cidrObjs[obj.Name] = prefixes
	t.mergeCIDRs()
	return err
}

// DeleteServiceCIDR forgets a ServiceCIDR; it ignores an unknown one.
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
	if !v.dirty || v.since.IsZero() {
		v.dirty, v.since = true, now
	}
}

// newEntry makes the entry of a Service that was not known.
func (t *Tracker) newEntry(name objectName) *entry {
	e := &entry{objectName: name, in: t.namespace(name.namespace)}
	t.entries[name] = e
	e.in.entries[e] = struct{}{}
	return e
}

// mark makes Take look at e, whose objects have changed.
func (t *Tracker) mark(e *entry) {
	e.unmeasured = true
	t.touch(e)
}

// touch makes Take look at e.
func (t *Tracker) touch(e *entry) {
	e.want, e.groups, e.reduced, e.in.rests = nil, nil, false, false
	if e.dirty {
		return
	}
	e.dirty, e.since = true, t.config.Clock()
	if len(e.in.dirty) == 0 && !e.in.recount {
		t.dirty = append(t.dirty, e.in)
	}
	e.in.dirty = append(e.in.dirty, e)
}

// removeSlice forgets the slice with this name and its trigger times: they would be measured
// against a change that came later.
func (e *entry) removeSlice(name string) {
	if i, found := e.findSlice(name); found {
		if e.listings != nil {
			e.markChanged(e.slices[i], nil)
		}
		e.trustAgain(e.slices[i], nil)
		e.slices = slices.Delete(e.slices, i, i+1)
		e.triggers = nil
	}
}

func (e *entry) findSlice(name string) (i int, found bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *slice, name string) int { return cmp.Compare(s.name, name) })
}

// awaits reports whether e is a new Service whose slices are to be waited for. What was handed out
// before never waits.
func (e *entry) awaits() bool { return e.service != nil && e.out == nil && len(e.slices) == 0 }

// hinted reports whether the meaning of the Service depends on this node's zone.
func (e *entry) hinted() bool {
	return slices.ContainsFunc(e.slices, (*slice).hinted)
}

// Node returns this node's current value, even if Take has not handed it out; nil if there has been
// no Node object.
func (t *Tracker) Node() *Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.node.current
}

// NodeAddresses returns the known address of this node in each family, the primary family first.
// Addresses of Config come before addresses of the Node object.
func (t *Tracker) NodeAddresses() []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addresses
}

// ServiceUID returns the UID of a Service; false if there is no such Service for this proxy.
func (t *Tracker) ServiceUID(namespace, name string) (uid string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[objectName{namespace, name}]
	if e == nil || e.service == nil {
		return "", false
	}
	return e.service.uid, true
}

// Changes counts changes of objects that mean something to this proxy.
type Changes struct {
	Services uint64 // of Services
	Slices   uint64 // of EndpointSlices
}

// Changes returns how many changes there have been since New, and how many after the last Take.
func (t *Tracker) Changes() (total, pending Changes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen, Changes{t.seen.Services - t.taken.Services, t.seen.Slices - t.taken.Slices}
}
