package daemon

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
)

// takeOver removes what kube-proxy programmed. It waits until the sync loop may commit, prepares
// the loop's settings, and removes the rest after the first sync that verifies. While it waits, source
// feeds health checks. It returns false if ctx ended first.
func (d *daemon) takeOver(ctx context.Context, source *interim, ruleset *services.Ruleset, settings *proxysync.Options) (bool, error) {
	var state atomic.Value // a migrate.State
	t := migrate.Takeover{
		Node:    legacy.Node{Proc: d.config.HostProc},
		Kernel:  d.kernel,
		Missing: d.missingNode,
		Force:   d.config.ForceTakeover,
		Losing: func(c *migrate.Comparison) {
			d.log.Warn("takeover: frontends of kube-proxy's that are not served any more", zap.String("frontends", c.Summary()))
		},
		Journal: func(e migrate.Entry) {
			if e.Event == migrate.Done {
				d.log.Info("takeover", zap.String("step", e.Step), zap.String("done", e.Text))
			}
		},
		Alive: func(processes string) {
			const text = "kube-proxy runs on this node and would write its rules again; waiting for it to end before anything is taken over. " +
				"Stop it, or start kube-nft with --takeover=never"
			d.log.Warn(text, zap.String("kube_proxy", processes))
			d.monitor.events.node(warning, "WaitingForKubeProxy", "TakeOver", text+": "+processes)
			source.begin(ctx)
		},
		State: func(s migrate.State, err error, retry time.Duration) {
			state.Store(s)
			if s != migrate.Waiting && s != migrate.Taking {
				d.monitor.await(false) // kube-proxy has ended, or it is not known when it will
			}
			if s != migrate.Refused {
				d.monitor.holds.report(heldTakeover, nil)
			}
			switch {
			case s == migrate.Refused:
				d.monitor.holds.report(heldTakeover, err)
			case s == migrate.Blind:
				d.log.Warn("takeover: if kube-proxy left rules there, run kube-nft migrate apply on this node with the privilege", zap.Error(err))
			case retry > 0:
				d.log.Error("takeover", zap.Error(err), zap.Duration("retry_in", retry))
			case err != nil:
				d.log.Error("takeover: verify: kube-proxy's rules stay until it succeeds after a sync", zap.Error(err))
			}
		},
	}
	state.Store(migrate.Taking)
	d.taking = func() bool { return state.Load() == migrate.Taking }
	d.monitor.metrics.Takeover(takeoverStates(), func() string { return string(state.Load().(migrate.State)) })
	needed, running, err := t.Begin(ctx)
	d.monitor.await(running) // a kube-proxy that has the ports until it ends
	switch {
	case ctx.Err() != nil:
		return false, nil
	case err != nil || !needed:
		return err == nil, err
	}
	settings.Foreign = func(ctx context.Context, want nft.Tables) ([]nft.ForeignMessage, uint32, error) {
		messages, generation, held, err := t.Foreign(ctx, want)
		if held {
			err = &proxysync.HeldError{Err: err}
		}
		return messages, generation, err
	}
	settings.Seeds = func(ctx context.Context) []services.Seed {
		seeds, err := t.Seeds(ctx)
		if err != nil {
			d.log.Warn("takeover: some clients choose an endpoint anew, once", zap.Error(err))
		}
		return seeds
	}
	next := settings.Committed
	settings.Committed = func(r proxysync.Report) {
		next(r)
		if r.Seeds > 0 {
			d.log.Info("takeover", zap.String("step", "session affinity"), zap.Int("clients_that_keep_their_endpoint", r.Seeds))
		}
		if t.Synced(ctx, ruleset.Want()) {
			d.group.Go(func() error { t.Finish(ctx); return nil })
		}
	}
	return true, nil
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
