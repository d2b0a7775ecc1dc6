package apiserver

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
)

// maxHistory is how many events of one kind are kept for watches that resume. Beyond it, the older
// half is dropped.
const maxHistory = 1 << 18

// A selector says which objects of a kind a request is about.
type selector struct {
	namespace string // empty: all
	labels    labels.Selector
	fields    fields.Selector
}

func (s *selector) matches(e *entry) bool {
	return e != nil &&
		(s.namespace == "" || s.namespace == e.object.GetNamespace()) &&
		s.labels.Matches(labels.Set(e.object.GetLabels())) &&
		(s.fields.Empty() || s.fields.Matches(selectable(e.object)))
}

// A change is one step of a collection's history.
type change struct {
	version       uint64
	at            time.Time
	before, after *entry // nil: did not exist, does not exist
	last          *entry // of a deletion: before, at the version of the deletion
}

// event returns what a watch with the given selector sees of the change; ok is false if it sees
// nothing.
func (c *change) event(s *selector) (kind watch.EventType, e *entry, ok bool) {
	before, after := s.matches(c.before), s.matches(c.after)
	switch {
	case after && before:
		return watch.Modified, c.after, true
	case after:
		return watch.Added, c.after, true
	case before && c.after == nil:
		return watch.Deleted, c.last, true
	case before: // it left the selection: gone, as it was, at the new version
		return watch.Deleted, c.before.at(c.version), true
	}
	return "", nil, false
}

// A collection holds the objects of one kind and their recent history. It is guarded by
// the server's mutex; entries and changes never alter.
type collection struct {
	kind
	entries map[string]*entry
	keys    []string // of entries, sorted; nil after an addition or removal
	history []change
	oldest  uint64 // the lowest version from which a watch can resume
}

func newCollection(k kind) *collection {
	return &collection{kind: k, entries: make(map[string]*entry)}
}

// put stores o, which the collection owns from now on, at the given version.
func (c *collection) put(o object, version uint64) {
	o.SetResourceVersion(strconv.FormatUint(version, 10))
	after := newEntry(o, c.gvk, version)
	before := c.entries[after.key]
	if before == nil {
		c.keys = nil
	}
	c.entries[after.key] = after
	c.record(change{version: version, before: before, after: after})
}

// remove deletes an object; it reports whether there was one.
func (c *collection) remove(key string, version uint64) bool {
	before := c.entries[key]
	if before == nil {
		return false
	}
	delete(c.entries, key)
	c.keys = nil
	c.record(change{version: version, before: before, last: before.at(version)})
	return true
}

func (c *collection) record(change change) {
	if len(c.history) >= maxHistory {
		c.oldest = c.history[maxHistory/2-1].version
		c.history = slices.Clone(c.history[maxHistory/2:])
	}
	change.at = time.Now()
	c.history = append(c.history, change)
}

// forget drops the history up to version.
func (c *collection) forget(version uint64) {
	c.history, c.oldest = nil, version
}

// since returns the changes after version. The result is not to be written to.
func (c *collection) since(version uint64) ([]change, statusError) {
	if version < c.oldest {
		return nil, errExpired(version, c.oldest)
	}
	first := sort.Search(len(c.history), func(i int) bool { return c.history[i].version > version })
	return c.history[first:len(c.history):len(c.history)], nil
}

// list returns the selected entries with keys after the given one, in the order of keys; at most
// limit if that is not 0. more says that further ones exist.
func (c *collection) list(s *selector, after string, limit int) (entries []*entry, more bool) {
	if c.keys == nil {
		c.keys = make([]string, 0, len(c.entries))
		for key := range c.entries {
			c.keys = append(c.keys, key)
		}
		slices.Sort(c.keys)
	}
	for _, key := range c.keys[sort.Search(len(c.keys), func(i int) bool { return c.keys[i] > after }):] {
		e := c.entries[key]
		if !s.matches(e) {
			continue
		}
		if limit > 0 && len(entries) == limit {
			return entries, true
		}
		entries = append(entries, e)
	}
	return entries, false
}

// key is the name of an object within its kind.
func key(namespace, name string) string {
	return fmt.Sprintf("%s/%s", namespace, name)
}
