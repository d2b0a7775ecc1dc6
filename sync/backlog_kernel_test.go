package sync

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A timed kernel measures commits.
type timed struct {
	*kernel.Client
	before func()

	mu sync.Mutex
	measured
}

// measured is what was measured of commits.
type measured struct {
	commits  int
	elements int // the most of one commit
	lookups  int // as elements: rules that look up an affinity map
	longest  time.Duration
	cpu      time.Duration
}

func (k *timed) Commit(ctx context.Context, batch nft.Batch) error {
	k.mu.Lock()
	k.commits++
	k.mu.Unlock()
	k.before()
	began, cpu := time.Now(), ThreadTime()
	err := k.Client.Commit(ctx, batch)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cpu += ThreadTime() - cpu
	k.longest, k.elements = max(k.longest, time.Since(began)), max(k.elements, batch.ElementCount())
	k.lookups = max(k.lookups, lookups(batch))
	return err
}

// take returns what was measured since the last call, for tests whose loop goes on.
func (k *timed) take() (m measured) {
	k.mu.Lock()
	defer k.mu.Unlock()
	m, k.measured = k.measured, measured{}
	return m
}

// TestLargeDifferenceAtStart starts a loop over the tables of an earlier one, after all endpoints of 2,000 Services
// have changed. No commit is large, and a Service that changes meanwhile does not wait for the rest.
func TestLargeDifferenceAtStart(t *testing.T) {
	lab.New(t)
	newLoop := func(k client, source *feed, options Options) (*Loop, *services.Ruleset) {
		ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024})
		options.Log = zap.NewNop()
		return New(source, ruleset, k, options), ruleset
	}
	const count, endpoints = 2000, 50
	source := &feed{deltas: []tracker.Delta{manyServices(count, endpoints)}}
	first, _ := newLoop(lab.Open(t, kernel.Open), source, Options{})
	if err := first.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	others := manyServices(count, endpoints)
	for _, p := range others.Changed {
		for i, at := range p.Cluster {
			addr := at.Addr().As4()
			addr[0] = 11
			p.Cluster[i] = netip.AddrPortFrom(netip.AddrFrom4(addr), at.Port())
		}
	}
	neighbour := portWith("neighbour", 1, 1)
	neighbour.ClusterIP = netip.MustParseAddr("10.96.200.1")
	source, queue := &feed{deltas: []tracker.Delta{others}}, NewQueue()
	k := &timed{Client: lab.Open(t, kernel.Open)}
	var came, served time.Time
	at := 0 // the commit that the neighbour was in
	k.before = func() {
		if k.commits == 1 {
			came = time.Now()
			source.set(neighbour)
			queue.Notify()
		}
	}
	done := make(chan bool, 1)
	var loop *Loop
	loop, ruleset := newLoop(k, source, Options{Queue: queue, MinInterval: time.Second, Committed: func(r Report) {
		if slices.Contains(r.Delta.Changed, neighbour) && served.IsZero() {
			served, at = time.Now(), k.commits
		}
		if !served.IsZero() && !loop.behind {
			select {
			case done <- true:
			default:
			}
		}
	}})
	runLoop(t, loop)
	select {
	case <-done:
	case <-time.After(lab.Patience):
		t.Fatal("the loop does not come to an end")
	}
	t.Logf("%d commits in %v, the longest %v, at most %d elements; the neighbour waited %v", k.commits,
		time.Since(came), k.longest, k.elements, served.Sub(came))
	if k.elements > mostElements || at != 2 {
		t.Errorf("a commit has %d elements, and the neighbour was in commit %d", k.elements, at)
	}
	have, _, err := lab.Open(t, kernel.Open).Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if batch := change.Diff(have, ruleset.Want()); !batch.Empty() {
		t.Errorf("%d operations are left", len(batch.Ops))
	}
}
