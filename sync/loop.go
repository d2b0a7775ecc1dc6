package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// source is what the loop needs of *tracker.Tracker.
type source interface{ Take() tracker.Delta }

// A Loop brings changes of a tracker into the kernel: it owns the order of things. Make it
// with New.
type Loop struct {
	options Options
	source  source
	ruleset *services.Ruleset
	kernel  client

	disown chan chan<- error
	local  atomic.Pointer[[]netip.Addr] // of SetAddresses; nil once taken

	// The rest is owned by the goroutine of Run.
	known   bool          // whether the kernel holds what the ruleset calls committed
	synced  bool          // a sync has succeeded
	waiting tracker.Delta // what no sync has brought into the kernel
	retry   backoff       // after a sync that failed
	rest    rest
	due     *time.Timer // rings when the source has what its last delta left out
	// entriesRefused is why the kernel refused the affinity entries that the batch of this sync was to
	// take over; nil if it did not.
	entriesRefused error

	nodePorts nodePorts
	refusals  refusals
	affinity  affinityEntries
	stale     staleFlows
	drift     driftDetector
	doubt     doubt
	holding   bool // the last sync was held back

	// The log sums up by minutes, which begin with something to tell.
	minute     *time.Timer
	minuteRuns bool
	commits    commitLog
	conflicts  conflictLog
}

// New returns a loop that has not started.
func New(source source, ruleset *services.Ruleset, kernel client, options Options) *Loop {
	if options.Queue == nil {
		options.Queue = NewQueue()
	}
	if options.RetryMin == 0 {
		options.RetryMin = DefaultRetryMin
	}
	if options.RetryMax == 0 {
		options.RetryMax = DefaultRetryMax
	}
	if options.AuditInterval == 0 {
		options.AuditInterval = DefaultAuditInterval
	}
	l := &Loop{
		options: options, source: source, ruleset: ruleset, kernel: kernel,
		disown: make(chan chan<- error),
		retry:  backoff{least: options.RetryMin, most: options.RetryMax, timer: stopped()},
		refusals: refusals{
			ruleset: ruleset, log: options.Log, report: options.Refused, timer: stopped(),
			changes: make(map[tracker.PortID]portChange), leftOut: make(map[tracker.PortID]*refusal),
		},
		affinity:  newAffinityEntries(&options),
		nodePorts: nodePorts{setting: options.NodePorts},
		drift: driftDetector{
			kernel: kernel, ruleset: ruleset, log: options.Log, interval: options.AuditInterval,
			deaf: true, auditing: stopped(), repair: stopped(),
		},
		due:       time.AfterFunc(time.Hour, options.Queue.Ring),
		doubt:     doubt{trust: options.Trust},
		minute:    stopped(),
		commits:   commitLog{log: options.Log},
		conflicts: conflictLog{log: options.Log},
	}
	l.due.Stop()
	l.stale.log, l.stale.cleaned, l.stale.bell = options.Log, options.Cleaned, make(chan struct{}, 1)
	l.stale.retry = backoff{least: options.RetryMin, most: options.RetryMax, timer: stopped()}
	return l
}

// CleanFlows makes the loop remove stale connections after each commit: Run does so beside
// the loop, Once before it returns. It must be called before either.
func (l *Loop) CleanFlows(flows flows) { l.stale.flows = flows }

// CleanAffinity makes Run remove affinity entries of endpoints that have left, beside the loop. It
// must be called before Run. The reader is for this alone.
func (l *Loop) CleanAffinity(reader entryReader) { l.affinity.reader = reader }

// Watch makes the loop repair what others do to our tables. It must be called before Run;
// whoever closes the monitor does so after Run.
func (l *Loop) Watch(monitor monitor) {
	l.drift.monitor, l.drift.deaf, l.drift.changes = monitor, false, make(chan *nft.ForeignChange, 64)
}

// SetAddresses tells the loop which addresses the node's interfaces have. The latest call
// counts. It never blocks.
func (l *Loop) SetAddresses(addrs []netip.Addr) {
	l.local.Store(&addrs)
	l.options.Queue.Ring()
}

// Disown makes the tables belong to nobody, for an administrator who wants to change them,
// and returns when that has been committed. It lasts as long as the loop. With the table that
// is made anew, connections and the entries of affinity maps stay.
func (l *Loop) Disown(ctx context.Context) error {
	answer := make(chan error, 1)
	return request(ctx, l.disown, answer, answer)
}

// request hands a request over to the loop and waits for the answer.
func request[T any](ctx context.Context, to chan<- T, what T, answer <-chan error) error {
	select {
	case to <- what:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run syncs until ctx ends; then it returns nil at once and leaves the rules in place. Start
// it when all sources have synced: its first sync is unconditional. It returns an error only
// if the kernel's socket is broken.
func (l *Loop) Run(ctx context.Context) error {
	var cleaning sync.WaitGroup
	defer cleaning.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if l.stale.flows != nil {
		cleaning.Go(func() { l.stale.run(ctx) })
	}
	if l.affinity.reader != nil {
		cleaning.Go(func() { l.affinity.run(ctx, l.ruleset.AffinityMaps) })
	}
	l.options.Queue.Ring()
	l.drift.start(ctx)
	for ctx.Err() == nil {
		wanted := true
		var disowned chan<- error
		select {
		case <-ctx.Done():
			return nil
		case <-l.options.Queue.bell:
		case <-l.retry.timer.C:
		case <-l.drift.repair.C:
		case entries := <-l.affinity.batches:
			entries.answer <- l.commitEntries(ctx, entries.ops)
			wanted = false
		case <-l.refusals.timer.C:
			l.refusals.retry()
		case <-l.minute.C:
			l.minuteRuns, wanted = false, false
			l.commits.endMinute()
			l.conflicts.endMinute()
		case disowned = <-l.disown:
			l.ruleset.SetOwned(false)
			l.known = false
		case <-l.drift.auditing.C:
			l.known, wanted = l.drift.audit(ctx, l.known)
		case change := <-l.drift.changes:
			l.known, wanted = l.drift.hear(change, l.known)
		}
		if wait := time.Until(l.rest.next(l.options.MinInterval)); wanted && wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
		if ctx.Err() != nil && disowned != nil {
			disowned <- ctx.Err()
		}
		if !wanted || ctx.Err() != nil {
			continue
		}
		err := l.sync(ctx)
		if disowned != nil {
			disowned <- err
		}
		if errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOTSOCK) { // somebody closed it, and it does not come back
			return fmt.Errorf("nf_tables cannot be reached any more: %w; the rules stay in force, start kube-nft again", err)
		}
		if held(err) {
			l.hold(err)
			continue
		}
		if err != nil && ctx.Err() == nil { // a new change does not shorten the pause after the next failure
			attempt := l.retry.failures + 1
			l.options.Log.Error("sync failed", zap.Error(err), zap.Duration("retry_in", l.retry.failed()), zap.Int("attempt", attempt))
			if l.options.Failed != nil {
				l.options.Failed(err)
			}
		}
	}
	return nil
}

// Once brings the kernel up to date and removes stale connections, one time. It is for callers
// that do not go on with Run. A failure to remove connections is logged only.
func (l *Loop) Once(ctx context.Context) error {
	if err := l.sync(ctx); err != nil {
		return err
	}
	l.stale.clean(ctx)
	return nil
}

// sync brings the kernel up to date. It reads the tables again if somebody else commits between
// our reading and our writing, and if the kernel refuses a batch. If the kernel refuses the batch
// that follows such a reading, isolate leaves out the Service ports that cause it. A part after the
// first may be refused because somebody has taken away what the parts before it have made. What is
// wrong with the part itself comes up again after the reading: the batch then begins with it.
func (l *Loop) sync(ctx context.Context) (err error) {
	began := time.Now()
	defer func() {
		l.entriesRefused = nil
		l.rest.note(began, time.Now())
	}()
	for range 5 {
		full := !l.known
		err = l.attempt(ctx)
		switch {
		case errors.Is(err, unix.ERESTART), errors.Is(err, kernel.ErrUnknownOutcome):
		case isRefusal(err) && errors.As(err, new(*partError)):
		case !isRefusal(err), full && !l.isolate(ctx, err):
			return err
		}
	}
	return err
}

// isolate takes out of the wanted state what the kernel refuses, and reports whether there is
// another batch to try. If the kernel takes the wanted state without the affinity entries that an
// older version or another proxy kept, the next batch leaves out these entries instead.
func (l *Loop) isolate(ctx context.Context, err error) bool {
	have, _, readErr := read(ctx, l.kernel)
	if readErr != nil {
		return false
	}
	t := trial{refusals: &l.refusals, kernel: l.kernel, have: have}
	if l.entriesRefused == nil && t.check(ctx) == nil {
		l.entriesRefused = err
		return true
	}
	if !t.isolate(ctx, err) {
		return false
	}
	l.entriesRefused = nil
	return true
}

// attempt computes a batch, commits it and does what follows. From the commit until the
// kernel's answer, what the kernel holds is unknown.
func (l *Loop) attempt(ctx context.Context) error {
	taken := time.Now()
	p, err := l.plan(ctx)
	if err != nil {
		return err
	}
	compiled := time.Now()
	generation := p.batch.Generation
	if !p.batch.Empty() {
		l.known = false
		if generation != 0 {
			l.drift.quiet()
		}
		var before []nft.Batch
		last := p.batch
		if p.full || l.drift.reason != "" { // only such a batch makes a table
			before, last = change.Parts(&p.batch, maxPart)
		}
		for i, part := range append(before, last) {
			if err = l.kernel.Commit(ctx, part); err != nil && i > 0 {
				err = &partError{part: i + 1, of: len(before) + 1, err: err}
			}
			if err != nil {
				break
			}
		}
		if err != nil {
			var foreign *kernel.ForeignError
			if errors.As(err, &foreign) {
				l.leaveForeign(err)
			}
			return attribute(l.ruleset, err)
		}
		l.options.Foreign, l.options.Seeds = nil, nil // what was done is not to be done again
		if generation != 0 {
			generation += uint32(len(before)) + 1
		}
	}
	l.known = true
	if generation != 0 {
		l.drift.listenFrom(ctx, generation)
	}
	l.affinity.committed(p.entries)
	committed := time.Now()
	if l.drift.reason != "" && len(p.batch.Ops) > 0 {
		l.drift.logRepair(p.batch.Ops, committed)
	}
	if l.stale.flows != nil {
		l.stale.view.update(l.ruleset, l.nodePorts.reached)
	}
	l.stale.committed(p.flows, p.allFlows)
	l.done(Report{
		Full: p.full, Operations: len(p.batch.Ops), Elements: p.batch.ElementCount(), Foreign: len(p.batch.Foreign), Seeds: p.seeds,
		Taken: taken, Compile: compiled.Sub(taken), Commit: committed.Sub(compiled),
	})
	return nil
}

// maxPart is how many elements of a batch that may be taken apart are committed at once. The
// kernel takes 0.1 to 0.2 s for them, in which nobody else can commit and this process cannot end.
const maxPart = 50_000

// A partError is about a part of a batch, when there are parts before it that stand.
type partError struct {
	part, of int
	err      error
}

func (e *partError) Error() string {
	return fmt.Sprintf("part %d of %d: %v; the parts before it stand, packets do not reach them", e.part, e.of, e.err)
}

// Unwrap returns what is wrong with the part.
func (e *partError) Unwrap() error { return e.err }

// hold tells that a commit is held back and looks again later: a source that is wrong may change all
// the time, and each look reads the tables.
func (l *Loop) hold(err error) {
	l.holding = true
	pause := max(heldPause, heldRatio*l.rest.took)
	l.rest.ended = time.Now().Add(pause)
	l.retry.timer.Reset(pause)
	if l.options.Held != nil {
		l.options.Held(err)
	}
}

// done closes a successful sync.
func (l *Loop) done(report Report) {
	l.retry.failures = 0
	l.ruleset.Committed()
	l.refusals.settle()
	report.Delta, report.NodePorts, report.Distrust = l.waiting, l.nodePorts.reached, l.drift.reason
	report.LeftOut = len(l.refusals.leftOut)
	l.waiting, l.drift.reason = tracker.Delta{}, ""
	fresh, standing := l.ruleset.Conflicts()
	report.Conflicts, report.Standing = l.conflicts.note(fresh, l.ruleset.Successions(), standing), standing
	if l.synced {
		l.commits.note(&report)
	} else {
		l.commits.started(&report, l.ruleset.Lengths())
	}
	l.synced = true
	if l.holding && l.options.Held != nil {
		l.options.Held(nil)
	}
	l.holding = false
	if !l.minuteRuns && (report.Operations > 0 || len(fresh) > 0 || l.commits.slow > 0) {
		l.minute.Reset(time.Minute)
		l.minuteRuns = true
	}
	if l.options.Committed != nil {
		l.options.Committed(report)
	}
}
