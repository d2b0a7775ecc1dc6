package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	proxysync "github.com/kube-nft/kube-nft/sync"
)

// takeoverRetry is the pause after a step that failed. Nobody is without service meanwhile.
const takeoverRetry = 30 * time.Second

// A takeover is what the daemon does of migrate apply when it starts.
type takeover struct {
	kernel  *nft.Kernel // the sync loop's; for its goroutine
	ruleset *nft.Ruleset
	log     *zap.Logger
	group   *errgroup.Group

	current  atomic.Value // a migrate.State
	verified bool         // owned by the sync loop's goroutine
}

// states are those of a takeover as metrics spell them.
func (t *takeover) states() (list []string) {
	for _, s := range migrate.States {
		list = append(list, string(s))
	}
	return list
}

// now returns the current state, for metrics.
func (t *takeover) now() string { return string(t.current.Load().(migrate.State)) }

func (t *takeover) state(s migrate.State) { t.current.Store(s) }

// takeOver prepares the settings of the sync loop for a takeover; false if there is nothing
// to sync any more.
func (d *daemon) takeOver(ctx context.Context, ruleset *nft.Ruleset, settings *proxysync.Options) (bool, error) {
	if !d.options.Takeover {
		return true, nil
	}
	t := takeover{kernel: d.kernel, ruleset: ruleset, log: d.log, group: d.group}
	t.state(migrate.Taking)
	d.monitor.metrics.Takeover(t.states(), t.now)
	if nothingToTake(ctx) {
		t.state(migrate.Taken)
		return true, nil
	}
	return t.begin(ctx, settings)
}

// nothingToTake reports whether it is certain that no kube-proxy runs here or has left
// anything, so that a start need not read our own tables to verify them.
func nothingToTake(ctx context.Context) bool {
	alive, err := steady(ctx, legacy.Processes)(procRoot)
	if err != nil || len(alive) > 0 {
		return false
	}
	found, err := legacy.Node{}.Take(ctx)
	return err == nil && found.Clean()
}

// begin prepares a loop's settings for the takeover. It waits for a live kube-proxy to end,
// writing nothing, unless tables of ours are in force already: those must not grow old, and
// kube-proxy's rules lose to them. False if ctx ended.
func (t *takeover) begin(ctx context.Context, settings *proxysync.Options) (bool, error) {
	ours, _, err := t.kernel.Read(ctx)
	if err != nil {
		return false, err
	}
	if len(ours) == 0 {
		if err := t.waitForProxy(ctx); err != nil {
			return false, ignoreEnd(ctx, err)
		}
	}
	alive, err := steady(ctx, legacy.Processes)(procRoot)
	if err != nil {
		return false, fmt.Errorf("look for a live kube-proxy: %w", err)
	}
	if len(alive) == 0 {
		settings.Foreign = besideTakeover
	}
	next := settings.Committed
	settings.Committed = func(r proxysync.Report) {
		if next != nil {
			next(r)
		}
		t.committed(ctx)
	}
	return true, nil
}

// ignoreEnd returns nil if the reason for an error is that ctx ended.
func ignoreEnd(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// waitForProxy waits until no kube-proxy is alive.
func (t *takeover) waitForProxy(ctx context.Context) error {
	err := migrate.WaitForEnd(ctx, procRoot, steady(ctx, legacy.Processes), func(alive []legacy.Process) {
		t.state(migrate.Waiting)
		t.log.Warn("kube-proxy runs on this node and would write its rules again; waiting for it to end before anything is taken over. "+
			"Stop it, or start kube-nft with --takeover=never", zap.String("kube_proxy", migrate.Describe(alive)))
	})
	t.state(migrate.Taking)
	return err
}

// How long a listener without a process that can be seen is looked at again, and how often. A
// kube-nft that was killed has no files to be seen while the kernel still ends it.
const (
	hiddenGrace = time.Second
	hiddenRetry = 50 * time.Millisecond
)

// steady is list, but believes in a process that is known by its port alone only if it stays.
func steady(ctx context.Context, list func(root string) ([]legacy.Process, error)) func(root string) ([]legacy.Process, error) {
	return func(root string) (found []legacy.Process, err error) {
		for began := time.Now(); ; {
			found, err = list(root)
			hidden := len(found) == 1 && found[0].PID == 0
			if err != nil || !hidden || time.Since(began) >= hiddenGrace || !pause(ctx, hiddenRetry) {
				return found, err
			}
		}
	}
}

// committed is called after each sync. After the first of which the outcome holds, the rest
// happens beside the loop.
func (t *takeover) committed(ctx context.Context) {
	if t.verified {
		return
	}
	looked, err := migrate.Verify(ctx, t.kernel, t.ruleset.Want())
	if err != nil {
		t.state(migrate.Stuck)
		t.log.Error("takeover: verify: kube-proxy's rules stay until it succeeds after a sync", zap.Error(err))
		return
	}
	t.verified = true
	t.log.Info("takeover", zap.String("step", "verify"), zap.Int("elements", looked))
	t.group.Go(func() error { return t.clean(ctx) })
}

// clean removes kube-proxy's state, again and again until nothing of it is left.
func (t *takeover) clean(ctx context.Context) error {
	for {
		err := t.cleanOnce(ctx)
		var needs *migrate.NeedsError
		switch {
		case err == nil:
			t.state(migrate.Taken)
			return nil
		case ctx.Err() != nil:
			return nil
		case errors.As(err, &needs):
			t.state(migrate.Blind)
			t.log.Warn("takeover: if kube-proxy left rules there, run kube-nft migrate apply on this node with the privilege", zap.Error(err))
			return nil
		}
		t.state(migrate.Stuck)
		t.log.Error("takeover", zap.Error(err), zap.Duration("retry_in", takeoverRetry))
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(takeoverRetry):
		}
	}
}

// cleanOnce waits for the end of a kube-proxy and removes what it left.
func (t *takeover) cleanOnce(ctx context.Context) error {
	if err := t.waitForProxy(ctx); err != nil {
		return err
	}
	steps := migrate.Takeover{Journal: t.journal}
	return steps.Clean(ctx)
}

// journal logs what is done.
func (t *takeover) journal(e migrate.Entry) {
	if e.Event == migrate.Done {
		t.log.Info("takeover", zap.String("step", e.Step), zap.String("done", e.Text))
	}
}
