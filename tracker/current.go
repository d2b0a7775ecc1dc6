package tracker

import "net/netip"

// Node returns this node's current value, whether Take has handed it out or not; nil if
// there is no Node object.
func (t *Tracker) Node() *Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.node.current
}

// NodeAddresses returns the address of this node in each family in which it is known, the
// primary family first: those of Config, then those of the Node object.
func (t *Tracker) NodeAddresses() []netip.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.addresses()
}

// ServiceUID returns the UID of a Service, empty if there is no such Service for this proxy.
func (t *Tracker) ServiceUID(namespace, name string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[objectName{namespace, name}]
	if e == nil || e.service == nil {
		return ""
	}
	return e.service.uid
}

// Changes counts changes of objects: those that mean something to this proxy.
type Changes struct {
	Services uint64 // of Services
	Slices   uint64 // of EndpointSlices
}

// Changes returns how many changes there have been since New, and how many of them came after
// the last Take.
func (t *Tracker) Changes() (total, pending Changes) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen, Changes{t.seen.Services - t.taken.Services, t.seen.Slices - t.taken.Slices}
}
