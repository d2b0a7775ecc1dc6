package tracker

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// The namespace is the unit of fairness. The sync loop tells with Charge how long it has worked for a namespace, and
// Take hands out the changes of the namespace with the least work first, a bounded number of elements at a time. A
// neighbour of a namespace that changes all the time waits for one such batch.
//
// A namespace that has used more than its share of the time waits before it adds anything. What it takes away is
// handed out at once: a frontend that a Service has given up may belong to another one, and an endpoint that has
// left may belong to another pod by now.
const (
	// shareOfTime is the part of the time, one in so many, that the changes of one namespace may take in the long run.
	shareOfTime = 10
	// burst is how much work a namespace may cause before it has to wait.
	burst = 500 * time.Millisecond
)

// CommitElements is about how many elements one commit writes while packets use the tables. The kernel takes 5 to 20 ms
// for so many, and meanwhile no other change gets in.
const CommitElements = 1000

// mostWork is about how many elements one call of Take hands out. Random tests lower it.
var mostWork = CommitElements

// A namespace is what the Tracker knows of all Services of a namespace together.
type namespace struct {
	name    string
	entries map[*entry]struct{}
	dirty   []*entry // in the order in which they changed
	rests   bool     // all of dirty wait until the namespace may add something: they have given up the rest
	// paid is when the work for this namespace will be paid off, if it is to take one part in shareOfTime of the time.
	paid    time.Time
	used    time.Duration // work at the time charged, less what has faded, see recent
	charged time.Time
	held    bool // see Hold

	demand   int      // elements that its Services ask for
	refusing bool     // the quota leaves out something
	byAge    []*entry // those with a Service, in order; nil until the quota leaves out something for the first time
	recount  bool     // what its Services get has to be decided anew
	unserved int      // Services that the quota leaves out
}

// namespace returns the namespace of this name, new or not.
func (t *Tracker) namespace(name string) *namespace {
	n := t.namespaces[name]
	if n == nil {
		n = &namespace{name: name, entries: make(map[*entry]struct{})}
		t.namespaces[name] = n
	}
	return n
}

// waits reports whether what the namespace adds has to wait: it has used more than its share, or is held.
func (n *namespace) waits(now time.Time) bool { return n.held || n.due().After(now) }

// due returns from when on the namespace may add something.
func (n *namespace) due() time.Time { return n.paid.Add(-shareOfTime * burst) }

// recent returns how much work was done for the namespace lately: work of 5 s ago counts a third. Most namespaces owe
// nothing, so that debt does not order them.
func (n *namespace) recent(now time.Time) time.Duration {
	return time.Duration(float64(n.used) * math.Exp(-float64(now.Sub(n.charged))/float64(shareOfTime*burst)))
}

// compare orders namespaces: the one with the least work first.
func (n *namespace) compare(o *namespace, now time.Time) int {
	return cmp.Compare(n.recent(now), o.recent(now))
}

// charge adds work that was done for the namespace.
func (n *namespace) charge(now time.Time, work time.Duration) {
	n.paid = later(n.paid, now).Add(shareOfTime * work)
	n.used, n.charged = n.recent(now)+work, now
}

func later(a, b time.Time) time.Time { return slices.MaxFunc([]time.Time{a, b}, time.Time.Compare) }

// Charge says how long the sync loop has worked for changes of a namespace that Take has handed out. It ignores an
// unknown namespace.
func (t *Tracker) Charge(namespace string, work time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.namespaces[namespace]; n != nil {
		n.charge(t.config.Clock(), work)
	}
}

// Hold says which namespaces add nothing in the next calls of Take, beside those that have used more than their share
// of the time.
func (t *Tracker) Hold(namespaces []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	set := func(names []string, held bool) {
		for _, name := range names {
			if n := t.namespaces[name]; n != nil {
				n.held = held
			}
		}
	}
	set(t.held, false)
	set(namespaces, true)
	t.held = namespaces
}

// forget drops an entry of which nothing is left. A namespace without entries is kept until its work is paid off.
func (t *Tracker) forget(e *entry) {
	delete(t.entries, e.objectName)
	delete(e.in.entries, e)
	e.in.demand -= e.demand.all()
}

// forgetNamespaces drops namespaces of which nothing is left.
func (t *Tracker) forgetNamespaces(now time.Time) {
	if len(t.namespaces) <= 2*t.inUse {
		return
	}
	t.inUse = 0
	for name, n := range t.namespaces {
		if len(n.entries) == 0 && !n.paid.After(now) {
			delete(t.namespaces, name)
		} else {
			t.inUse++
		}
	}
}
