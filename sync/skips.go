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
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// The loop skips a Service that the kernel refuses, so that it does not stop the others: the Service stays
// as it was last committed. It is tried again when it changes, and after a pause that doubles.
//
// The unit is a Service in one family with all its ports, because these have their source ranges in common.
const (
	firstRetry   = time.Minute
	longestRetry = time.Hour
	// maxTrials is how often the search for refused Services begins again because others commit.
	maxTrials = 5
	// maxNamed is how many Services are skipped because the kernel names an element of theirs. Then the
	// search goes on without regard to names.
	maxNamed = 16
)

// skips are the Services that the kernel refuses.
type skips struct {
	ruleset *services.Ruleset
	log     *zap.Logger
	report  func(namespace, service string, err error) // Options.Skipped; may be nil

	skipped map[familyService]*skip
	timer   *time.Timer // of the next retry
}

// A familyService is a Service in one family.
type familyService struct {
	namespace, name string
	family          tracker.Family
}

func serviceOf(id tracker.PortID) familyService {
	return familyService{id.Namespace, id.Service, id.Family}
}

func (s familyService) compare(other familyService) int {
	return cmp.Or(cmp.Compare(s.namespace, other.namespace), cmp.Compare(s.name, other.name),
		cmp.Compare(s.family, other.family))
}

// states are what ports of a Service are or are to be; nil for none.
type states map[tracker.PortID]*tracker.ServicePort

// A skip is about one Service that is skipped.
type skip struct {
	wanted  states // its ports that differ from the last commit
	backoff retry.Backoff
	due     time.Time
	trying  bool // it is in the wanted state again
	changed bool // since it was refused
}

// add records what a delta is about to change of the Services that are skipped.
func (r *skips) add(delta *tracker.Delta) {
	if len(r.skipped) == 0 {
		return
	}
	for _, port := range delta.Changed {
		r.change(port.ID, port)
	}
	for id := range delta.Removed {
		r.change(id, nil)
	}
}

// change records a change of a Service port. If its Service is skipped, the whole Service is tried again.
func (r *skips) change(id tracker.PortID, after *tracker.ServicePort) {
	skipped := r.skipped[serviceOf(id)]
	if skipped == nil {
		return
	}
	if wanted, differs := skipped.wanted[id]; differs && wanted == after {
		return
	}
	skipped.wanted[id], skipped.changed = after, true
	r.try(skipped)
}

// try puts a skipped Service into the wanted state.
func (r *skips) try(skipped *skip) {
	skipped.trying = true
	r.set(skipped.wanted)
}

// set puts Service ports into a state, or removes them.
func (r *skips) set(to states) {
	delta := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
	for id, port := range to {
		if port == nil {
			delta.Removed[id] = true
		} else {
			delta.Changed = append(delta.Changed, port)
		}
	}
	r.ruleset.Apply(delta)
}

// skip keeps a Service as it was last committed, until it changes or is due. wanted are its ports that differ.
func (r *skips) skip(service familyService, wanted states, now time.Time, err error) {
	skipped := r.skipped[service]
	if skipped == nil || skipped.changed {
		skipped = &skip{backoff: retry.Backoff{Min: firstRetry, Max: longestRetry}}
		r.skipped[service] = skipped
		r.log.Error("skipping a Service that the kernel refuses; it stays as it was last committed",
			zap.String("service", service.namespace+"/"+service.name), zap.Stringer("family", service.family), zap.Error(err))
		if r.report != nil {
			r.report(service.namespace, service.name, err)
		}
	}
	skipped.wanted, skipped.trying = wanted, false
	skipped.due = now.Add(skipped.backoff.Next())
}

// retry puts the Services that are due into the wanted state.
func (r *skips) retry() {
	now := time.Now()
	for _, skipped := range r.skipped {
		if !skipped.trying && !skipped.due.After(now) {
			r.try(skipped)
		}
	}
}

// committed ends the skips of Services that a commit contained.
func (r *skips) committed() {
	var next time.Time
	for service, skipped := range r.skipped {
		if skipped.trying {
			delete(r.skipped, service)
			r.log.Info("the kernel accepts a Service that was skipped",
				zap.String("service", service.namespace+"/"+service.name), zap.Stringer("family", service.family))
			if r.report != nil {
				r.report(service.namespace, service.name, nil)
			}
			continue
		}
		if next.IsZero() || skipped.due.Before(next) {
			next = skipped.due
		}
	}
	if !next.IsZero() {
		r.timer.Reset(max(0, time.Until(next)))
	}
}

// ports counts the Service ports that are skipped.
func (r *skips) ports() (n int) {
	for _, skipped := range r.skipped {
		n += len(skipped.wanted)
	}
	return n
}

// isRefusal reports whether a batch failed because of what is in it, and not because of the
// state that the system or the process is in.
func isRefusal(err error) bool {
	_, refused := errors.AsType[*kernel.OpError](err)
	ofSystem := []error{unix.EPERM, unix.ENOMEM, unix.ENOBUFS, unix.EINTR, unix.EAGAIN}
	return refused && !slices.ContainsFunc(ofSystem, func(errno error) bool { return errors.Is(err, errno) })
}

// attribute adds the Service that an operation was for to the kernel's error about it.
func attribute(r *services.Ruleset, err error) error {
	if op, ok := errors.AsType[*kernel.OpError](err); ok {
		op.Attribution = r.Attribution(op.Family, op.Set, op.Element)
	}
	return err
}

// A trial searches for the Services that the kernel refuses. It checks batches without committing them,
// so what is programmed stays in force. The batches leave out the entries of affinity maps.
type trial struct {
	*skips
	// commit asks the kernel: it is commitRenewed.
	commit func(ctx context.Context, batch nft.Batch, from uint32) (generation uint32, err error)
	have   nft.Tables
	// generation is that of have: the kernel refuses to check a batch once others have changed our tables.
	generation uint32
	overtaken  bool // others have changed our tables since

	before, wanted map[familyService]states // what has changed since the last commit
	refused        map[familyService]error  // why the kernel refuses Services
}

// check asks the kernel whether it would accept the wanted state as it is now.
func (t *trial) check(ctx context.Context) error {
	batch := change.Diff(t.have, t.ruleset.Want())
	if batch.Empty() {
		return nil
	}
	batch.Check, batch.Generation = true, t.generation
	_, err := t.commit(ctx, batch, t.generation)
	t.overtaken = t.overtaken || errors.Is(err, unix.ERESTART)
	return attribute(t.ruleset, err)
}

// skipRefused skips Services without which the kernel does not refuse the wanted state with err, and
// reports whether there are such Services. It tries first without those of which the kernel names an
// element. If that is not enough, it searches among all that have changed.
func (t *trial) skipRefused(ctx context.Context, err error) bool {
	t.before, t.wanted = make(map[familyService]states), make(map[familyService]states)
	t.refused = make(map[familyService]error)
	for id, change := range t.ruleset.PortChanges() {
		service := serviceOf(id)
		if t.before[service] == nil {
			t.before[service], t.wanted[service] = make(states), make(states)
		}
		t.before[service][id], t.wanted[service][id] = change.Before, change.After
	}
	for err = attribute(t.ruleset, err); isRefusal(err) && len(t.refused) < maxNamed; err = t.check(ctx) {
		service, ok := t.named(err)
		if !ok || t.wanted[service] == nil || t.refused[service] != nil {
			break
		}
		t.refused[service] = err
		t.set(t.before[service])
	}
	rest := slices.SortedFunc(maps.Keys(t.wanted), familyService.compare)
	if isRefusal(err) {
		unnamed := slices.DeleteFunc(slices.Clone(rest), func(s familyService) bool { return t.refused[s] != nil })
		t.setAll(unnamed, t.before)
		if err = t.check(ctx); err == nil {
			err = t.search(ctx, unnamed)
		}
	}
	if err != nil || len(t.refused) == 0 { // it is not about Services
		t.setAll(rest, t.wanted)
		return false
	}
	now := time.Now() // Services that are skipped together are tried together
	for service, err := range t.refused {
		t.skip(service, t.wanted[service], now, err)
	}
	return true
}

// setAll puts the changed ports of Services into a state.
func (t *trial) setAll(services []familyService, to map[familyService]states) {
	all := make(states)
	for _, service := range services {
		maps.Copy(all, to[service])
	}
	t.set(all)
}

// named returns the Service of which an error of the kernel names an element.
func (t *trial) named(err error) (familyService, bool) {
	op, ok := errors.AsType[*kernel.OpError](err)
	if !ok {
		return familyService{}, false
	}
	namespace, name, ok := t.ruleset.Attributed(op.Family, op.Set, op.Element)
	return familyService{namespace, name, op.Family}, ok
}

// search puts as many Services as the kernel accepts together into the wanted state, and adds the others
// to t.refused. It halves the list as long as the kernel refuses one of several: a first commit may have
// 30,000 Services, and each check of it takes up to a second. Halving finds one Service among
// 16,384 with 31 checks.
func (t *trial) search(ctx context.Context, list []familyService) error {
	t.setAll(list, t.wanted)
	err := t.check(ctx)
	if !isRefusal(err) {
		return err
	}
	t.setAll(list, t.before)
	if len(list) == 1 {
		t.refused[list[0]] = err
		return nil
	}
	half := len(list) / 2
	if err := t.search(ctx, list[:half]); err != nil {
		return err
	}
	return t.search(ctx, list[half:])
}
