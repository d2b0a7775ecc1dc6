package tracker

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// An objectName names an object of a namespaced kind.
type objectName struct{ namespace, name string }

// check refuses an object of that kind if its name cannot be one. Fault is the rule for
// names of the kind; namespaces are labels.
func (n objectName) check(kind string, fault func(string) string) error {
	r := refusals{kind: kind, namespace: n.namespace, name: n.name}
	if text := labelFault(n.namespace); text != "" {
		r.add("metadata.namespace", "%s; the object is ignored", text)
	}
	if text := fault(n.name); text != "" {
		r.add("metadata.name", "%s; the object is ignored", text)
	}
	return r.err()
}

// An entry is all that is known of one Service: the object, its slices, and the ports that
// Take handed out last. It exists for as long as one of them does.
type entry struct {
	objectName
	service  *service       // nil: there is no such Service, or it is not for this proxy
	slices   []*slice       // sorted by name
	out      []*ServicePort // sorted by ID
	dirty    bool           // changed after Take
	since    time.Time      // when that was observed first; meaningful if dirty
	triggers []Trigger      // of the changes after Take

	listings []listing    // of each port in each front; nil, or some of them nil: not gathered
	changed  []netip.Addr // what has changed since they were brought up to date
}

// addEntry makes the entry of a Service of which nothing was known.
func (t *Tracker) addEntry(name objectName) *entry {
	e := &entry{objectName: name}
	t.entries[name] = e
	return e
}

// mark makes Take look at e.
func (t *Tracker) mark(e *entry) {
	if e.dirty {
		return
	}
	e.dirty, e.since = true, t.config.Clock()
	t.dirty = append(t.dirty, e)
}

// putSlice adds s or replaces the slice of its name, and reports whether that changed anything.
func (e *entry) putSlice(s *slice) (changed bool) {
	i, found := e.findSlice(s.name)
	switch {
	case !found:
		e.note(nil, s)
		e.slices = slices.Insert(e.slices, i, s)
	case e.slices[i].equal(s):
		return false
	default:
		e.note(e.slices[i], s)
		e.slices[i] = s
	}
	return true
}

// removeSlice forgets the slice of that name. The trigger times go with it: those of a
// slice that is gone would be measured against a change that came later.
func (e *entry) removeSlice(name string) {
	if i, found := e.findSlice(name); found {
		e.note(e.slices[i], nil)
		e.slices = slices.Delete(e.slices, i, i+1)
		e.triggers = nil
	}
}

func (e *entry) findSlice(name string) (i int, found bool) {
	return slices.BinarySearchFunc(e.slices, name, func(s *slice, name string) int { return cmp.Compare(s.name, name) })
}

// hinted reports whether what the Service means depends on this node's zone.
func (e *entry) hinted() bool {
	return slices.ContainsFunc(e.slices, (*slice).hinted)
}
