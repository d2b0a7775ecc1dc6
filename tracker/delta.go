package tracker

import (
	"net/netip"
	"time"
)

// A Delta is what changed between two calls of Take. Its values are complete: applying
// one twice, or several merged, gives the same state.
type Delta struct {
	Changed map[PortID]*ServicePort // current value of every added or altered port
	Removed map[PortID]bool         // ports that are gone; never also in Changed

	Node         *Node          // the node's current value if it changed, else nil; never written to again
	ServiceCIDRs []netip.Prefix // all Service CIDRs, merged; meaningful if CIDRsChanged
	CIDRsChanged bool

	NodeAddresses    []netip.Addr // as Tracker.NodeAddresses returns them; meaningful if AddressesChanged
	AddressesChanged bool

	// Oldest is when the earliest of these changes was observed; zero if there is none.
	Oldest time.Time
	// Due is when Take will have more if nothing else changes, see Config.AwaitSlices and
	// Config.ChangeEvery; zero if it has left out nothing.
	Due time.Time
	// Waiting is how many Services Take has left out because they change all the time or very much. Slowest is one of those
	// that wait longest, as NAMESPACE/NAME, and Wait how long from then on.
	Waiting int
	Slowest string
	Wait    time.Duration
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
	return len(d.Changed) == 0 && len(d.Removed) == 0 && d.Node == nil &&
		!d.CIDRsChanged && !d.AddressesChanged
}

// Merge puts newer on top of d. The loop merges into a Delta that it could not commit.
func (d *Delta) Merge(newer Delta) {
	if d.Changed == nil {
		d.Changed = make(map[PortID]*ServicePort, len(newer.Changed))
	}
	if d.Removed == nil {
		d.Removed = make(map[PortID]bool, len(newer.Removed))
	}
	for id, port := range newer.Changed {
		d.Changed[id] = port
		delete(d.Removed, id)
	}
	for id := range newer.Removed {
		d.Removed[id] = true
		delete(d.Changed, id)
	}
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
	room := max(0, maxTriggers-len(d.Triggers))
	d.Triggers = append(d.Triggers, newer.Triggers[:min(room, len(newer.Triggers))]...)
}

// leaveOut reports whether what is due at a time has to wait, and if so notes when it is due.
func (d *Delta) leaveOut(due, now time.Time) bool {
	if !due.After(now) {
		return false
	}
	if d.Due.IsZero() || due.Before(d.Due) {
		d.Due = due
	}
	return true
}

// observe notes that d carries a change observed at that time.
func (d *Delta) observe(at time.Time) {
	if d.Oldest.IsZero() || at.Before(d.Oldest) {
		d.Oldest = at
	}
}

// replace adds to d what turns have, the ports of a Service, into want, and reports whether
// anything differs. Both are sorted by ID. Where a value of want equals one of have, want gets the
// value of have, which Take has already handed out and others share.
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
		if d.Changed == nil {
			d.Changed = make(map[PortID]*ServicePort)
		}
		d.Changed[port.ID] = port
		changed = true
	}
	for _, gone := range have {
		d.remove(gone.ID)
		changed = true
	}
	return changed
}

func (d *Delta) remove(id PortID) {
	if d.Removed == nil {
		d.Removed = make(map[PortID]bool)
	}
	d.Removed[id] = true
}
