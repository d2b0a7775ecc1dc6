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
