package tracker

import (
	"slices"
	"time"
)

// Dirty reports whether Take has something to work out. The result may still be empty: a
// change may turn out to mean nothing on this node.
func (t *Tracker) Dirty() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.dirty) > 0 || t.node.dirty || t.cidrs.dirty
}

// Take returns what changed since the last call. What changed and changed back is not in it.
func (t *Tracker) Take() Delta {
	t.mu.Lock()
	defer t.mu.Unlock()
	var d Delta
	for _, e := range t.dirty {
		t.takeEntry(e, &d)
	}
	clear(t.dirty)
	t.dirty = t.dirty[:0]
	t.taken = t.seen
	t.takeNode(&d)
	t.takeCIDRs(&d)
	return d
}

// takeEntry adds to d what changed of e, and forgets e if nothing is left of it.
func (t *Tracker) takeEntry(e *entry, d *Delta) {
	ports := t.resolve(e)
	if d.replace(e.out, ports) {
		d.observe(e.since)
		d.Triggers = append(d.Triggers, e.triggers...)
	}
	e.out, e.dirty, e.triggers = ports, false, nil
	if e.service == nil && len(e.slices) == 0 {
		delete(t.entries, e.objectName)
	}
}

// takeNode adds the Node to d if it changed.
func (t *Tracker) takeNode(d *Delta) {
	if !t.node.current.same(t.node.out) {
		d.Node, d.NodeGone = t.node.current, t.node.current == nil
		d.observe(t.node.since)
	}
	t.node.out, t.node.dirty = t.node.current, false
	if addrs := t.addresses(); !slices.Equal(addrs, t.reported) {
		d.NodeAddresses, d.AddressesChanged = addrs, true
		t.reported = addrs
	}
}

// takeCIDRs adds the Service CIDRs to d if they changed.
func (t *Tracker) takeCIDRs(d *Delta) {
	if !slices.Equal(t.cidrs.current, t.cidrs.out) {
		d.ServiceCIDRs, d.CIDRsChanged = t.cidrs.current, true
		d.observe(t.cidrs.since)
	}
	t.cidrs.out, t.cidrs.dirty = t.cidrs.current, false
}

// same reports whether n and m mean the same; either may be nil.
func (n *Node) same(m *Node) bool {
	if n == nil || m == nil {
		return n == m
	}
	return n.Equal(m)
}

// observe notes that d carries a change that was observed at that time.
func (d *Delta) observe(at time.Time) {
	if d.Oldest.IsZero() || at.Before(d.Oldest) {
		d.Oldest = at
	}
}

// replace adds to d what turns have, the ports of a Service, into want, and reports whether
// that is anything. Both are sorted by ID. A value of want that equals that of have gives
// way to it: it was handed out and is shared.
func (d *Delta) replace(have, want []*ServicePort) (changed bool) {
	for i, port := range want {
		for len(have) > 0 && have[0].ID.Compare(port.ID) < 0 {
			d.remove(have[0].ID)
			have, changed = have[1:], true
		}
		if len(have) > 0 && have[0].ID == port.ID {
			old := have[0]
			have = have[1:]
			if old.Equal(port) {
				want[i] = old
				continue
			}
		}
		d.change(port)
		changed = true
	}
	for _, gone := range have {
		d.remove(gone.ID)
		changed = true
	}
	return changed
}

func (d *Delta) change(port *ServicePort) {
	if d.Changed == nil {
		d.Changed = make(map[PortID]*ServicePort)
	}
	d.Changed[port.ID] = port
}

func (d *Delta) remove(id PortID) {
	if d.Removed == nil {
		d.Removed = make(map[PortID]bool)
	}
	d.Removed[id] = true
}
