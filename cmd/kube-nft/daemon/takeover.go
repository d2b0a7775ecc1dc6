package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/retry"
)

// stepPause is the pause after a failed step of a takeover; every Service is served meanwhile. repairPause is the
// pause after another program has removed our tables, which the sync loop puts back at once.
const (
	stepPause   = 30 * time.Second
	repairPause = time.Second
)

// A takeover drives a migrate.Takeover: before, in and after the sync loop's first commit.
type takeover struct {
	steps       migrate.Takeover
	log         *zap.Logger
	monitor     *monitor
	missingNode func() string // see daemon.missingNode
	apply       *apply        // ends the daemon with the takeover; nil if it runs on
	follow      func()        // answers health checks while kube-proxy is alive
	needed      bool          // kube-proxy has something that must go, or is alive
	over        bool          // commits do not matter any more
	latest      atomic.Value  // a progress; read by metrics and status
}

// A progress says how far a takeover is, and what it waits for in this state.
type progress struct {
	state  migrate.State
	awaits string
}

func (d *daemon) newTakeover(apply *apply) *takeover {
	t := &takeover{log: d.log, monitor: d.monitor, missingNode: d.missingNode, apply: apply}
	t.steps = migrate.Takeover{Node: legacy.Node{Proc: d.config.HostProc}, Kernel: d.kernel,
		Force: d.config.ForceTakeover, Drain: d.config.TakeoverDrain, Journal: t.record}
	return t
}

// progress returns the latest progress; the zero value before begin, and without a takeover.
func (t *takeover) progress() (p progress) {
	if t != nil {
		p, _ = t.latest.Load().(progress)
	}
	return p
}

// begin waits until the sync loop may commit; while it waits, source feeds health checks. What kube-proxy
// programmed is removed by the first commit, and the rest after the first sync that verifies. It returns false if
// ctx ended first.
func (t *takeover) begin(ctx context.Context, source *interim) (bool, error) {
	t.follow = func() { source.begin(ctx) }
	t.latest.Store(progress{state: migrate.Replacing})
	t.monitor.metrics.Takeover(takeoverStates(), func() string { return string(t.progress().state) })
	needed, running, err := t.steps.Begin(ctx)
	t.monitor.await(running) // a kube-proxy that has the ports until it ends
	switch {
	case ctx.Err() != nil:
		return false, nil
	case err != nil:
		return false, err
	}
	if t.needed = needed; !needed {
		t.enter(migrate.Taken, nil)
	}
	t.over = !needed && t.apply == nil
	return true, nil
}

// record writes an entry of the takeover's journal to the log, or to the journal of migrate apply.
func (t *takeover) record(e migrate.Entry) {
	switch {
	case e.Event == migrate.Waits:
		const text = "the takeover waits until kube-proxy on this node has ended, because kube-proxy would write its rules " +
			"again; stop kube-proxy, or start kube-nft with --takeover=never"
		t.enter(migrate.Waiting, nil)
		t.latest.Store(progress{migrate.Waiting, e.Text})
		t.monitor.events.Node("WaitingForKubeProxy", "TakeOver", text+": "+e.Text)
		if t.apply == nil {
			t.log.Warn(text, zap.String("kube_proxy", e.Text))
		}
		t.follow()
	case t.progress().state == migrate.Waiting:
		t.enter(migrate.Replacing, nil)
	}
	switch {
	case t.apply != nil:
		t.apply.journal(e)
	case e.Event == migrate.Done:
		t.log.Info("takeover: a step is done", zap.String("step", e.Step), zap.String("done", e.Text))
	}
}

// enter records the state of the takeover, with the error that led there.
func (t *takeover) enter(s migrate.State, err error) {
	t.latest.Store(progress{state: s})
	if s != migrate.Waiting && s != migrate.Replacing {
		t.monitor.await(false) // kube-proxy has ended, or it is not known when it will
	}
	var refused error
	if s == migrate.Refused {
		refused = err
	}
	t.monitor.safety.report(peer.SafetyTakeover, refused)
	if t.apply != nil {
		t.endAfter(s, err)
	}
}

// foreign returns what the first commit does to kube-proxy's tables; see proxysync.Options.Foreign.
func (t *takeover) foreign(ctx context.Context, want nft.Tables) ([]nft.ForeignMessage, uint32, error) {
	messages, generation, err := t.steps.First(ctx, want, t.missingNode())
	if migrate.IsLoss(err) {
		t.enter(migrate.Refused, err)
		return nil, 0, &proxysync.SafetyError{Err: err}
	}
	if err == nil {
		t.enter(migrate.Replacing, nil)
		t.record(migrate.Entry{Step: "commit", Event: migrate.Begins})
	}
	return messages, generation, err
}

// keptClients returns kube-proxy's affinity entries; see proxysync.Options.KnownClients.
func (t *takeover) keptClients(ctx context.Context) []services.KnownClient {
	knownClients, err := t.steps.KnownClients(ctx)
	if err != nil {
		t.log.Warn("takeover: some clients with session affinity change their endpoint, once", zap.Error(err))
	}
	return knownClients
}

// committed verifies our tables after a commit. It returns true after the first commit that verifies: then remove
// may remove the rest of kube-proxy's state.
func (t *takeover) committed(ctx context.Context, r *proxysync.Report, ruleset *services.Ruleset) bool {
	if t.over {
		return false
	}
	t.record(migrate.Entry{Step: "commit", Event: migrate.Done, Text: summary(r)})
	if !t.needed {
		t.over = true
		t.record(migrate.Entry{Step: "look again", Event: migrate.Done, Text: "nothing of kube-proxy's is left"})
		t.apply.end(errApplied)
		return false
	}
	verified, err := t.steps.Verify(ctx, ruleset.Want())
	if err != nil {
		t.log.Error("takeover: kube-proxy's rules stay, because our tables are not verified; retrying after the next sync",
			zap.Error(err))
		t.enter(migrate.Stuck, err)
	}
	t.over = verified
	return verified
}

// summary says what a commit did.
func summary(r *proxysync.Report) string {
	if r.Operations+r.Foreign == 0 {
		return "nothing to change"
	}
	text := fmt.Sprintf("%d operations on our tables, %d elements, and %d on kube-proxy's", r.Operations,
		r.Elements, r.Foreign)
	if r.KnownClients > 0 {
		text += fmt.Sprintf("; session affinity: %d clients keep their endpoint", r.KnownClients)
	}
	return text
}

// remove removes what remains of kube-proxy's state. It tries again until that succeeds, ctx ends or a
// privilege is missing.
func (t *takeover) remove(ctx context.Context, loop *proxysync.Loop) error {
	for {
		err := t.steps.Wait(ctx)
		if err == nil {
			t.reserve(loop)
			err = t.steps.Remove(ctx, t.missingNode())
			t.reserve(loop)
		}
		if ctx.Err() != nil {
			return nil
		}
		state, rest := migrate.StateAfter(err), stepPause
		if errors.As(err, new(*migrate.TablesError)) {
			rest = repairPause
		}
		t.enter(state, err)
		switch state {
		case migrate.Taken:
			return nil
		case migrate.Draining:
			if err = t.drained(ctx, err); err == nil {
				continue
			}
		case migrate.Unverified:
			t.log.Warn("takeover: kube-proxy may have left rules where this process cannot look; run kube-nft migrate "+
				"apply on this node with the privilege",
				zap.Error(err))
			return nil
		}
		if ctx.Err() != nil { // the daemon ends, or migrate apply does because of err
			return nil
		}
		t.log.Error("takeover: cannot remove all that kube-proxy left; retrying", zap.Error(err),
			zap.Duration("retry_in", rest))
		if !retry.Pause(ctx, rest) {
			return nil
		}
		t.enter(migrate.Replacing, nil)
	}
}

// reserve keeps the addresses of kube-ipvs0, as long as it is there, for Services: kube-proxy's rules do not reject
// what comes for other ports there any more.
func (t *takeover) reserve(loop *proxysync.Loop) {
	addrs, err := legacy.ServiceAddresses()
	if err != nil {
		t.log.Warn("takeover: the node may answer at addresses of Services until kube-ipvs0 is removed", zap.Error(err))
		return
	}
	loop.Reserve(addrs)
}

// drained waits until connections of kube-proxy's IPVS mode have ended, or for as long as they may last; status
// says so.
func (t *takeover) drained(ctx context.Context, draining error) error {
	report := func(text string) { t.latest.Store(progress{migrate.Draining, text}) }
	report(draining.Error())
	defer report("")
	return t.steps.Drained(ctx, report)
}

// takeoverStates lists the states of a takeover in the spelling of metrics.
func takeoverStates() (list []string) {
	for _, s := range migrate.States {
		list = append(list, string(s))
	}
	return list
}
