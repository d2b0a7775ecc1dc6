package sync

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// monitor is what the drift detector needs of *kernel.Monitor.
type monitor interface {
	Join() error
	Leave() error
	Next() (*change.ForeignChange, error)
}

// One of auditsPerRead audits reads the tables back as a whole. The loop also does so rereadAfter a commit
// during which another program may have committed unnoticed.
const (
	auditsPerRead = 20
	rereadAfter   = time.Second
)

// A driftDetector finds changes of our tables by other programs, and decides when to repair them.
type driftDetector struct {
	kernel   client
	ruleset  *services.Ruleset
	log      *zap.Logger
	interval time.Duration // Options.AuditInterval

	monitor     monitor // nil without Watch
	unmonitored bool    // the monitor sends nothing, or not any more
	joined      bool    // the monitor listens
	changes     chan *change.ForeignChange
	received    atomic.Uint32 // everything up to this generation has come from the monitor
	notified    retry.Wake    // has a value after each commit that the monitor has reported
	handled     uint32        // foreign changes up to this generation have been dealt with
	seen        uint32        // the generation of the latest one that was recorded

	audits   int
	auditing *time.Timer
	pace     pace
	repair   *time.Timer // runs while a repair has to wait

	reason    string    // the latest suspicion that no sync has dealt with; empty if there is none
	suspected time.Time // when it came up
}

// start begins to watch until ctx ends.
func (d *driftDetector) start(ctx context.Context) {
	if d.monitor != nil {
		d.unmonitored = false
		go d.listen(ctx)
		d.schedule()
	}
}

// listen passes notifications about our tables on to the loop until ctx ends.
func (d *driftDetector) listen(ctx context.Context) {
	for ctx.Err() == nil {
		change, err := d.monitor.Next()
		if err != nil {
			if ctx.Err() == nil {
				d.logNoNotifications(err)
			}
			change = nil
		}
		if change == nil || !change.Elsewhere() {
			select {
			case d.changes <- change:
			case <-ctx.Done():
			}
		}
		if change == nil {
			return
		}
		if !change.Lost {
			d.received.Store(change.Generation)
		}
		d.notified.Notify()
	}
}

func (d *driftDetector) logNoNotifications(err error) {
	d.log.Error("cannot receive nf_tables notifications: kube-nft finds changes by other programs only every "+
		"--sync-period", zap.Error(err))
}

// schedule sets the time of the next audit.
func (d *driftDetector) schedule() {
	d.auditing.Reset(d.interval + time.Duration((rand.Float64()-0.5)*0.2*float64(d.interval)))
}

// join joins the notification group.
func (d *driftDetector) join() {
	if d.unmonitored || d.joined {
		return
	}
	if err := d.monitor.Join(); err != nil {
		d.logNoNotifications(err)
		return
	}
	d.joined = true
}

// tellTime is how long unchanged waits for the monitor. It tells of a commit within a millisecond.
const tellTime = time.Second

// unchanged reports whether no other program has changed our tables between two generations. If there was a commit
// between them, only the monitor can tell that it was about other tables, and only if it has listened since
// the first of them. unchanged waits until the monitor has reported the second one. If our tables may have
// changed, they must be read.
func (d *driftDetector) unchanged(ctx context.Context, from, to uint32) bool {
	if from == to {
		return true
	}
	if d.unmonitored || !d.joined {
		return false
	}
	timeout := time.NewTimer(tellTime)
	defer timeout.Stop()
	for ctx.Err() == nil {
		complete := int32(d.received.Load()-to) >= 0 // then changes has everything up to it
		select {
		case foreign := <-d.changes:
			if foreign == nil {
				d.unmonitored = true
				return false
			}
			if foreign.Lost || int32(foreign.Generation-from) > 0 {
				return false
			}
			continue
		default:
		}
		if complete {
			return true
		}
		select {
		case <-d.notified:
		case <-timeout.C:
			return false
		case <-ctx.Done():
		}
	}
	return false
}

// renew returns the present generation, if no other program has changed our tables since another one.
func (d *driftDetector) renew(ctx context.Context, from uint32) (now uint32, ok bool) {
	if d.unmonitored || !d.joined {
		return 0, false
	}
	now, err := d.kernel.Generation(ctx)
	return now, err == nil && d.unchanged(ctx, from, now)
}

// quiet leaves the notification group before a large batch that carries a generation: see kernel.Monitor.Join for
// the cost of notifications. The kernel refuses such a batch if others have committed.
func (d *driftDetector) quiet() {
	if d.unmonitored {
		return
	}
	d.joined = false
	if err := d.monitor.Leave(); err != nil {
		d.log.Warn("cannot stop notifications of nf_tables; this commit is slower", zap.Error(err))
	}
}

// listenFrom joins the notification group after a commit of a generation, unless the monitor has been in it all
// the time. If another program has committed meanwhile, its notification was missed, and the tables are read
// back soon.
func (d *driftDetector) listenFrom(ctx context.Context, generation uint32) {
	if d.unmonitored {
		return
	}
	d.handled = generation
	if d.joined {
		return
	}
	d.join()
	now, err := d.kernel.Generation(ctx)
	if err != nil {
		d.logNoNotifications(err)
	}
	if now != generation {
		d.audits = -1
		d.auditing.Reset(rereadAfter)
	}
}

// suspect records why the tables may differ from what they should be.
func (d *driftDetector) suspect(reason string) { d.reason, d.suspected = reason, time.Now() }

// handle evaluates a change of our tables by another program; nil says that no more notifications will come. It
// returns whether the state of the kernel is known now, if it was before, and whether to repair it at once.
func (d *driftDetector) handle(foreign *change.ForeignChange, known bool) (_, repair bool) {
	switch {
	case foreign == nil:
		d.unmonitored = true
		return known, false
	case !known: // the tables are going to be read back
		return false, false
	case !foreign.Lost && int32(foreign.Generation-d.handled) <= 0:
		return true, false
	}
	damaged, known := d.ruleset.Record(foreign)
	if known && damaged == 0 {
		d.log.Info("another program changed our tables; they need no repair", zap.String("program", foreign.Program),
			zap.Uint32("pid", foreign.PID))
		return true, false
	}
	d.seen = foreign.Generation
	reason := fmt.Sprintf("%s (pid %d) changed our tables", foreign.Program, foreign.PID)
	switch {
	case foreign.Lost && foreign.PID == 0:
		reason = "kube-nft missed notifications of changes by other programs"
	case damaged == 1:
		reason += ": 1 object needs repair"
	case damaged > 1:
		reason += fmt.Sprintf(": %d objects need repair", damaged)
	}
	return known, d.damaged(reason)
}

// damaged reports whether to repair the tables now. If not, it sets the timer of the repair, unless a commit
// comes first.
func (d *driftDetector) damaged(reason string) bool {
	d.suspect(reason)
	wait := d.pace.next(d.suspected)
	if wait == 0 {
		d.log.Warn("repairing our tables", zap.String("reason", reason))
		return true
	}
	d.log.Warn("another program keeps changing our tables; delaying the repair", zap.String("reason", reason),
		zap.Duration("wait", wait))
	d.repair.Reset(wait)
	return false
}

// audit compares the tables with what is wanted, as far as that is cheap; now and then, and
// if nothing comes from the monitor, it asks to read them back. It returns what handle returns.
func (d *driftDetector) audit(ctx context.Context, known bool) (_, repair bool) {
	defer d.schedule()
	if !known || d.ruleset.Behind() {
		return known, false // a retry, or the rest, is under way
	}
	d.audits++
	if d.unmonitored || d.audits%auditsPerRead == 0 {
		d.suspect("an audit read the tables back")
		return false, true
	}
	difference, err := d.kernel.Audit(ctx, d.ruleset.Want())
	switch {
	case err != nil:
		d.log.Warn("cannot compare the kernel's tables with ours; retrying after --sync-period", zap.Error(err))
		return true, false
	case difference == "":
		return true, false
	}
	return false, d.damaged("an audit found: " + difference)
}

// Bounds of what the log shows of an operation, which may be about every endpoint there is.
const (
	briefLength   = 200 // bytes
	briefElements = 20  // of this many some do not fit into briefLength
)

// logRepair says what the operations of a suspicious sync have repaired, which were committed
// at that time: what follows a commit, such as a look at all connections, is not part of the
// repair.
func (d *driftDetector) logRepair(ops []nft.Op, committed time.Time) {
	first := ops[0]
	first.Elements = first.Elements[:min(briefElements, len(first.Elements))]
	text := strings.ReplaceAll(first.Text(), "\n", "; ")
	if len(text) > briefLength {
		text = strings.ToValidUTF8(text[:briefLength], "") + "…"
	}
	d.log.Warn("repaired our tables", zap.String("reason", d.reason), zap.Duration("after", committed.Sub(d.suspected)),
		zap.Int("operations", len(ops)), zap.String("first_operation", text))
}
