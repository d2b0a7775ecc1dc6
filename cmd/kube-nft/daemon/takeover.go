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
	migrate.Takeover
	*daemon
	needed bool         // kube-proxy has something that must go, or is alive
	over   bool         // commits do not matter any more
	state  atomic.Value // a migrate.State; read by metrics
	follow func()       // answers health checks while kube-proxy is alive
}

// takeOver waits until the sync loop may commit; while it waits, source feeds health checks. What kube-proxy
// programmed is removed by the first commit, and the rest after the first sync that verifies. It returns false if
// ctx ended first.
func (d *daemon) takeOver(ctx context.Context, source *interim) (bool, error) {
	t := &takeover{daemon: d, follow: func() { source.begin(ctx) }}
	t.Takeover = migrate.Takeover{Node: legacy.Node{Proc: d.config.HostProc}, Kernel: d.kernel,
		Force: d.config.ForceTakeover, Drain: d.config.TakeoverDrain, Journal: t.record}
	t.state.Store(migrate.Replacing)
	d.takeover = t
	d.monitor.metrics.Takeover(takeoverStates(), func() string { return string(t.state.Load().(migrate.State)) })
	needed, running, err := t.Begin(ctx)
	d.monitor.await(running) // a kube-proxy that has the ports until it ends
	switch {
	case ctx.Err() != nil:
		return false, nil
	case err != nil:
		return false, err
	}
	if t.needed = needed; !needed {
		t.enter(migrate.Taken, nil)
	}
	t.over = !needed && d.apply == nil
	return true, nil
}

// record writes an entry of the takeover's journal to the log, or to the journal of migrate apply.
func (t *takeover) record(e migrate.Entry) {
	switch {
	case e.Event == migrate.Waits:
		const text = "the takeover waits until kube-proxy on this node has ended, because kube-proxy would write its rules " +
			"again; stop kube-proxy, or start kube-nft with --takeover=never"
		t.enter(migrate.Waiting, nil)
		t.waits.Store(new("a running kube-proxy to end: " + e.Text))
		t.monitor.events.node(warning, "WaitingForKubeProxy", "TakeOver", text+": "+e.Text)
		if t.apply == nil {
			t.log.Warn(text, zap.String("kube_proxy", e.Text))
		}
		t.follow()
	case t.state.Load() == migrate.Waiting:
		t.enter(migrate.Replacing, nil)
	}
	switch {
	case t.apply != nil:
		t.apply.record(e)
	case e.Event == migrate.Done:
		t.log.Info("takeover: a step is done", zap.String("step", e.Step), zap.String("done", e.Text))
	}
}

// enter records the state of the takeover, with the error that led there.
func (t *takeover) enter(s migrate.State, err error) {
	t.state.Store(s)
	t.waits.Store(nil)
	t.awaitsProxy.Store(s == migrate.Waiting)
	if s != migrate.Waiting && s != migrate.Replacing {
		t.monitor.await(false) // kube-proxy has ended, or it is not known when it will
	}
	var refused error
	if s == migrate.Refused {
		refused = err
	}
	t.monitor.safety.report(peer.SafetyTakeover, refused)
	if t.apply != nil {
		t.apply.entered(t, s, err)
	}
}

// foreign returns what the first commit does to kube-proxy's tables; see proxysync.Options.Foreign.
func (t *takeover) foreign(ctx context.Context, want nft.Tables) ([]nft.ForeignMessage, uint32, error) {
	messages, generation, err := t.First(ctx, want, t.missingNode())
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
	knownClients, err := t.KnownClients(ctx)
	if err != nil {
		t.log.Warn("takeover: some clients with session affinity change their endpoint, once", zap.Error(err))
	}
	return knownClients
}

// committed verifies our tables after a commit. After the first commit that verifies, the rest of
// kube-proxy's state is removed on a goroutine of its own.
func (t *takeover) committed(ctx context.Context, r *proxysync.Report) {
	if t.over {
		return
	}
	t.record(migrate.Entry{Step: "commit", Event: migrate.Done, Text: summary(r)})
	if !t.needed {
		t.over = true
		t.record(migrate.Entry{Step: "look again", Event: migrate.Done, Text: "nothing of kube-proxy's is left"})
		t.apply.end(nil)
		return
	}
	verified, err := t.Verify(ctx, t.ruleset.Want())
	if err != nil {
		t.log.Error("takeover: kube-proxy's rules stay, because our tables are not verified; retrying after the next sync",
			zap.Error(err))
		t.enter(migrate.Stuck, err)
	}
	if t.over = verified; verified {
		t.group.Go(func() error { return t.remove(ctx) })
	}
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
func (t *takeover) remove(ctx context.Context) error {
	for {
		err := t.Wait(ctx)
		if err == nil {
			t.reserve()
			err = t.Remove(ctx, t.missingNode())
			t.reserve()
		}
		if ctx.Err() != nil {
			return nil
		}
		state, rest := migrate.StateAfter(err), stepPause
		var tables *migrate.TablesError
		if errors.As(err, &tables) {
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
func (t *takeover) reserve() {
	addrs, err := legacy.ServiceAddresses()
	if err != nil {
		t.log.Warn("takeover: the node may answer at addresses of Services until kube-ipvs0 is removed", zap.Error(err))
		return
	}
	t.loop.Reserve(addrs)
}

// drained waits until connections of kube-proxy's IPVS mode have ended, or for as long as they may last; status
// says so.
func (t *takeover) drained(ctx context.Context, draining error) error {
	report := func(text string) { t.draining.Store(&text) }
	report(draining.Error())
	defer t.draining.Store(nil)
	return t.Drained(ctx, report)
}

// takingOver reports whether a takeover is under way.
func (d *daemon) takingOver() bool {
	return d.takeover != nil && d.takeover.state.Load() == migrate.Replacing
}

// missingNode returns the name of this node if there is no such Node object.
func (d *daemon) missingNode() string {
	if d.tracker.Node() == nil {
		return d.config.NodeName
	}
	return ""
}

// takeoverStates lists the states of a takeover in the spelling of metrics.
func takeoverStates() (list []string) {
	for _, s := range migrate.States {
		list = append(list, string(s))
	}
	return list
}
