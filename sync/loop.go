package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/sync/affinityentries"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// source is what the loop needs of *tracker.Tracker.
type source interface{ Take() tracker.Delta }

// A Loop brings the changes of a tracker into the kernel and decides in which order. New makes one.
type Loop struct {
	options Options
	source  source
	ruleset *services.Ruleset
	kernel  client

	local atomic.Pointer[[]netip.Addr] // the latest of SetAddresses; nil once the loop has taken it
	// reserved is the same of Reserve.
	reserved atomic.Pointer[map[netip.Addr]bool]

	// The goroutine of Run owns the fields below.
	known    bool          // whether the kernel holds what the ruleset calls committed
	synced   bool          // a sync has succeeded
	waiting  tracker.Delta // changes that no sync has committed yet
	backoff  retry.Backoff // after a sync that failed
	again    *time.Timer   // fires when a sync is to be repeated
	ended    time.Time     // of the latest sync that did something
	took     time.Duration // that sync
	worked   time.Duration // Options.CPUTime when the source had handed out its changes
	inKernel time.Duration // CPU time of commits since then
	due      *time.Timer   // fires when what the last delta left out is due
	// entriesRefused is the kernel's reason to refuse the affinity entries that this sync was to take
	// over; nil if it did not refuse them.
	entriesRefused error

	nodePorts nodePorts
	skips     skips
	affinity  *affinityentries.Cleaner // nil leaves entries until they expire
	stale     staleFlows
	drift     driftDetector
	check     sourceCheck
	stopped   bool                 // the safety check stopped the last sync
	behind    bool                 // the kernel lacks some of what the ruleset wants, see services.Ruleset.Behind
	later     []tracker.FlowChange // of commits while it was behind
	laterAll  bool                 // all flows are to be looked at again afterwards
	parts     int                  // commits since it was not behind
	// overtaken says that another program committed before an attempt of this sync could.
	overtaken bool

	// The log sums up a minute at a time. A minute begins when there is something to log.
	minute     *time.Timer
	minuteRuns bool
	commits    commitLog
	conflicts  *conflictLog
}

// New returns a loop that has not started.
func New(source source, ruleset *services.Ruleset, kernel client, options Options) *Loop {
	if options.Queue == nil {
		options.Queue = NewQueue()
	}
	if options.View == nil {
		options.View = NewView()
	}
	if options.CPUTime == nil {
		began := time.Now()
		options.CPUTime = func() time.Duration { return time.Since(began) }
	}
	l := &Loop{
		options: options, source: source, ruleset: ruleset, kernel: kernel,
		again: stopped(),
		skips: skips{
			ruleset: ruleset, log: options.Log, report: options.Skipped, timer: stopped(),
			skipped: make(map[familyService]*skip),
		},
		nodePorts: nodePorts{setting: options.NodePorts},
		drift: driftDetector{
			kernel: kernel, ruleset: ruleset, log: options.Log, interval: options.AuditInterval,
			unmonitored: true, notified: retry.NewWake(), auditing: stopped(), repair: stopped(),
		},
		due:       time.AfterFunc(time.Hour, options.Queue.Notify),
		check:     sourceCheck{trust: options.Trust},
		minute:    stopped(),
		commits:   commitLog{log: options.Log, wait: quota.Once{Interval: time.Minute}},
		conflicts: newConflictLog(options.Log),
	}
	l.due.Stop()
	l.stale.log, l.stale.cleaned, l.stale.view, l.stale.wake = options.Log, options.Cleaned, options.View, retry.NewWake()
	l.stale.cpuTime = options.CPUTime
	return l
}

// CleanFlows makes the loop remove stale connections after each commit. Run removes them on a
// goroutine of its own, Once before it returns. Call CleanFlows before either.
func (l *Loop) CleanFlows(flows flows) { l.stale.flows = flows }

// CleanAffinity makes Run remove affinity entries of endpoints that have left, on a goroutine of its
// own. Call it before Run. No other goroutine may use the reader.
func (l *Loop) CleanAffinity(reader affinityentries.Reader) {
	l.affinity = affinityentries.New(reader, l.ruleset.AffinityMaps, l.options.Log)
}

// Watch makes the loop repair foreign changes to our tables. Call it before Run. Close the monitor
// only after Run has returned.
func (l *Loop) Watch(monitor monitor) {
	l.drift.monitor, l.drift.changes = monitor, make(chan *change.ForeignChange, 64)
}

// SetAddresses tells the loop which addresses the node's interfaces have. The latest call
// counts. It never blocks.
func (l *Loop) SetAddresses(addrs []netip.Addr) {
	l.local.Store(&addrs)
	l.options.Queue.Notify()
}

// Reserve tells the loop which addresses of the node are there for Services alone. The latest call counts. It
// never blocks.
func (l *Loop) Reserve(addrs map[netip.Addr]bool) {
	l.reserved.Store(&addrs)
	l.options.Queue.Notify()
}

// Run syncs until ctx ends. Then it returns nil at once and leaves the rules in place. Start it
// when all sources have synced, because its first sync is unconditional. It returns an error only
// if the netlink socket is broken.
func (l *Loop) Run(ctx context.Context) error {
	var cleaning sync.WaitGroup
	defer cleaning.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if l.stale.flows != nil {
		cleaning.Go(func() { l.stale.run(ctx) })
	}
	var entries chan affinityentries.Batch
	if l.affinity != nil {
		entries = l.affinity.Batches
		cleaning.Go(func() { l.affinity.Run(ctx) })
	}
	l.options.Queue.Notify()
	l.drift.start(ctx)
	for ctx.Err() == nil {
		wanted := true
		select {
		case <-ctx.Done():
			return nil
		case <-l.options.Queue.wake:
		case <-l.again.C:
		case <-l.drift.repair.C:
		case batch := <-entries:
			batch.Answer <- l.commitEntries(ctx, batch.Ops)
			wanted = false
		case <-l.skips.timer.C:
			l.skips.retry()
		case <-l.minute.C:
			l.minuteRuns, wanted = false, false
			l.commits.endMinute()
		case <-l.drift.auditing.C:
			l.known, wanted = l.drift.audit(ctx, l.known)
		case foreign := <-l.drift.changes:
			l.known, wanted = l.drift.handle(foreign, l.known)
		}
		if wait := time.Until(l.ended.Add(l.options.MinInterval)); wanted && wait > 0 && !l.behind {
			retry.Pause(ctx, wait)
		}
		if !wanted || ctx.Err() != nil {
			continue
		}
		err := l.sync(ctx)
		if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOTSOCK) { // the socket was closed, and stays closed
			return fmt.Errorf("nf_tables cannot be reached any more: %w; the rules stay in force, start kube-nft again", err)
		}
		if _, unsafe := errors.AsType[*SafetyError](err); unsafe {
			l.stop(err)
			continue
		}
		if err != nil && ctx.Err() == nil { // only a success shortens the next pause, a new change does not
			pause := l.backoff.Next()
			l.again.Reset(pause)
			l.options.Log.Error("sync failed", zap.Error(err), zap.Duration("retry_in", pause),
				zap.Int("attempt", l.backoff.Failures()))
			if l.options.Failed != nil {
				l.options.Failed(err)
			}
		}
	}
	return nil
}

// sync brings the kernel up to date. It reads the tables and tries again if another program committed
// between our read and our commit, if the outcome of a commit is unknown, or if the kernel refuses a
// batch. If the kernel also refuses the batch after a read, isolate skips the Services that
// cause the refusal.
//
// The kernel may refuse a later part of a batch because another program has removed what earlier parts made.
// So sync tries again without isolate. If the part itself is wrong, the batch after the read begins
// with it, and the kernel refuses it again.
func (l *Loop) sync(ctx context.Context) (err error) {
	runtime.LockOSThread() // Options.CPUTime is that of a thread
	defer runtime.UnlockOSThread()
	began, idle := time.Now(), false
	defer func() {
		l.entriesRefused, l.overtaken = nil, false
		if !idle { // after an idle sync the next one need not wait
			l.ended = time.Now()
			l.took = l.ended.Sub(began)
		}
	}()
	for range 5 {
		full := !l.known
		idle, err = l.attempt(ctx)
		switch {
		case errors.Is(err, unix.ERESTART):
			l.overtaken = true
		case errors.Is(err, kernel.ErrUnknownOutcome):
		case isRefusal(err) && errors.As(err, new(*partError)):
		case !isRefusal(err), full && !l.isolate(ctx, err):
			return err
		}
	}
	return err
}

// isolate removes from the wanted state what the kernel refuses. It reports whether there is another
// batch to try. It first tries the wanted state without the affinity entries of another proxy or
// of a table that is made anew. If the kernel takes that, the next batch leaves out these entries and nothing
// else. isolate begins again if another program commits meanwhile, because the kernel's answer may be about
// that commit.
func (l *Loop) isolate(ctx context.Context, err error) bool {
	for range maxTrials {
		have, generation, readErr := l.read(ctx)
		if readErr != nil {
			return false
		}
		t := trial{skips: &l.skips, commit: l.commitRenewed, have: have, generation: generation}
		if l.entriesRefused == nil && t.check(ctx) == nil {
			l.entriesRefused = err
			return true
		}
		if !t.overtaken && t.skipRefused(ctx, err) {
			l.entriesRefused = nil
			return true
		}
		if !t.overtaken {
			return false
		}
	}
	return false
}

// attempt computes a batch, commits it and does what follows a commit. idle says that there was nothing to do.
func (l *Loop) attempt(ctx context.Context) (idle bool, err error) {
	taken := time.Now()
	p, err := l.plan(ctx)
	if err != nil {
		return false, err
	}
	compiled := time.Now()
	if err := l.program(ctx, &p); err != nil {
		return false, err
	}
	committed := time.Now()
	if l.behind = l.ruleset.Behind(); l.behind {
		l.parts++
	}
	if l.drift.reason != "" && len(p.batch.Ops) > 0 && !l.behind {
		l.drift.logRepair(p.batch.Ops, committed)
	}
	l.publish(&p)
	l.done(!p.full, Report{ // of a full one, most of the work was for what the kernel had
		Full: p.full, Operations: len(p.batch.Ops), Elements: p.batch.ElementCount(), Foreign: len(p.batch.Foreign),
		KnownClients: p.knownClients,
		Taken:        taken, Compile: compiled.Sub(taken), Commit: committed.Sub(compiled),
	})
	return !p.full && p.batch.Empty(), nil
}

// program commits the batch of a plan, if there is something in it. Between a commit and the kernel's answer, it is
// unknown what the kernel holds.
func (l *Loop) program(ctx context.Context, p *plan) (err error) {
	generation := p.batch.Generation
	if !p.batch.Empty() {
		l.known = false
		if generation, err = l.commit(ctx, p); err != nil {
			if errors.As(err, new(*kernel.ForeignError)) {
				l.leaveForeign(err)
			}
			return attribute(l.ruleset, err)
		}
		l.options.Foreign, l.options.KnownClients = nil, nil // a later batch must not repeat them
	}
	l.known = true
	if generation != 0 {
		l.drift.listenFrom(ctx, generation)
	}
	return nil
}

// publish hands what a commit has changed to those that work beside the loop: the cleaners of affinity entries and of
// stale connections, and the readers of Options.View.
func (l *Loop) publish(p *plan) {
	if l.affinity != nil && !l.unsettled() {
		l.affinity.Committed(l.ruleset.AffinityChanges())
	}
	l.options.View.update(l.ruleset, l.nodePorts.reached, l.options.Lost)
	if l.stale.flows == nil {
		return
	}
	flows, all := p.flows, p.allFlows
	if l.unsettled() { // packets may still make flows that will be stale
		l.later, l.laterAll = append(l.later, p.flows...), l.laterAll || p.allFlows
	} else {
		flows, all = append(l.later, p.flows...), p.allFlows || l.laterAll
		l.later, l.laterAll = nil, l.behind
	}
	l.stale.committed(flows, all)
}

// mostParts is how many commits that leave something may follow each other before the cleaners look at what they have
// changed so far. Tenants may keep the loop behind for long.
const mostParts = 100

// unsettled reports whether the cleaners wait until the kernel has more of what the ruleset wants.
func (l *Loop) unsettled() bool { return l.behind && l.parts%mostParts != 0 }

// commit sends the batch of a plan, in parts if it is large. It returns the generation up to which changes by
// others are dealt with; zero if the batch was not bound to a generation.
//
// The monitor does not listen to a large batch, unless another program has committed during the previous attempt
// of this sync. Then commit sends smaller parts, and only the last is bound to a generation: packets do not
// reach what the others make.
func (l *Loop) commit(ctx context.Context, p *plan) (generation uint32, err error) {
	from, most := p.batch.Generation, maxPart
	busy := l.overtaken && l.drift.joined
	if busy {
		most = busyPart
	} else if from != 0 && p.batch.ElementCount() > busyPart {
		l.drift.quiet()
	}
	var before []nft.Batch
	last := p.batch
	if p.full || l.drift.reason != "" { // only such a batch makes a table
		before, last = change.Parts(&p.batch, most)
	}
	for i, part := range append(before, last) {
		if busy && i < len(before) {
			part.Generation = 0
		}
		generation, err = l.commitRenewed(ctx, part, from)
		if err != nil && i > 0 {
			err = &partError{part: i + 1, of: len(before) + 1, err: err}
		}
		if err != nil {
			return 0, err
		}
	}
	return generation, nil
}

// Bounds of commitRenewed. Beside 400 commits a second, a batch of busyPart elements comes through at the
// second try in the median.
const (
	busyPart    = 2_000 // elements
	maxRenewals = 100
	unboundFrom = 10
)

// commitRenewed sends a batch. The kernel refuses a batch that is bound to a generation if another program has
// committed since. If that commit was not to our tables, commitRenewed sends the batch again at once, bound to the
// present generation. A large batch may be too late each time. In the end it is sent unbound, as the loop sends most
// batches: the monitor listens, and the loop repairs what it reports. commitRenewed returns what commit does.
func (l *Loop) commitRenewed(ctx context.Context, batch nft.Batch, from uint32) (generation uint32, err error) {
	bound := batch.Generation != 0
	if bound {
		generation = batch.Generation + 1
	}
	mayUnbind := !batch.Check && !batch.Makes() && !batch.Remakes()
	for i := range maxRenewals {
		began := l.options.CPUTime()
		err = l.kernel.Commit(ctx, batch)
		l.inKernel += l.options.CPUTime() - began
		if !bound || batch.Foreign != nil || !errors.Is(err, unix.ERESTART) {
			break
		}
		now, ok := l.drift.renew(ctx, from)
		if !ok {
			break
		}
		batch.Generation, generation = now, now+1
		if bound = i < unboundFrom || !mayUnbind; !bound {
			batch.Generation, generation = 0, now
		}
	}
	return generation, err
}

// maxPart is how many elements one part of a divided batch has at most, or a few more. The kernel takes
// 0.1 to 0.2 s for a part. Meanwhile no other process can commit, and this process cannot end.
const maxPart = 50_000

// A partError says that a part of a batch failed after the kernel had committed the parts before it.
type partError struct {
	part, of int
	err      error
}

func (e *partError) Error() string {
	return fmt.Sprintf("part %d of %d: %v; the parts before it stand, packets do not reach them", e.part, e.of, e.err)
}

// Unwrap returns the error of the part.
func (e *partError) Unwrap() error { return e.err }

// stop reports that the safety check stops a commit, and sets the time of the next check. The pause is needed
// because a wrong source may change all the time, and each look reads the tables.
func (l *Loop) stop(err error) {
	l.stopped = true
	pause := max(safetyPause, retry.Rest(l.took))
	l.ended = time.Now().Add(pause)
	l.again.Reset(pause)
	if l.options.SafetyCheck != nil {
		l.options.SafetyCheck(err)
	}
}

// charge tells how long the sync has worked for each namespace: in proportion to what each has changed of the tables.
// What the kernel took beyond the usual time for elements is for those that have changed verdicts or chains.
func (l *Loop) charge(took, inKernel time.Duration) {
	work := l.ruleset.Work()
	walked := min(took, max(0, inKernel-time.Duration(work.All.Elements)*perElement))
	if work.All.Walks == 0 {
		walked = 0
	}
	part := func(of time.Duration, n, all int) time.Duration {
		return of * time.Duration(n) / time.Duration(max(1, all))
	}
	for namespace, of := range work.Namespaces {
		l.options.Charge(namespace, part(took-walked, of.Elements, work.All.Elements)+part(walked, of.Walks, work.All.Walks))
	}
}

// perElement is what an element takes of the kernel at most, unless it walks.
const perElement = 10 * time.Microsecond

// commitEntries commits operations on affinity entries. While the kernel lacks something, the cleaner does not know all
// members.
func (l *Loop) commitEntries(ctx context.Context, wanted func() []nft.Op) error {
	if !l.known || !l.synced || l.unsettled() {
		return affinityentries.ErrTablesUnknown
	}
	ops := wanted()
	if len(ops) == 0 {
		return nil
	}
	return l.kernel.Commit(ctx, nft.Batch{Ops: ops})
}

// done records and reports a successful sync, and charges the namespaces for it or not.
func (l *Loop) done(charge bool, report Report) {
	l.backoff.Reset()
	if l.options.Charge != nil && l.synced && charge {
		l.charge(max(0, l.options.CPUTime()-l.worked), l.inKernel)
	}
	l.ruleset.Committed()
	l.skips.committed()
	report.Delta, report.NodePorts = l.waiting, l.nodePorts.reached
	report.SkippedPorts = l.skips.ports()
	l.waiting = tracker.Delta{}
	if !l.behind {
		report.ReviewReason, l.drift.reason = l.drift.reason, ""
	}
	fresh, standing := l.ruleset.Conflicts()
	report.Conflicts, report.Standing = l.conflicts.add(fresh, l.ruleset.OwnerChanges()), standing
	report.Unmet, report.StandUnmet = l.ruleset.Unmet()
	l.conflicts.addUnserved(report.Delta.OverQuota, report.Unmet)
	if l.synced {
		l.commits.add(&report)
	} else {
		l.commits.started(&report, l.ruleset.Lengths())
	}
	l.synced = true
	if l.options.Hold != nil {
		l.options.Hold(l.ruleset.Held())
	}
	if l.parts > 0 || l.ruleset.Unfinished() { // also when the last part is through: namespaces were held until now
		l.due.Reset(0)
	}
	if !l.behind {
		l.parts = 0
	}
	if l.stopped && l.options.SafetyCheck != nil {
		l.options.SafetyCheck(nil)
	}
	l.stopped = false
	if !l.minuteRuns && (report.Operations > 0 || l.commits.slow > 0) {
		l.minute.Reset(time.Minute)
		l.minuteRuns = true
	}
	if l.options.Committed != nil {
		l.options.Committed(report)
	}
}
