package sync

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// A forgetful kernel holds a Service with affinity and a client of an endpoint that has left,
// and does not let go of it.
type forgetful struct {
	table
	tables  nft.Tables
	refuses bool // batches with entries of affinity maps
	fails   bool // to read the maps between a commit and the next read of the tables
	readAt  int  // how many batches had come then
}

func (k *forgetful) Read(ctx context.Context) (nft.Tables, uint32, error) {
	_, generation, err := k.table.Read(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.readAt = len(k.batches)
	return k.tables, generation, err
}

func (k *forgetful) Elements(_ context.Context, _ nft.Family, _ *nft.Set) (map[string]nft.Element, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.fails && len(k.batches) > k.readAt {
		return nil, unix.ENOMEM
	}
	gone := pod(9).As4()
	return map[string]nft.Element{"\xc0\x00\x02\x01": {Data: string(gone[:])}}, nil
}

func (k *forgetful) Commit(ctx context.Context, batch nft.Batch) error {
	k.mu.Lock()
	for _, op := range batch.Ops {
		if k.refuses && op.Set != nil && op.Set.Dynamic {
			k.mu.Unlock()
			return &nft.OpError{Family: nft.IP, Set: op.Set.Name, Err: unix.EINVAL}
		}
	}
	k.mu.Unlock()
	if batch.Check {
		return nil
	}
	return k.table.Commit(ctx, batch)
}

// set changes how it behaves.
func (k *forgetful) set(refuses, fails bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuses, k.fails = refuses, fails
}

// runForgetful starts a loop whose wanted state the kernel holds already, but for the client.
func runForgetful(t *testing.T, k *forgetful, options Options) (*Loop, *feed, *observer.ObservedLogs) {
	t.Helper()
	sticky := portWith("sticky", 1, 1)
	sticky.Affinity = time.Hour
	f, held := new(feed), new(feed)
	f.set(sticky)
	held.set(sticky)
	config := nft.Config{Families: []nft.Family{nft.IP}, AffinitySize: 16}
	before := nft.NewRuleset(config)
	before.Apply(held.Take())
	k.tables = before.Want()
	core, logs := observer.New(zap.InfoLevel)
	options.Log = zap.New(core)
	loop := New(f, nft.NewRuleset(config), k, options)
	runLoop(t, loop)
	synctest.Wait()
	return loop, f, logs
}

const staysText = "session affinity: entries of removed endpoints stay until a later sync"

// TestRefusedAffinityEntriesKeepNobodyOut has a kernel that refuses what is to be done to the
// entries of affinity maps: everything else is programmed.
func TestRefusedAffinityEntriesKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &forgetful{refuses: true}
		loop, f, logs := runForgetful(t, k, Options{RetryMin: time.Second, RetryMax: time.Minute})
		f.set(portWith("other", 2, 2))
		loop.Wake()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if held := loop.ruleset.Port(portWith("other", 2, 2).ID); held == nil || loop.attempts != 0 || len(loop.poison.refused) != 0 {
			t.Errorf("other Service %v, %d failed attempts, left out %v", held, loop.attempts, loop.poison.refused)
		}
		if n := logs.FilterMessage(staysText).Len(); n != 1 {
			t.Errorf("logged %d times, want once: %v", n, logs.All())
		}
		k.set(false, false)
		_, before := k.seen()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, after := k.seen(); after == before || loop.debt.attempts != 0 {
			t.Errorf("%d batches after %d, %d attempts: the entries stay", after, before, loop.debt.attempts)
		}
	})
}

// TestFailingSweepBacksOff fails to read the maps after each commit.
func TestFailingSweepBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &forgetful{fails: true}
		loop, _, logs := runForgetful(t, k, Options{RetryMin: time.Second, RetryMax: time.Minute})
		first, _ := k.seen()
		time.Sleep(7500 * time.Millisecond) // pauses of 1, 2 and 4 seconds
		synctest.Wait()
		if reads, _ := k.seen(); reads > first+3 || loop.debt.attempts == 0 {
			t.Errorf("%d reads after %d, %d attempts", reads, first, loop.debt.attempts)
		}
		if n := logs.FilterMessage(staysText).Len(); n != 1 {
			t.Errorf("logged %d times, want once: %v", n, logs.All())
		}
	})
}

// TestTableIsNotMadeAnewFromAPart changes the definition of a map: only a read can tell what
// else a new table has to hold.
func TestTableIsNotMadeAnewFromAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(forgetful)
		loop, f, _ := runForgetful(t, k, Options{})
		for _, held := range loop.ruleset.Want()[nft.IP].Sets {
			if held.Set.Dynamic {
				held.Set.Size *= 2
			}
		}
		sticky := portWith("sticky", 1, 2)
		sticky.Affinity = time.Hour
		f.set(sticky)
		before, _ := k.seen()
		loop.Wake()
		synctest.Wait()
		if reads, _ := k.seen(); reads != before+1 {
			t.Errorf("%d reads after %d, want one more", reads, before)
		}
		for _, batch := range k.batches {
			if batch.Remakes() {
				t.Errorf("a batch of %d operations makes the table anew", len(batch.Ops))
			}
		}
	})
}
