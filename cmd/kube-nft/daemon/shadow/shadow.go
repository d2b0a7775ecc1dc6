// Package shadow compares what kube-proxy has in the kernel with what kube-nft would have there (--mode=shadow). A
// Comparer takes the kernel's place for the sync loop. Set its fields, start Run, and call Committed after each sync of
// the loop:
//
//	c := shadow.New(minSyncPeriod)
//	c.Log, c.Ruleset, c.Notify, ... = log, ruleset, queue.Notify, ...
//	loop := sync.New(tracker, ruleset, c, options)
//	go c.Run(ctx)
//	loop.Run(ctx)
package shadow

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/legacy"
	"github.com/kube-nft/kube-nft/nft/migrate"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/metrics"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// How often the shadow mode compares. After a comparison it pauses for restRatio times the CPU time of the comparison,
// so that it uses a twentieth of a CPU at most; while it waits whether a difference lasts, for passingRatio times, so
// that it uses a tenth.
const (
	interval     = time.Second
	restRatio    = 19
	passingRatio = 9
	review       = time.Minute // also if neither side has changed: the node's addresses may have
)

// A difference counts when it has lasted for grace and syncs times kube-proxy's minSyncPeriod, of which
// proxySyncPeriod is the default: kube-proxy puts a change off for that long, and then needs a moment.
const (
	grace           = 2 * time.Second
	syncs           = 3
	proxySyncPeriod = time.Second
)

// The limits of what is reported: once in reportInterval if it changes, else once in repeat; shownDifferences in
// the answer to commands.
const (
	reportInterval   = time.Minute
	repeat           = time.Hour
	shownDifferences = 20
)

// A Comparer compares what kube-proxy has in the kernel with what kube-nft would have. It takes the kernel's place for
// the sync loop: it has no tables, and takes every batch. One goroutine reads kube-proxy's rules, the loop's compares.
type Comparer struct {
	Log         *zap.Logger
	Ruleset     *services.Ruleset
	Notify      func()                    // wakes the loop
	Warn        func(reason, text string) // records an event about this node
	MissingNode func() string             // the name of this node if there is no such Node object

	reader   legacy.Reader
	problems quota.Once

	// readings brings what was read to the loop's goroutine. compared brings back how long its thread has worked to
	// compare.
	readings chan *legacy.Inventory
	compared chan time.Duration

	// Of the loop's goroutine.
	lasting  migrate.Lasting
	whole    time.Time                 // when all was compared
	changed  bool                      // what is wanted has changed since then
	touched  map[tracker.Frontend]bool // what is wanted at these has changed since the last comparison
	reported time.Time                 // when the log last named differences
	text     string                    // of that line

	mu    sync.Mutex
	state peer.Shadow
}

// New returns a Comparer without the fields that its user sets. minSyncPeriod is kube-proxy's.
func New(minSyncPeriod time.Duration) *Comparer {
	return &Comparer{
		readings: make(chan *legacy.Inventory, 1), compared: make(chan time.Duration, 1),
		lasting:  migrate.Lasting{After: grace + syncs*max(proxySyncPeriod, minSyncPeriod)},
		touched:  make(map[tracker.Frontend]bool),
		problems: quota.Once{Interval: repeat},
		state:    peer.Shadow{Counts: make(map[migrate.Kind]int), Problem: "there was no comparison yet"},
	}
}

// ReadUnless returns no tables.
func (s *Comparer) ReadUnless(context.Context, func(before, after uint32) bool) (nft.Tables, uint32, error) {
	return nft.Tables{}, 0, nil
}

// Elements returns no elements.
func (s *Comparer) Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error) {
	return nil, nil
}

// Commit notes what a batch is about.
func (s *Comparer) Commit(context.Context, nft.Batch) error {
	s.changed = true
	for f := range s.Ruleset.TouchedFrontends() {
		s.touched[f] = true
	}
	return nil
}

// Generation returns the generation of no kernel.
func (s *Comparer) Generation(context.Context) (uint32, error) { return 0, nil }

// Audit finds nothing: what the loop has committed is there.
func (s *Comparer) Audit(context.Context, nft.Tables) (difference string, err error) { return "", nil }

// Run reads kube-proxy's rules and has them compared until ctx ends.
func (s *Comparer) Run(ctx context.Context) error {
	runtime.LockOSThread() // its CPU time counts: on a busy node a comparison takes longer, and costs the same
	defer runtime.UnlockOSThread()
	for rest := time.Duration(0); retry.Pause(ctx, rest); {
		began, working := time.Now(), proxysync.ThreadTime()
		inv, err := s.reader.Read(ctx)
		for i := range inv.Parts {
			if needs := inv.Parts[i].Needs; needs != "" && err == nil {
				err = fmt.Errorf("it needs %s", needs)
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			s.fail("cannot read kube-proxy's rules: " + err.Error())
			rest = max(interval, restRatio*(proxysync.ThreadTime()-working))
			continue
		}
		worked := proxysync.ThreadTime() - working
		s.readings <- &inv
		s.Notify()
		select {
		case compared := <-s.compared:
			worked += compared
		case <-ctx.Done():
			return nil
		}
		s.mu.Lock()
		s.state.Seconds = time.Since(began).Seconds()
		passing := s.state.Passing > 0
		s.mu.Unlock()
		if rest = max(interval, restRatio*worked); passing {
			rest = max(interval, passingRatio*worked)
		}
	}
	return nil
}

// fail records why there is no comparison now.
func (s *Comparer) fail(problem string) {
	s.mu.Lock()
	s.state.Problem = problem
	s.mu.Unlock()
	if s.problems.Report(problem) {
		s.Log.Warn("kube-nft cannot compare its rules with kube-proxy's", zap.String("reason", problem))
	}
}

// Committed compares, if there is a reading, what was read with what is wanted now.
func (s *Comparer) Committed() {
	select {
	case inv := <-s.readings:
		working := proxysync.ThreadTime()
		s.compare(inv)
		s.compared <- proxysync.ThreadTime() - working
	default:
	}
}

func (s *Comparer) compare(inv *legacy.Inventory) {
	now := time.Now()
	if inv.Same && !s.changed && now.Sub(s.whole) < review && s.still(now) {
		return
	}
	c, err := migrate.Compare(inv, s.Ruleset.Want(), s.MissingNode())
	switch {
	case err != nil:
		s.fail(err.Error())
		return
	case c.Served == 0 && !c.Empty:
		s.lasting.Look(now, nil, nil)
		s.mu.Lock()
		s.state = peer.Shadow{Compared: s.state.Compared, Counts: make(map[migrate.Kind]int)}
		s.mu.Unlock()
		s.fail("kube-proxy serves no frontend on this node")
		return
	}
	lasting, passing := s.lasting.Look(now, c.Differences, func(f tracker.Frontend) bool { return s.touched[f] })
	clear(s.touched)
	s.whole, s.changed = now, false
	state := peer.Shadow{Compared: now.UTC().Truncate(time.Millisecond), Frontends: c.Served, Passing: passing,
		Differences: len(lasting), Counts: make(map[migrate.Kind]int), First: lasting[:min(len(lasting), shownDifferences)]}
	for _, d := range lasting {
		state.Counts[d.Kind]++
	}
	s.mu.Lock()
	state.Seconds = s.state.Seconds
	s.state = state
	s.mu.Unlock()
	if s.problems.Over() {
		s.Log.Info("kube-nft compares its rules with kube-proxy's again", zap.Int("frontends", c.Served))
	}
	s.report(now, lasting)
}

// still records that the last comparison holds now, unless it left something open.
func (s *Comparer) still(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Problem != "" || s.state.Passing > 0 {
		return false
	}
	s.state.Compared = now.UTC().Truncate(time.Millisecond)
	return true
}

// report writes a line and an event about differences that last.
func (s *Comparer) report(now time.Time, lasting []migrate.Difference) {
	if len(lasting) == 0 {
		if s.text != "" {
			s.text = ""
			s.Log.Info("kube-proxy's rules and kube-nft's do not differ any more")
		}
		return
	}
	text := migrate.Named(lasting)
	if since := now.Sub(s.reported); since < reportInterval || text == s.text && since < repeat {
		return
	}
	s.reported, s.text = now, text
	const what = "kube-proxy's rules and kube-nft's differ"
	s.Log.Warn(what, zap.Int("number", len(lasting)), zap.String("at", text))
	s.Warn("ShadowDifferences", what+" at "+text)
}

// Status returns what the last comparison found; nil without the shadow mode.
func (s *Comparer) Status() *peer.Shadow {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.state
	return &state
}

// Metrics returns what metrics show of the shadow mode.
func (s *Comparer) Metrics() metrics.Shadow {
	state := s.Status()
	m := metrics.Shadow{Compared: state.Compared, Frontends: state.Frontends, Seconds: state.Seconds,
		Differences: make(map[string]int)}
	for _, kind := range migrate.Kinds {
		m.Differences[string(kind)] = state.Counts[kind]
	}
	return m
}

// Families are the families of the shadow mode. It does not probe the kernel, for that needs tables.
func Families() []nft.Family {
	if _, err := os.Stat("/proc/net/if_inet6"); err != nil {
		return []nft.Family{nft.IP}
	}
	return nft.Families[:]
}
