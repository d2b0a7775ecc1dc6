package sync

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// ForeignMessages returns what is to happen to tables of others in the transaction of the
// first batch, which makes our tables the wanted ones, and the generation of nf_tables for which
// that holds.
type ForeignMessages func(ctx context.Context,
	want nft.Tables) (messages []nft.ForeignMessage, generation uint32, err error)

// A plan is the batch of one attempt, and what follows when the kernel has taken it.
type plan struct {
	batch        nft.Batch
	full         bool // the kernel's state was read first
	knownClients int  // that the batch makes entries of
	flows        []tracker.FlowChange
	// allFlows asks to look at every connection: those that matter are not known.
	allFlows bool
}

// plan takes in what changed and computes the batch for it: against what was committed
// last, or against what the kernel says it holds.
func (l *Loop) plan(ctx context.Context) (p plan, err error) {
	if l.known {
		if p = l.planChanges(); !p.batch.Remakes() {
			return p, nil
		}
		l.known = false // a table takes more to make anew than what has changed of it
	}
	have, generation, err := l.read(ctx)
	if err == nil {
		err = l.goOnFrom(have)
	}
	if err != nil {
		return p, err
	}
	p = plan{batch: l.ruleset.Changes(), full: true, allFlows: true}
	if p.batch.Remakes() && l.entriesRefused == nil { // with the affinity entries that the table has
		if err := readEntries(ctx, l.kernel, have); err != nil {
			return p, err
		}
		p.batch = l.ruleset.Changes()
	}
	p.flows = append(l.ruleset.Vanished(have), l.ruleset.FlowChanges()...)
	p.batch.Generation = generation
	if l.options.Foreign != nil {
		err = l.addForeign(ctx, &p, have)
	}
	return p, err
}

// planChanges is plan against what was committed last.
func (l *Loop) planChanges() (p plan) {
	moved := l.apply()
	l.ruleset.Advance(l.ruleset.Room())
	p.batch = l.ruleset.Changes()
	if p.batch.Makes() { // a table that another program deleted: it must not have committed since
		p.batch.Generation = l.drift.seen
	}
	p.flows, p.allFlows = l.ruleset.FlowChanges(), moved || l.drift.reason != "" && !l.behind
	return p
}

// goOnFrom makes the ruleset's next changes lead from what the kernel has to what the source wants. At a start it
// returns a *SafetyError if the source lacks nearly all that the kernel has.
func (l *Loop) goOnFrom(have nft.Tables) error {
	if !l.synced {
		l.ruleset.Adopt(have)
	}
	l.apply()
	if !l.synced {
		if l.waiting.Node == nil { // what it had when the tables were written is still the best guess
			l.nodePorts.node = l.nodePorts.setting.Keep(l.nodePorts.node, have)
			l.nodePorts.update(l.ruleset)
		}
		if err := l.check.look(have, l.ruleset.Want(), time.Now()); err != nil {
			return err
		}
	}
	l.ruleset.Found(have)
	most := l.ruleset.Room()
	if l.options.Foreign != nil { // what others have done until now is ours from this batch on
		most = math.MaxInt
	}
	l.ruleset.Advance(most)
	return nil
}

// addForeign adds to a plan what is to happen to tables of others. If that fails, our own part of the batch does not
// wait for it.
func (l *Loop) addForeign(ctx context.Context, p *plan, have nft.Tables) error {
	messages, at, err := l.options.Foreign(ctx, l.ruleset.Want())
	switch _, unsafe := errors.AsType[*SafetyError](err); {
	case unsafe:
		return err
	case err != nil:
		l.leaveForeign(err)
	case !l.drift.unchanged(ctx, p.batch.Generation, at):
		return fmt.Errorf("other programs commit to nf_tables all the time: %w", unix.ERESTART)
	default:
		p.batch.Foreign, p.batch.Generation = messages, at
		l.addKnownClients(ctx, p, have)
	}
	return nil
}

// addKnownClients adds affinity entries for the clients of kube-proxy to a plan, unless the kernel has refused a batch
// with them.
func (l *Loop) addKnownClients(ctx context.Context, p *plan, have nft.Tables) {
	if l.options.KnownClients != nil && l.entriesRefused == nil {
		ops, used := l.ruleset.EntriesOfClients(l.options.KnownClients(ctx), have)
		p.batch.Ops, p.knownClients = append(p.batch.Ops, ops...), used
	}
}

// leaveForeign gives up what was to happen to tables of others: it must not keep our own
// batches out.
func (l *Loop) leaveForeign(err error) {
	l.options.Foreign = nil
	l.options.Log.Warn("the first commit leaves kube-proxy's tables in place", zap.Error(err))
}

// apply moves what the source has into the ruleset. It reports whether addresses have
// moved in or out of our care as a whole: Service CIDRs, or the addresses of node ports.
func (l *Loop) apply() (moved bool) {
	delta := l.source.Take()
	l.worked, l.inKernel = l.options.CPUTime(), 0
	if !delta.Due.IsZero() {
		l.due.Reset(time.Until(delta.Due))
	}
	l.skips.add(&delta)
	l.ruleset.Apply(delta)
	if reserved := l.reserved.Swap(nil); reserved != nil {
		l.ruleset.Reserve(*reserved)
	}
	local := l.local.Swap(nil)
	if delta.AddressesChanged {
		l.nodePorts.node = delta.NodeAddresses
	}
	if local != nil {
		l.nodePorts.local = *local
	}
	if delta.AddressesChanged || local != nil {
		moved = l.nodePorts.update(l.ruleset)
	}
	if l.waiting.Empty() {
		l.waiting = delta
	} else {
		l.waiting.Merge(delta)
	}
	return moved || delta.CIDRsChanged
}
