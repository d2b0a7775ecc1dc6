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

// A skip is about one Service that is skipped.
type skip struct {
	wanted  map[tracker.PortID]*tracker.ServicePort // its ports that differ from the last commit; nil for none
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
	for id, port := range skipped.wanted {
		r.set(id, port)
	}
}

// set puts a Service port into a state, or removes it if port is nil.
func (r *skips) set(id tracker.PortID, port *tracker.ServicePort) {
	if port == nil {
		r.ruleset.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{id: true}})
		return
	}
	r.ruleset.Apply(tracker.Delta{Changed: []*tracker.ServicePort{port}})
}

// skip keeps a Service as it was last committed, until it changes or is due. wanted are its ports that differ.
func (r *skips) skip(service familyService, wanted map[tracker.PortID]*tracker.ServicePort, now time.Time, err error) {
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
	changes, refused := t.ruleset.PortChanges(), make(map[familyService]error)
	ports := make(map[familyService]map[tracker.PortID]*tracker.ServicePort) // as they are wanted
	for id, change := range changes {
		service := serviceOf(id)
		if ports[service] == nil {
			ports[service] = make(map[tracker.PortID]*tracker.ServicePort)
		}
		ports[service][id] = change.After
	}
	fallBack := func(service familyService) {
		for id := range ports[service] {
			t.set(id, changes[id].Before)
		}
	}
	apply := func(service familyService) {
		for id, port := range ports[service] {
			t.set(id, port)
		}
	}
	for err = attribute(t.ruleset, err); isRefusal(err) && len(refused) < maxNamed; err = t.check(ctx) {
		service, ok := t.named(err)
		if !ok || ports[service] == nil || refused[service] != nil {
			break
		}
		refused[service] = err
		fallBack(service)
	}
	if isRefusal(err) {
		rest := slices.SortedFunc(maps.Keys(ports), familyService.compare)
		rest = slices.DeleteFunc(rest, func(s familyService) bool { return refused[s] != nil })
		for _, service := range rest {
			fallBack(service)
		}
		if err = t.check(ctx); err == nil {
			err = t.search(ctx, rest, apply, fallBack, refused)
		}
	}
	if err != nil || len(refused) == 0 { // it is not about Services
		for service := range ports {
			apply(service)
		}
		return false
	}
	now := time.Now() // Services that are skipped together are tried together
	for service, err := range refused {
		t.skip(service, ports[service], now, err)
	}
	return true
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
// to refused. It halves the list as long as the kernel refuses one of several: a first commit may have
// 30,000 Services, and each check of it takes up to a second. Halving finds one Service among
// 16,384 with 31 checks.
func (t *trial) search(ctx context.Context, list []familyService, apply, fallBack func(familyService),
	refused map[familyService]error) error {
	for _, service := range list {
		apply(service)
	}
	err := t.check(ctx)
	if err == nil || !isRefusal(err) {
		return err
	}
	for _, service := range list {
		fallBack(service)
	}
	if len(list) == 1 {
		refused[list[0]] = err
		return nil
	}
	half := len(list) / 2
	if err := t.search(ctx, list[:half], apply, fallBack, refused); err != nil {
		return err
	}
	return t.search(ctx, list[half:], apply, fallBack, refused)
}
