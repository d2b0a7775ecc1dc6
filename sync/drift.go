package sync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
)

// monitor is what the loop needs of *nft.Monitor.
type monitor interface {
	Join() error
	Leave() error
	Next() (*nft.ForeignChange, error)
}

// auditor is what the loop needs of *nft.Kernel besides kernel.
type auditor interface {
	Generation(context.Context) (uint32, error)
	Audit(context.Context, nft.Tables) (difference string, err error)
}

// DefaultAuditInterval is the time between two audits, give or take a tenth so that the
// nodes of a cluster do not audit in step.
const DefaultAuditInterval = 30 * time.Second

// auditsPerRead is how many audits there are for one that reads the tables back as a whole;
// rereadAfter is when that is done because somebody committed while nobody was listening.
const (
	auditsPerRead = 20
	rereadAfter   = time.Second
)

// A guard watches over what the loop has committed.
type guard struct {
	monitor monitor
	auditor auditor
	changes chan *nft.ForeignChange
	settled uint32 // a foreign change up to this generation is dealt with
	seen    uint32 // the generation of the latest one that was noted
	pace    pace
	audit   *time.Timer
	repair  *time.Timer // runs while a repair has to wait
	audits  int
	deaf    bool // nothing comes from the monitor any more
}

// Watch makes the loop repair what others do to our tables. It must be called before Run;
// whoever closes the monitor does so after Run.
func (l *Loop) Watch(monitor monitor, auditor auditor) {
	l.guard = &guard{
		monitor: monitor, auditor: auditor, changes: make(chan *nft.ForeignChange, 64),
		audit: time.NewTimer(0), repair: time.NewTimer(0),
	}
	<-l.guard.audit.C
	<-l.guard.repair.C
}

// listen hands what the monitor hears to the loop until ctx ends.
func (g *guard) listen(ctx context.Context, log *zap.Logger) {
	for ctx.Err() == nil {
		change, err := g.monitor.Next()
		if err != nil {
			if ctx.Err() == nil {
				log.Error("changes by others are noticed at the next audit only", zap.Error(err))
			}
			change = nil
		}
		select {
		case g.changes <- change:
		case <-ctx.Done():
		}
		if change == nil {
			return
		}
	}
}

// alarms are the channels on which the guard wants to be woken up; nil without one.
func (g *guard) alarms() (changes <-chan *nft.ForeignChange, audit, repair <-chan time.Time) {
	if g == nil {
		return nil, nil, nil
	}
	return g.changes, g.audit.C, g.repair.C
}

// since is the generation since which nobody may have committed when a batch makes a table
// again that the kernel should not have; 0 if it makes none.
func (g *guard) since(batch *nft.Batch) uint32 {
	if g == nil || !batch.Makes() {
		return 0
	}
	return g.seen
}

// quiet stops the listening for a batch that the kernel refuses if there was another one
// since its generation: see nft.Monitor.Join for what listening costs.
func (g *guard) quiet(generation uint32, log *zap.Logger) {
	if g == nil || g.deaf || generation == 0 {
		return
	}
	if err := g.monitor.Leave(); err != nil {
		log.Warn("a large batch takes longer than it has to", zap.Error(err))
	}
}

// listenFrom begins to listen when the kernel was last known to hold what is wanted at a
// generation, 0 if it goes on listening. If somebody has committed since, that was not heard,
// and the tables will be read back soon.
func (g *guard) listenFrom(ctx context.Context, generation uint32, log *zap.Logger) {
	if g == nil || g.deaf || generation == 0 {
		return
	}
	g.settled = generation
	err := g.monitor.Join()
	now := generation
	if err == nil {
		now, err = g.auditor.Generation(ctx)
	}
	if err != nil {
		log.Error("changes by others are noticed at the next audit only", zap.Error(err))
	}
	if now != generation {
		g.audits = -1
		g.audit.Reset(rereadAfter)
	}
}

// schedule sets the time of the next audit.
func (g *guard) schedule(interval time.Duration) {
	if g != nil {
		g.audit.Reset(interval + time.Duration((rand.Float64()-0.5)*0.2*float64(interval)))
	}
}

// suspect looks at what somebody else did to our tables. It reports whether to sync now.
func (l *Loop) suspect(change *nft.ForeignChange) bool {
	switch {
	case change == nil:
		l.guard.deaf = true
		return false
	case !l.known: // the tables are going to be read back
		return false
	case !change.Lost && int32(change.Generation-l.guard.settled) <= 0:
		return false
	}
	damaged, known := l.ruleset.Note(change)
	if known && damaged == 0 {
		l.options.Log.Info("somebody changed our tables and left them as they should be", zap.String("program", change.Program), zap.Uint32("pid", change.PID))
		return false
	}
	l.known = known
	l.guard.seen = change.Generation
	return l.damage(describe(change, damaged), time.Now())
}

// describe says who did what.
func describe(change *nft.ForeignChange, damaged int) string {
	switch {
	case change.Lost && change.PID == 0:
		return "notifications about changes by others were lost"
	case damaged == 0:
		return fmt.Sprintf("%s (pid %d) changed our tables", change.Program, change.PID)
	case damaged == 1:
		return fmt.Sprintf("%s (pid %d) changed our tables: 1 object is not as it should be", change.Program, change.PID)
	}
	return fmt.Sprintf("%s (pid %d) changed our tables: %d objects are not as they should be", change.Program, change.PID, damaged)
}

// logRepair says what a batch repaired that was committed at that time, if it did: what
// follows a commit, such as a look at all connections, is not part of the repair.
func (l *Loop) logRepair(batch *nft.Batch, committed time.Time) {
	if l.reason == "" || len(batch.Ops) == 0 {
		return
	}
	l.options.Log.Warn("repaired our tables", zap.String("reason", l.reason), zap.Duration("after", committed.Sub(l.suspected)),
		zap.Int("operations", len(batch.Ops)), zap.String("first_operation", brief(batch.Ops[0])))
}

// Bounds of what the log shows of an operation, which may be about every endpoint there is.
const (
	briefLength   = 200 // bytes
	briefElements = 20  // of this many some do not fit into briefLength
)

// brief is the beginning of an operation's text, in one line.
func brief(op nft.Op) string {
	op.Elements = op.Elements[:min(briefElements, len(op.Elements))]
	text := strings.ReplaceAll(op.Text(), "\n", "; ")
	if len(text) <= briefLength {
		return text
	}
	return strings.ToValidUTF8(text[:briefLength], "") + "…"
}

// damage notes that there is something to repair. It reports whether to do so now; a repair
// that has to wait for its turn is done with the next change at the latest, should one come.
func (l *Loop) damage(reason string, now time.Time) bool {
	l.reason, l.suspected = reason, now
	wait := l.guard.pace.next(now)
	if wait == 0 {
		l.options.Log.Warn("repairing our tables", zap.String("reason", reason))
		return true
	}
	l.options.Log.Warn("somebody keeps changing our tables: the repair waits", zap.String("reason", reason), zap.Duration("wait", wait))
	l.guard.repair.Reset(wait)
	return false
}

// inspect audits the tables. It reports whether to sync now.
func (l *Loop) inspect(ctx context.Context) bool {
	defer l.guard.schedule(l.options.AuditInterval)
	if !l.known {
		return false // a retry is under way
	}
	l.guard.audits++
	if l.guard.deaf || l.guard.audits%auditsPerRead == 0 {
		l.known, l.reason, l.suspected = false, "audit", time.Now()
		return true
	}
	difference, err := l.guard.auditor.Audit(ctx, l.ruleset.Want())
	switch {
	case err != nil:
		l.options.Log.Warn("audit", zap.Error(err))
		return false
	case difference == "":
		return false
	}
	l.known = false
	return l.damage("audit: "+difference, time.Now())
}

// The pace of repairs: promptRepairs are done at once, and one more for every repairEvery
// that has passed; what is beyond that waits, each time twice as long. Nobody with a shell
// gets there.
const (
	promptRepairs = 20
	repairEvery   = time.Second
	firstWait     = 100 * time.Millisecond
	longestWait   = 30 * time.Second
)

// A pace tells how soon damage is to be repaired.
type pace struct {
	spent float64   // of promptRepairs
	waits int       // in a row
	last  time.Time // when damage was found last
	due   time.Time // of the repair that waits
}

// next returns how long to wait before the damage found now is repaired.
func (p *pace) next(now time.Time) time.Duration {
	p.spent = max(0, p.spent-now.Sub(p.last).Seconds()/repairEvery.Seconds())
	p.last = now
	switch {
	case now.Before(p.due):
		return p.due.Sub(now) // it goes with the repair that waits
	case p.spent == 0:
		p.waits = 0
	}
	if p.spent+1 <= promptRepairs {
		p.spent++
		return 0
	}
	wait := min(firstWait<<min(p.waits, 20), longestWait)
	p.waits++
	p.due = now.Add(wait)
	return wait
}
