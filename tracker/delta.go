package tracker

import (
	"maps"
	"net/netip"
	"slices"
	"time"
)

// A Delta is what changed between two calls of Take. Its values are complete: applying
// one twice, or several merged, gives the same state.
type Delta struct {
	Changed []*ServicePort  // current values of all added and altered ports, each once; those of a Service sorted by ID
	Removed map[PortID]bool // ports that are gone; never also in Changed
	// Leaving are Services whose ports are removed from now on, in this delta and later ones. Until then each of their
	// ports that is not in Changed has become ServicePort.Leaving, without a health-check node port. A Service may have
	// 10,000 ports, and a namespace many such Services.
	Leaving map[ServiceID]bool

	Node         *Node          // the node's current value if it changed, else nil; never written to again
	ServiceCIDRs []netip.Prefix // all Service CIDRs, merged; meaningful if CIDRsChanged
	CIDRsChanged bool

	NodeAddresses    []netip.Addr // as Tracker.NodeAddresses returns them; meaningful if AddressesChanged
	AddressesChanged bool

	// Oldest is when the earliest of these changes was observed; zero if there is none.
	Oldest time.Time
	// Due is when Take will have more if nothing else changes; zero if it has left out nothing.
	Due time.Time
	// Waiting is how many Services wait for additions because their namespaces have used more than their share of the
	// time, or are held. Slowest is the namespace whose share makes it wait longest, and Wait how long.
	Waiting int
	Slowest string
	Wait    time.Duration
	// OverQuota are Services that Config.Quota leaves out from now on, a few of each namespace. Unserved is how many it
	// leaves out in all.
	OverQuota []*OverQuota
	Unserved  int
	// Triggers say when the control plane saw the causes of endpoint changes in this delta: one for
	// each update of an EndpointSlice with that annotation. If many updates wait because the loop is
	// held up, the delta keeps the earliest.
	Triggers []Trigger
}

// Limits on Triggers, so that they do not grow while nothing is committed.
const (
	maxTriggers        = 1 << 16 // of a Delta
	maxServiceTriggers = 1 << 8  // of a Service, between two calls of Take
)

// A Trigger is the time at which the control plane saw why endpoints of a family had to change. It
// is later than the start of this process. Source: annotation
// endpoints.kubernetes.io/last-change-trigger-time.
type Trigger struct {
	Family Family
	At     time.Time
}

// Empty reports whether d carries no change.
func (d *Delta) Empty() bool {
	return len(d.Changed) == 0 && len(d.Removed) == 0 && len(d.Leaving) == 0 && d.Node == nil &&
		!d.CIDRsChanged && !d.AddressesChanged
}

// Merge puts newer on top of d. The loop merges into a Delta that it could not commit.
func (d *Delta) Merge(newer Delta) {
	if len(d.Changed)+len(d.Removed) > 0 {
		again := make(map[PortID]bool, len(newer.Changed))
		for _, port := range newer.Changed {
			again[port.ID] = true
			delete(d.Removed, port.ID)
		}
		d.Changed = slices.DeleteFunc(d.Changed, func(p *ServicePort) bool { return again[p.ID] || newer.Removed[p.ID] })
	}
	for i, port := range d.Changed {
		if newer.Leaving[ServiceID{port.ID.Namespace, port.ID.Service}] {
			d.Changed[i] = port.leaving()
		}
	}
	d.Changed = append(d.Changed, newer.Changed...)
	if d.Removed == nil {
		d.Removed = make(map[PortID]bool, len(newer.Removed))
	}
	maps.Copy(d.Removed, newer.Removed)
	if d.Leaving == nil {
		d.Leaving = make(map[ServiceID]bool, len(newer.Leaving))
	}
	maps.Copy(d.Leaving, newer.Leaving)
	if newer.Node != nil {
		d.Node = newer.Node
	}
	if newer.CIDRsChanged {
		d.ServiceCIDRs, d.CIDRsChanged = newer.ServiceCIDRs, true
	}
	if newer.AddressesChanged {
		d.NodeAddresses, d.AddressesChanged = newer.NodeAddresses, true
	}
	if d.Oldest.IsZero() {
		d.Oldest = newer.Oldest
	}
	d.Waiting, d.Slowest, d.Wait = newer.Waiting, newer.Slowest, newer.Wait
	d.OverQuota, d.Unserved = append(d.OverQuota, newer.OverQuota...), newer.Unserved
	room := max(0, maxTriggers-len(d.Triggers))
	d.Triggers = append(d.Triggers, newer.Triggers[:min(room, len(newer.Triggers))]...)
}

// leaveOut reports whether what is due at a time has to wait, and if so records when it is due.
func (d *Delta) leaveOut(due, now time.Time) bool {
	if !due.After(now) {
		return false
	}
	if d.Due.IsZero() || due.Before(d.Due) {
		d.Due = due
	}
	return true
}

// leave records that all ports of a Service are removed from now on.
func (d *Delta) leave(e *entry) {
	if d.Leaving == nil {
		d.Leaving = make(map[ServiceID]bool)
	}
	d.Leaving[ServiceID{e.namespace, e.name}] = true
	d.observe(e.since)
}

// wait records that additions of a namespace wait.
func (d *Delta) wait(n *namespace, now time.Time) {
	d.leaveOut(n.due(), now)
	d.Waiting += len(n.dirty)
	if wait := n.due().Sub(now); wait > d.Wait {
		d.Slowest, d.Wait = n.name, wait
	}
}

// observe records that d carries a change observed at that time.
func (d *Delta) observe(at time.Time) {
	if d.Oldest.IsZero() || at.Before(d.Oldest) {
		d.Oldest = at
	}
}

// replace adds to d what turns have, the ports of a Service, into want, and reports whether anything differs. Both are
// sorted by ID. Where a value of want equals one of have, want gets the value of have, which Take has already handed
// out and others share.
func (d *Delta) replace(have, want []*ServicePort) (changed bool) {
	before, at := len(d.Changed)+len(d.Removed), 0
	d.Changed = slices.Grow(d.Changed, len(want))
	type lists struct {
		*Lists
		sources Memory[netip.Prefix]
	}
	var known memo[[2]lists, bool]
	last, same := [2]lists{}, false // mostly ports share them with the port before
	alike := func(h, w *ServicePort) bool {
		of := [2]lists{{h.Lists, MemoryOf(h.Sources)}, {w.Lists, MemoryOf(w.Sources)}}
		if len(want) > 1 && of != last { // one port shares them with none
			last, same = of, known.of(of, func() bool {
				return sameList(h.Sources, w.Sources) && h.Lists.equal(w.Lists)
			})
		}
		return len(want) == 1 || same
	}
	eachPair(have, want, byID, func(h, w *ServicePort) {
		switch {
		case w == nil:
			if d.Removed == nil {
				d.Removed = make(map[PortID]bool)
			}
			d.Removed[h.ID] = true
			return
		case h == w || h != nil && alike(h, w) && h.Equal(w):
			want[at] = h
		default:
			d.Changed = append(d.Changed, w)
		}
		at++
	})
	return len(d.Changed)+len(d.Removed) > before
}
