package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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

// Options are the settings of a Loop. MinInterval and the bounds of the retry must be
// positive or zero; zero RetryMin and RetryMax stand for the defaults.
type Options struct {
	// MinInterval is the least time between the end of one commit and the start of the
	// next; what happens meanwhile goes into one batch.
	MinInterval time.Duration
	// RetryMin is the pause after a first refused batch. It doubles with every further
	// one, up to RetryMax.
	RetryMin, RetryMax time.Duration
	// Changed is raised when the source has something new. It may be nil.
	Changed Signal
	// NodePorts says at which addresses node ports are served.
	NodePorts NodePortAddresses
	Log       *zap.Logger
	// AuditInterval is the time between two audits of the tables; zero stands for
	// DefaultAuditInterval. Without Watch there are none.
	AuditInterval time.Duration
	// Beside, if set, is asked for what goes into the same transaction as the first batch.
	Beside Beside
	// Committed, if set, is called on the loop's goroutine after each successful sync.
	Committed func(Report)
	// Refused, if set, is called on the loop's goroutine when a Service port is left out
	// because the kernel refuses it, and with a nil error when it is taken after all.
	Refused func(tracker.PortID, error)
	// Failed, if set, is called on the loop's goroutine after each failed one.
	Failed func(error)
}

// The defaults of Options.
const (
	DefaultRetryMin = 50 * time.Millisecond
	DefaultRetryMax = 30 * time.Second
)

// A Report says what a sync did. An empty batch is not sent: Operations is 0 then.
type Report struct {
	Full       bool // the kernel's state was read first
	Operations int
	Elements   int
	Beside     int           // messages about tables of others, see Options.Beside
	Compile    time.Duration // from the delta to the batch
	Commit     time.Duration // the kernel's part
	Flows      FlowReport
	Taken      time.Time     // everything that the source had before is in the kernel now
	Delta      tracker.Delta // what changed since the last successful sync
	NodePorts  []netip.Addr  // the addresses at which node ports are reached
	Conflicts  []nft.Conflict
	Standing   int    // conflicts that there are now, new ones or not
	Distrust   string // why the tables were looked at or repaired; empty if nobody was suspected
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
	reason    string       // the latest suspicion that no sync has dealt with
	suspected time.Time    // when it came up
	local     []netip.Addr // addresses of this node's interfaces
	waiting   tracker.Delta
	stale     []nft.FlowChange // that could not be cleaned up yet
	// nodePortAddrs are the addresses at which node ports are reached.
	nodePortAddrs []netip.Addr
	attempts      int
	lastEnded     time.Time
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
	retry := time.NewTimer(0)
	<-retry.C
	if l.guard != nil {
		go l.guard.listen(ctx, l.options.Log)
	}
	l.guard.schedule(l.options.AuditInterval)
	for ctx.Err() == nil {
		if !l.due(ctx, retry.C) || !l.pause(ctx) {
			continue
		}
		l.takeAddresses()
		err := l.sync(ctx)
		if isBroken(err) {
			return fmt.Errorf("nf_tables cannot be reached any more: %w; the rules stay in force, start kube-nft again", err)
		}
		if err != nil && ctx.Err() == nil {
			retry.Reset(l.failed(err))
		}
		l.answer(err)
	}
	return nil
}

// due waits for something to happen and reports whether to sync because of it.
func (l *Loop) due(ctx context.Context, retry <-chan time.Time) bool {
	changes, audit, repair := l.guard.alarms()
	select {
	case <-ctx.Done():
		return false
	case <-l.wake:
	case <-retry:
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
	case addrs := <-l.addresses:
		l.addresses <- addrs
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

// pause waits until the minimum interval since the last sync is over; false if ctx ended.
func (l *Loop) pause(ctx context.Context) bool {
	wait := time.Until(l.lastEnded.Add(l.options.MinInterval))
	if l.lastEnded.IsZero() || wait <= 0 {
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
	pause := l.options.RetryMax
	if l.attempts < 20 {
		pause = min(l.options.RetryMin<<l.attempts, l.options.RetryMax)
	}
	l.attempts++
	l.options.Log.Error("sync failed", zap.Error(err), zap.Duration("retry_in", pause), zap.Int("attempt", l.attempts))
	if l.options.Failed != nil {
		l.options.Failed(err)
	}
	return pause
}

// sync brings the kernel up to date, once. Somebody else's commit between our reading and
// writing only makes us read again, and so does a batch that the kernel refuses; if it
// refuses it then, the Service ports that it is about are left out.
func (l *Loop) sync(ctx context.Context) error {
	defer func() { l.lastEnded = time.Now() }()
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
	l.sweep(ctx, plan.tasks)
	committed := time.Now()
	flows := l.clean(ctx, &plan)
	flows.Duration = time.Since(committed)
	l.done(Report{
		Full: plan.full, Flows: flows, Operations: len(plan.batch.Ops), Elements: plan.batch.ElementCount(), Beside: len(plan.batch.Beside),
		Taken: started, Compile: compiled.Sub(started), Commit: committed.Sub(compiled),
	})
	return nil
}

// A plan is what one attempt is going to send.
type plan struct {
	batch nft.Batch
	tasks []nft.AffinityTask
	full  bool
	flows []nft.FlowChange
	// allFlows asks to look at every connection: those that matter are not known.
	allFlows bool
}

// plan takes in what changed and computes the batch for it: against what was committed
// last, or against what the kernel says it holds.
func (l *Loop) plan(ctx context.Context) (plan, error) {
	if l.known {
		moved := l.apply()
		p, err := l.planChange(ctx)
		p.allFlows = moved || l.reason != ""
		return p, err
	}
	have, generation, err := l.read(ctx)
	if err != nil {
		return plan{}, err
	}
	if !l.adopted {
		l.ruleset.Adopt(have)
		l.adopted = true
	}
	l.apply()
	p := plan{batch: nft.Diff(have, l.ruleset.Want()), tasks: l.ruleset.AllAffinityTasks(), full: true, allFlows: true}
	p.flows = append(l.ruleset.Vanished(have), l.ruleset.FlowChanges()...)
	for _, task := range append(p.tasks, l.ruleset.AffinityTasks()...) {
		if table := have[task.Family]; table != nil && table.Sets[task.From] != nil {
			p.batch.Ops = append(p.batch.Ops, task.Ops(table.Sets[task.From].Map)...)
		}
	}
	p.batch.Ops = append(nft.Adoption(have, l.ruleset.Want()), p.batch.Ops...)
	p.batch.Generation = generation
	return p, l.addBeside(ctx, &p.batch)
}

// read returns what the kernel holds, with what packets have put into affinity maps.
func (l *Loop) read(ctx context.Context) (nft.Tables, uint32, error) {
	have, generation, err := l.kernel.Read(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("read the tables back: %w", err)
	}
	for family, table := range have {
		for name, held := range table.Sets {
			if !held.Set.Dynamic {
				continue
			}
			if held.Map, err = l.kernel.Elements(ctx, family, held.Set); err != nil {
				return nil, 0, fmt.Errorf("read affinity map %s: %w", name, err)
			}
		}
	}
	return have, generation, nil
}

func (l *Loop) planChange(ctx context.Context) (plan, error) {
	have, want := l.ruleset.Pending()
	p := plan{batch: nft.Diff(have, want), tasks: l.ruleset.AffinityTasks(), flows: l.ruleset.FlowChanges()}
	p.batch.Generation = l.guard.since(have)
	for _, task := range p.tasks {
		entries, err := l.kernel.Elements(ctx, task.Family, task.Source())
		if err != nil {
			l.known = false
			return plan{}, fmt.Errorf("read affinity map %s: %w", task.From, err)
		}
		p.batch.Ops = append(p.batch.Ops, task.Ops(entries)...)
	}
	return p, nil
}

// apply moves what the source has into the ruleset. It reports whether addresses have
// moved in or out of our care as a whole: Service CIDRs, or those of node ports.
func (l *Loop) apply() (moved bool) {
	delta := l.source.Take()
	l.poison.note(l.ruleset, &delta)
	l.ruleset.Apply(delta)
	node := l.source.NodeAddresses()
	l.ruleset.SetNodePortAddresses(l.options.NodePorts.Select(node, l.local))
	reached := l.options.NodePorts.Reached(node, l.local)
	moved = delta.CIDRsChanged || !slices.Equal(reached, l.nodePortAddrs)
	l.nodePortAddrs = reached
	l.waiting.Merge(delta)
	return moved
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

// sweep removes the affinity entries that packets made for a leaving endpoint between our
// reading of the map and the commit. After the commit, no more of them can be made.
func (l *Loop) sweep(ctx context.Context, tasks []nft.AffinityTask) {
	var batch nft.Batch
	for _, task := range tasks {
		task = task.Sweep()
		entries, err := l.kernel.Elements(ctx, task.Family, task.Map)
		if err == nil {
			batch.Ops = append(batch.Ops, task.Ops(entries)...)
		}
	}
	if batch.Empty() {
		return
	}
	if err := l.kernel.Commit(ctx, batch); err != nil {
		l.known = false
		l.options.Log.Warn("session affinity: entries of removed endpoints stay until the next sync", zap.Error(err))
		l.Wake()
	}
}

// done closes a successful sync.
func (l *Loop) done(report Report) {
	l.attempts = 0
	l.ruleset.Committed()
	l.settlePoison(time.Now())
	report.Delta, report.NodePorts, report.Distrust = l.waiting, l.nodePortAddrs, l.reason
	report.Conflicts, report.Standing = l.ruleset.Conflicts()
	l.waiting, l.reason = tracker.Delta{}, ""
	for _, conflict := range report.Conflicts {
		l.options.Log.Warn("conflict", zap.Stringer("frontend", conflict.Frontend),
			zap.Stringer("winner", conflict.Winner), zap.Stringer("loser", conflict.Loser))
	}
	if report.Operations > 0 && report.Distrust != "" {
		l.options.Log.Warn("repaired our tables", zap.String("reason", report.Distrust), zap.Duration("after", time.Since(l.suspected)))
	}
	if report.Operations > 0 {
		l.options.Log.Info("committed", zap.Bool("full", report.Full), zap.Int("operations", report.Operations),
			zap.Int("elements", report.Elements), zap.Duration("compile", report.Compile), zap.Duration("commit", report.Commit))
	}
	if l.options.Committed != nil {
		l.options.Committed(report)
	}
}
