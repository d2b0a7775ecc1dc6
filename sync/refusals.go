package sync

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Service port that the kernel refuses is left out, in its last good state or altogether,
// so that it does not keep the others out. It is tried again when it changes, and after a
// pause that doubles.
const (
	firstRetry   = time.Minute
	longestRetry = time.Hour
	// maxTrials is how often the search for what is refused begins anew because somebody commits.
	maxTrials = 5
	// maxNamed is how many refused ports are found one after the other because the kernel
	// names an element of theirs; then they are searched for.
	maxNamed = 16
)

// refusals are the Service ports that the kernel does not take.
type refusals struct {
	ruleset *services.Ruleset
	log     *zap.Logger
	report  func(tracker.PortID, error) // Options.Refused; may be nil

	changes map[tracker.PortID]portChange // since the last commit: what the kernel may refuse
	leftOut map[tracker.PortID]*refusal
	timer   *time.Timer // of the next retry
}

// A portChange is a Service port at the last commit and as the source wants it; nil for none.
type portChange struct{ before, after *tracker.ServicePort }

// A refusal is about one Service port that is left out.
type refusal struct {
	want    *tracker.ServicePort // nil: that it goes
	wait    time.Duration        // from one try to the next
	due     time.Time
	trying  bool // it is in the wanted state again
	changed bool // since it was refused
}

// note takes in what a delta is about to change in the ruleset.
func (r *refusals) note(delta *tracker.Delta) {
	for id, port := range delta.Changed {
		r.change(id, port)
	}
	for id := range delta.Removed {
		r.change(id, nil)
	}
}

func (r *refusals) change(id tracker.PortID, after *tracker.ServicePort) {
	change, ok := r.changes[id]
	if !ok {
		change.before = r.ruleset.Port(id)
	}
	change.after = after
	r.changes[id] = change
	if left := r.leftOut[id]; left != nil && left.want != after {
		*left = refusal{want: after, wait: firstRetry / 2, trying: true, changed: true}
	}
}

// set puts a Service port into the wanted state, or takes it out if port is nil.
func (r *refusals) set(id tracker.PortID, port *tracker.ServicePort) {
	if port == nil {
		r.ruleset.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{id: true}})
		return
	}
	r.ruleset.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{id: port}})
}

// leave keeps a Service port out until it changes or its time has come.
func (r *refusals) leave(id tracker.PortID, now time.Time, err error) {
	change := r.changes[id]
	delete(r.changes, id)
	left := r.leftOut[id]
	if left == nil || left.changed {
		left = &refusal{want: change.after, wait: firstRetry / 2}
		r.leftOut[id] = left
		r.log.Error("Service port left out: the kernel refuses it", zap.Stringer("service", id), zap.Error(err),
			zap.Bool("keeps_last_state", change.before != nil))
		if r.report != nil {
			r.report(id, err)
		}
	}
	left.trying = false
	left.wait = min(2*left.wait, longestRetry)
	left.due = now.Add(left.wait)
}

// retry puts the ports whose time has come into the wanted state again.
func (r *refusals) retry() {
	now := time.Now()
	for id, left := range r.leftOut {
		if !left.trying && !left.due.After(now) {
			r.change(id, left.want)
			r.set(id, left.want)
			left.trying = true
		}
	}
}

// settle closes a successful commit: what was tried has been taken.
func (r *refusals) settle() {
	r.changes = make(map[tracker.PortID]portChange) // the first one was large, and clearing it would stay slow
	var next time.Time
	for id, left := range r.leftOut {
		if left.trying {
			delete(r.leftOut, id)
			r.log.Info("Service port taken after all", zap.Stringer("service", id))
			if r.report != nil {
				r.report(id, nil)
			}
			continue
		}
		if next.IsZero() || left.due.Before(next) {
			next = left.due
		}
	}
	if !next.IsZero() {
		r.timer.Reset(max(0, time.Until(next)))
	}
}

// isRefusal reports whether a batch failed because of what is in it, and not because of the
// state that the system or the process is in.
func isRefusal(err error) bool {
	var refused *kernel.OpError
	if !errors.As(err, &refused) {
		return false
	}
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOMEM, unix.ENOBUFS, unix.EINTR, unix.EAGAIN} {
		if errors.Is(err, errno) {
			return false
		}
	}
	return true
}

// attribute adds the Service that an operation was for to the kernel's error about it.
func attribute(r *services.Ruleset, err error) error {
	var op *kernel.OpError
	if errors.As(err, &op) {
		op.Attribution = r.Attribution(op.Family, op.Set, op.Element)
	}
	return err
}

// A trial looks for the Service ports that the kernel refuses. It asks the kernel without
// changing anything, so what is programmed stays in force. What it asks about leaves out the
// entries of affinity maps.
//
// The source ranges of a Service are one thing for all its ports of a family. A port that falls
// back to its last state takes the ranges as they are wanted now, so that its healthy siblings do
// not get ranges back that the tenant has removed. If the kernel refuses the ranges themselves, the
// whole Service falls back in that family.
type trial struct {
	*refusals
	kernel client
	have   nft.Tables
	// generation is that of have: a question to another one has no answer.
	generation uint32
	overtaken  bool // somebody has committed since
	refused    map[tracker.PortID]error
	// ranges has, for each Service of which it is known, a port that says which source ranges the
	// Service is to have. A Service whose ranges are refused is not in it.
	ranges map[rangesHolder]*tracker.ServicePort
}

// A rangesHolder is a Service in one family: its ports have their source ranges in common.
type rangesHolder struct {
	service string // "namespace/name"
	family  tracker.Family
}

func holderOf(id tracker.PortID) rangesHolder {
	return rangesHolder{id.Namespace + "/" + id.Service, id.Family}
}

// check asks the kernel whether it would take the wanted state as it is now.
func (t *trial) check(ctx context.Context) error {
	batch := change.Diff(t.have, t.ruleset.Want())
	if batch.Empty() {
		return nil
	}
	batch.Check, batch.Generation = true, t.generation
	err := t.kernel.Commit(ctx, batch)
	t.overtaken = t.overtaken || errors.Is(err, unix.ERESTART)
	return err
}

// isolate takes Service ports out of the wanted state without which the kernel would not
// refuse it with err, and reports whether there are such ports.
func (t *trial) isolate(ctx context.Context, err error) bool {
	t.refused = make(map[tracker.PortID]error)
	t.ranges = make(map[rangesHolder]*tracker.ServicePort)
	for id, change := range t.changes {
		if change.after != nil && len(change.after.LoadBalancers) > 0 { // without these, nobody says
			t.ranges[holderOf(id)] = change.after
		}
	}
	for id := range t.leftOut { // one whose Service brings ranges that were refused before, with a new port
		before := t.ruleset.Port(id)
		if after := t.withRanges(before); after != before {
			if _, changed := t.changes[id]; !changed {
				t.changes[id] = portChange{before: before, after: after}
			}
		}
	}
	if t.named(ctx, err) || t.unnamed(ctx) {
		now := time.Now() // ports that are left out together are tried together
		for id, err := range t.refused {
			t.leave(id, now, err)
		}
		return true
	}
	for id := range t.refused {
		t.set(id, t.changes[id].after)
	}
	return false
}

// withRanges returns a Service port with the source ranges that its Service is to have.
func (t *trial) withRanges(port *tracker.ServicePort) *tracker.ServicePort {
	if port == nil {
		return nil
	}
	wanted := t.ranges[holderOf(port.ID)]
	if wanted == nil || wanted.Guarded == port.Guarded && wanted.NodePortGuarded == port.NodePortGuarded && slices.Equal(wanted.Sources, port.Sources) {
		return port
	}
	p := *port
	p.Guarded, p.Sources = wanted.Guarded, wanted.Sources
	p.NodePortGuarded = wanted.Guarded && wanted.Settings.GuardNodePorts && p.NodePort != 0
	return &p
}

// fallBack puts a Service port into its last good state.
func (t *trial) fallBack(id tracker.PortID) { t.set(id, t.withRanges(t.changes[id].before)) }

// named takes out the ports of which the kernel names an element, one after the other.
func (t *trial) named(ctx context.Context, err error) (found bool) {
	for range maxNamed {
		var op *kernel.OpError
		if !errors.As(err, &op) || !isRefusal(err) {
			return false
		}
		named := make(map[tracker.PortID]bool)
		if service, ok := t.ruleset.AttributedRanges(op.Family, op.Set, op.Element); ok {
			holder := rangesHolder{service, tracker.Family(op.Family)}
			if t.ranges[holder] == nil {
				return false
			}
			delete(t.ranges, holder)
			for id := range t.changes {
				named[id] = holderOf(id) == holder
			}
		} else if id, ok := t.ruleset.Attributed(op.Family, op.Set, op.Element); ok && t.refused[id] == nil {
			_, named[id] = t.changes[id]
		}
		err, found = attribute(t.ruleset, err), false
		for id, is := range named {
			if is {
				t.refused[id], found = err, true
				t.fallBack(id)
			}
		}
		if !found {
			return false
		}
		if err = t.check(ctx); err == nil {
			return true
		}
	}
	return false
}

// unnamed searches among the other ports that have changed: first for source ranges that are
// refused whatever else their Service wants, then for ports.
func (t *trial) unnamed(ctx context.Context) (found bool) {
	var ports []tracker.PortID
	siblings := make(map[rangesHolder][]tracker.PortID)
	ranges := make(map[rangesHolder]bool) // that have changed
	for id, change := range t.changes {
		t.set(id, change.before)
		if t.refused[id] == nil {
			ports = append(ports, id)
		}
		holder := holderOf(id)
		siblings[holder] = append(siblings[holder], id)
		if t.withRanges(change.before) != change.before {
			ranges[holder] = true
		}
	}
	slices.SortFunc(ports, tracker.PortID.Compare)
	holders := slices.SortedFunc(maps.Keys(ranges), func(a, b rangesHolder) int {
		return cmp.Or(cmp.Compare(a.service, b.service), cmp.Compare(a.family, b.family))
	})
	wanted := maps.Clone(t.ranges)
	err := t.check(ctx)
	if err == nil {
		err = search(ctx, t, holders, func(holder rangesHolder) {
			t.ranges[holder] = wanted[holder]
			for _, id := range siblings[holder] {
				t.fallBack(id)
			}
		}, func(holder rangesHolder, refusal error) {
			delete(t.ranges, holder)
			for _, id := range siblings[holder] {
				t.fallBack(id)
				if refusal != nil {
					t.refused[id] = refusal
				}
			}
		})
	}
	if err == nil {
		ports = slices.DeleteFunc(ports, func(id tracker.PortID) bool { return t.refused[id] != nil })
		err = search(ctx, t, ports, func(id tracker.PortID) { t.set(id, t.changes[id].after) }, func(id tracker.PortID, refusal error) {
			t.fallBack(id)
			if refusal != nil {
				t.refused[id] = refusal
			}
		})
	}
	if err != nil { // it is not about Service ports
		for id, change := range t.changes {
			t.set(id, change.after)
		}
	}
	return err == nil && len(t.refused) > 0
}

// search puts as many items into their new state as the kernel takes together, and the others
// back. It tells back the refusal of an item that the kernel refuses by itself.
func search[T any](ctx context.Context, t *trial, items []T, forth func(T), back func(T, error)) error {
	if len(items) == 0 {
		return nil
	}
	for _, item := range items {
		forth(item)
	}
	err := t.check(ctx)
	if err == nil || !isRefusal(err) {
		return err
	}
	if len(items) == 1 {
		back(items[0], err)
		return nil
	}
	for _, item := range items {
		back(item, nil)
	}
	if err := search(ctx, t, items[:len(items)/2], forth, back); err != nil {
		return err
	}
	return search(ctx, t, items[len(items)/2:], forth, back)
}
