package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// kernel is what the loop needs of *nft.Kernel.
type kernel interface {
	Read(context.Context) (nft.Tables, uint32, error)
	Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error)
	Commit(context.Context, nft.Batch) error
}

// source is what the loop needs of *tracker.Tracker.
type source interface {
	Take() tracker.Delta
	NodeAddresses() []netip.Addr
}

// A Loop brings changes of a tracker into the kernel. Make it with New.
type Loop struct {
	options Options
	source  source
	ruleset *nft.Ruleset
	kernel  kernel
	flows   flows // nil leaves connections alone

	wake      Signal
	distrust  chan string
	disown    chan chan<- error
	addresses chan []netip.Addr

	// The rest is owned by the goroutine of Run.
	guard     *guard // nil: nobody watches over the tables
	poison    poison
	disowning []chan<- error // who waits for Disown
	beside    Beside         // nil once the first batch has been committed
	known     bool           // whether the kernel holds what the ruleset calls committed
	adopted   bool
	synced    bool         // a sync has succeeded
	reason    string       // the latest suspicion that no sync has dealt with
	suspected time.Time    // when it came up
	local     []netip.Addr // addresses of this node's interfaces
	waiting   tracker.Delta
	stale     staleFlows
	unclean   complaint // of connection tracking
	// nodePortAddrs are the addresses at which node ports are reached.
	nodePortAddrs []netip.Addr
	retry         *time.Timer
	attempts      int
	debt          debt
	tempo         tempo
}

// New returns a loop that has not started.
func New(source source, ruleset *nft.Ruleset, kernel kernel, options Options) *Loop {
	if options.Changed == nil {
		options.Changed = NewSignal()
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
	return &Loop{
		options:   options,
		beside:    options.Beside,
		source:    source,
		ruleset:   ruleset,
		kernel:    kernel,
		wake:      options.Changed,
		poison:    newPoison(),
		retry:     stopped(),
		distrust:  make(chan string, 1),
		disown:    make(chan chan<- error),
		addresses: make(chan []netip.Addr, 1),
	}
}

// CleanFlows makes the loop remove stale connections after each commit. It must be called
// before Run.
func (l *Loop) CleanFlows(flows flows) { l.flows = flows }

// A Signal says that something has happened since its receiver last looked.
type Signal chan struct{}

// NewSignal returns a Signal that has not been raised.
func NewSignal() Signal { return make(Signal, 1) }

// Raise never blocks; raised twice is raised.
func (s Signal) Raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Wake makes the loop look at its source. It never blocks.
func (l *Loop) Wake() { l.wake.Raise() }

// Distrust tells the loop that somebody may have changed our tables, and why it is thought
// so. It reads them back and repairs what differs. It never blocks.
func (l *Loop) Distrust(reason string) {
	select {
	case l.distrust <- reason:
	default:
	}
}

// SetAddresses tells the loop which addresses the node's interfaces have. The latest call
// counts. It must be called from one goroutine at a time.
func (l *Loop) SetAddresses(addrs []netip.Addr) {
	select {
	case <-l.addresses:
	default:
	}
	l.addresses <- addrs
}

// Run syncs until ctx ends; then it returns nil at once and leaves the rules in place. Start
// it when all sources have synced: its first sync is unconditional. It returns an error only
// if the kernel's socket is broken.
func (l *Loop) Run(ctx context.Context) error {
	l.Wake()
	if l.guard != nil {
		go l.guard.listen(ctx, l.options.Log)
	}
	l.guard.schedule(l.options.AuditInterval)
	for ctx.Err() == nil {
		if !l.due(ctx) || !l.pause(ctx) {
			continue
		}
		l.takeAddresses()
		err := l.sync(ctx)
		if isBroken(err) {
			return fmt.Errorf("nf_tables cannot be reached any more: %w; the rules stay in force, start kube-nft again", err)
		}
		if err != nil && ctx.Err() == nil {
			l.retry.Reset(l.failed(err))
		}
		l.answer(err)
	}
	return nil
}

// due waits for something to happen and reports whether to sync because of it.
func (l *Loop) due(ctx context.Context) bool {
	changes, audit, repair := l.guard.alarms()
	select {
	case <-ctx.Done():
		return false
	case <-l.wake:
	case <-l.retry.C:
		l.known = l.known && l.debt.attempts == 0
	case <-repair:
	case <-l.poison.timer.C:
		l.retryRefused()
	case answer := <-l.disown:
		l.release(answer)
	case <-audit:
		return l.inspect(ctx)
	case change := <-changes:
		return l.suspect(change)
	case reason := <-l.distrust:
		l.options.Log.Warn("reading the tables back", zap.String("reason", reason))
		l.known, l.reason, l.suspected = false, reason, time.Now()
	case l.local = <-l.addresses:
	}
	return true
}

// isBroken reports whether the socket is: somebody closed it, and it does not come back.
func isBroken(err error) bool {
	return errors.Is(err, unix.EBADF) || errors.Is(err, unix.ENOTSOCK)
}

func (l *Loop) takeAddresses() {
	select {
	case l.local = <-l.addresses:
	default:
	}
}

// pause waits until the next sync may begin; false if ctx ended.
func (l *Loop) pause(ctx context.Context) bool {
	wait := time.Until(l.tempo.next(l.options.MinInterval))
	if l.tempo.ended.IsZero() || wait <= 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

// failed reports a sync that failed and returns how long to wait before the next one. A
// new event does not shorten the pause of the following failure.
func (l *Loop) failed(err error) time.Duration {
	pause := l.backoff(l.attempts)
	l.attempts++
	l.options.Log.Error("sync failed", zap.Error(err), zap.Duration("retry_in", pause), zap.Int("attempt", l.attempts))
	if l.options.Failed != nil {
		l.options.Failed(err)
	}
	return pause
}

// backoff is the pause after one more failure than attempts.
func (l *Loop) backoff(attempts int) time.Duration {
	if attempts >= 20 {
		return l.options.RetryMax
	}
	return min(l.options.RetryMin<<attempts, l.options.RetryMax)
}

// stopped returns a timer that nobody has set.
func stopped() *time.Timer {
	timer := time.NewTimer(0)
	<-timer.C
	return timer
}

// sync brings the kernel up to date, once. Somebody else's commit between our reading and
// writing only makes us read again, and so does a batch that the kernel refuses; if it
// refuses it then, the Service ports that it is about are left out.
func (l *Loop) sync(ctx context.Context) error {
	began := time.Now()
	defer func() {
		l.debt.refused = nil
		l.tempo.note(began, time.Now())
	}()
	var err error
	for range 5 {
		full := !l.known
		err = l.attempt(ctx)
		switch {
		case errors.Is(err, unix.ERESTART), errors.Is(err, nft.ErrUnknownOutcome):
		case !isRefusal(err), full && !l.isolate(ctx, err):
			return err
		}
	}
	return err
}

func (l *Loop) attempt(ctx context.Context) error {
	started := time.Now()
	plan, err := l.plan(ctx)
	if err != nil {
		return err
	}
	compiled := time.Now()
	if err := l.commit(ctx, plan.batch); err != nil {
		return err
	}
	l.sweep(ctx, &plan)
	committed := time.Now()
	l.logRepair(&plan.batch, committed)
	flows := l.clean(ctx, &plan)
	flows.Duration = time.Since(committed)
	l.done(Report{
		Full: plan.full, Flows: flows, Operations: len(plan.batch.Ops), Elements: plan.batch.ElementCount(), Beside: len(plan.batch.Beside),
		Taken: started, Compile: compiled.Sub(started), Commit: committed.Sub(compiled),
	})
	return nil
}

// commit sends a batch, unless it is empty. From then until the kernel's answer, what it
// holds is unknown.
func (l *Loop) commit(ctx context.Context, batch nft.Batch) error {
	if batch.Empty() {
		l.known = true
		l.guard.listenFrom(ctx, batch.Generation, l.options.Log)
		return nil
	}
	l.known = false
	l.guard.quiet(batch.Generation, l.options.Log)
	err := l.kernel.Commit(ctx, batch)
	l.besideDone(err)
	if err != nil {
		return l.own(err)
	}
	l.known = true
	if batch.Generation != 0 {
		l.guard.listenFrom(ctx, batch.Generation+1, l.options.Log)
	}
	return nil
}

// own adds the Service that an operation was for to the kernel's error about it.
func (l *Loop) own(err error) error {
	var op *nft.OpError
	if errors.As(err, &op) {
		op.Owner = l.ruleset.Owner(op.Family, op.Set, op.Element)
	}
	return err
}

// logConflicts says who goes without a frontend, and who has got one after all.
func (l *Loop) logConflicts(conflicts []nft.Conflict) {
	for _, conflict := range conflicts {
		l.options.Log.Warn("conflict", zap.Stringer("frontend", conflict.Frontend),
			zap.Stringer("winner", conflict.Winner), zap.Stringer("loser", conflict.Loser),
			zap.String("remedy", "the loser is not served there while the winner claims it: change the address or port of one of them"))
	}
	for _, s := range l.ruleset.Successions() {
		l.options.Log.Info("conflict over: the loser is served there now", zap.Stringer("frontend", s.Frontend),
			zap.Stringer("before", s.Before), zap.Stringer("now", s.Heir))
	}
}

// logSync says what a successful sync wrote. One that wrote nothing is worth a line only if
// it is the first: a restart has succeeded then.
func (l *Loop) logSync(report *Report) {
	first := !l.synced
	l.synced = true
	switch {
	case report.Operations > 0:
		l.options.Log.Info("committed", zap.Bool("full", report.Full), zap.Int("operations", report.Operations),
			zap.Int("elements", report.Elements), zap.Duration("compile", report.Compile), zap.Duration("commit", report.Commit))
	case first:
		l.options.Log.Info("in sync, nothing to write", zap.Int("elements", count(l.ruleset.Lengths())), zap.Duration("compile", report.Compile))
	}
}

// count adds up lengths of sets.
func count(lengths map[nft.Family]map[string]int) (elements int) {
	for _, sets := range lengths {
		for _, n := range sets {
			elements += n
		}
	}
	return elements
}

// done closes a successful sync.
func (l *Loop) done(report Report) {
	l.attempts = 0
	l.ruleset.Committed()
	l.settlePoison(time.Now())
	report.Delta, report.NodePorts, report.Distrust = l.waiting, l.nodePortAddrs, l.reason
	report.Conflicts, report.Standing = l.ruleset.Conflicts()
	report.LeftOut = len(l.poison.refused)
	l.waiting, l.reason = tracker.Delta{}, ""
	l.logConflicts(report.Conflicts)
	l.logSync(&report)
	if l.options.Committed != nil {
		l.options.Committed(report)
	}
}
