package sync

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Service port that the kernel refuses is left out, in its last good state or altogether,
// so that it does not keep the others out. It is tried again when it changes, and after a
// pause that doubles.
const (
	firstRetry   = time.Minute
	longestRetry = time.Hour
	// maxNamed is how many refused ports are found one after the other because the kernel
	// names an element of theirs; then they are searched for.
	maxNamed = 16
)

// poison is what the loop knows of Service ports that the kernel may refuse.
type poison struct {
	changes map[tracker.PortID]portChange // since the last commit
	refused map[tracker.PortID]*refusedPort
	timer   *time.Timer // of the next retry
}

// A portChange is a Service port at the last commit and as the source wants it; nil for none.
type portChange struct{ before, after *tracker.ServicePort }

// A refusedPort is a Service port that is left out.
type refusedPort struct {
	want    *tracker.ServicePort // nil: that it goes
	wait    time.Duration        // from one try to the next
	due     time.Time
	trying  bool // it is in the wanted state again
	changed bool // since it was refused
}

func newPoison() poison {
	return poison{
		changes: make(map[tracker.PortID]portChange), refused: make(map[tracker.PortID]*refusedPort), timer: stopped(),
	}
}

// note remembers what a delta is about to change.
func (p *poison) note(r *nft.Ruleset, delta *tracker.Delta) {
	for id, port := range delta.Changed {
		p.change(r, id, port)
	}
	for id := range delta.Removed {
		p.change(r, id, nil)
	}
}

func (p *poison) change(r *nft.Ruleset, id tracker.PortID, after *tracker.ServicePort) {
	change, ok := p.changes[id]
	if !ok {
		change.before = r.Port(id)
	}
	change.after = after
	p.changes[id] = change
	if refused := p.refused[id]; refused != nil && refused.want != after {
		*refused = refusedPort{want: after, wait: firstRetry / 2, trying: true, changed: true}
	}
}

// isRefusal reports whether a batch failed because of what is in it, and not because of the
// state that the system or the process is in.
func isRefusal(err error) bool {
	var refused *nft.OpError
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

// isolate takes Service ports out of the wanted state without which the kernel would not
// refuse it, and reports whether there is another batch to try. It asks the kernel without
// changing anything, so what is programmed stays in force. What it asks about leaves out the
// entries of affinity maps; if the kernel does not mind the rest, they go.
func (l *Loop) isolate(ctx context.Context, err error) bool {
	have, _, readErr := l.read(ctx)
	if readErr != nil {
		return false
	}
	t := trial{loop: l, have: have}
	if l.debt.refused == nil && t.check(ctx) == nil {
		l.debt.refused = err
		return true
	}
	if t.named(ctx, err) || t.unnamed(ctx) {
		l.debt.refused = nil
		for id, err := range t.refused {
			l.leaveOut(id, err)
		}
		return true
	}
	for id := range t.refused {
		t.set(id, true)
	}
	return false
}

// A trial looks for the Service ports that the kernel refuses.
type trial struct {
	loop    *Loop
	have    nft.Tables
	refused map[tracker.PortID]error
}

// set puts a Service port into its new state, or back into the last good one.
func (t *trial) set(id tracker.PortID, after bool) {
	port := t.loop.poison.changes[id].before
	if after {
		port = t.loop.poison.changes[id].after
	}
	if port == nil {
		t.loop.ruleset.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{id: true}})
		return
	}
	t.loop.ruleset.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{id: port}})
}

// check asks the kernel whether it would take the wanted state as it is now.
func (t *trial) check(ctx context.Context) error {
	batch := nft.Diff(t.have, t.loop.ruleset.Want())
	if batch.Empty() {
		return nil
	}
	batch.Check = true
	return t.loop.kernel.Commit(ctx, batch)
}

// named takes out the ports of which the kernel names an element, one after the other.
func (t *trial) named(ctx context.Context, err error) (found bool) {
	t.refused = make(map[tracker.PortID]error)
	for range maxNamed {
		var op *nft.OpError
		if !errors.As(err, &op) || !isRefusal(err) {
			return false
		}
		id, ok := t.loop.ruleset.Culprit(op)
		if _, changed := t.loop.poison.changes[id]; !ok || !changed || t.refused[id] != nil {
			return false
		}
		t.refused[id] = t.loop.own(err)
		t.set(id, false)
		if err = t.check(ctx); err == nil {
			return true
		}
	}
	return false
}

// unnamed searches among the other ports that have changed.
func (t *trial) unnamed(ctx context.Context) (found bool) {
	var rest []tracker.PortID
	for id := range t.loop.poison.changes {
		if t.refused[id] == nil {
			rest = append(rest, id)
			t.set(id, false)
		}
	}
	slices.SortFunc(rest, tracker.PortID.Compare)
	err := t.check(ctx)
	if err == nil {
		err = t.search(ctx, rest)
	}
	if err != nil { // it is not about Service ports
		for _, id := range rest {
			t.set(id, true)
		}
	}
	return err == nil && len(t.refused) > 0
}

// search puts as many of ids into their new state as the kernel takes together.
func (t *trial) search(ctx context.Context, ids []tracker.PortID) error {
	if len(ids) == 0 {
		return nil
	}
	for _, id := range ids {
		t.set(id, true)
	}
	err := t.check(ctx)
	if err == nil || !isRefusal(err) {
		return err
	}
	for _, id := range ids {
		t.set(id, false)
	}
	if len(ids) == 1 {
		t.refused[ids[0]] = err
		return nil
	}
	if err := t.search(ctx, ids[:len(ids)/2]); err != nil {
		return err
	}
	return t.search(ctx, ids[len(ids)/2:])
}

// leaveOut keeps a Service port out until it changes or its time has come.
func (l *Loop) leaveOut(id tracker.PortID, err error) {
	change := l.poison.changes[id]
	delete(l.poison.changes, id)
	refused := l.poison.refused[id]
	if refused == nil || refused.changed {
		refused = &refusedPort{want: change.after, wait: firstRetry / 2}
		l.poison.refused[id] = refused
		l.options.Log.Error("Service port left out: the kernel refuses it", zap.Stringer("service", id), zap.Error(err),
			zap.Bool("keeps_last_state", change.before != nil))
		if l.options.Refused != nil {
			l.options.Refused(id, err)
		}
	}
	refused.trying = false
	refused.wait = min(2*refused.wait, longestRetry)
	refused.due = time.Now().Add(refused.wait)
}

// retryRefused puts the ports whose time has come into the wanted state again.
func (l *Loop) retryRefused() {
	now := time.Now()
	for id, refused := range l.poison.refused {
		if refused.trying || refused.due.After(now) {
			continue
		}
		delta := tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{id: refused.want}}
		if refused.want == nil {
			delta = tracker.Delta{Removed: map[tracker.PortID]bool{id: true}}
		}
		l.poison.note(l.ruleset, &delta)
		l.ruleset.Apply(delta)
		refused.trying = true
	}
}

// settlePoison closes a successful commit: what was tried has been taken.
func (l *Loop) settlePoison(now time.Time) {
	l.poison.changes = make(map[tracker.PortID]portChange)
	next := time.Duration(-1)
	for id, refused := range l.poison.refused {
		if refused.trying {
			delete(l.poison.refused, id)
			l.options.Log.Info("Service port taken after all", zap.Stringer("service", id))
			if l.options.Refused != nil {
				l.options.Refused(id, nil)
			}
			continue
		}
		if wait := max(0, refused.due.Sub(now)); next < 0 || wait < next {
			next = wait
		}
	}
	if next >= 0 {
		l.poison.timer.Reset(next)
	}
}
