package sync

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
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
			return &kernel.OpError{Family: nft.IP, Set: op.Set.Name, Err: unix.EINVAL}
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
func runForgetful(t *testing.T, k *forgetful, options Options) *bubble {
	t.Helper()
	loyal := portWith("loyal", 1, 1)
	loyal.Affinity = time.Hour
	b, held := newBubble(k, options, loyal), newBubble(k, options, loyal)
	held.loop.apply()
	k.tables = held.loop.ruleset.Want()
	b.run(t)
	return b
}

const staysText = "session affinity: entries of removed endpoints stay until a later sync"

// TestRefusedAffinityEntriesKeepNobodyOut has a kernel that refuses what is to be done to the
// entries of affinity maps: everything else is programmed.
func TestRefusedAffinityEntriesKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &forgetful{refuses: true}
		b := runForgetful(t, k, Options{RetryMin: time.Second, RetryMax: time.Minute})
		loop := b.loop
		b.change(portWith("other", 2, 2))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if held := loop.ruleset.Port(portWith("other", 2, 2).ID); held == nil || loop.retry.failures != 0 || len(loop.refusals.leftOut) != 0 {
			t.Errorf("other Service %v, %d failed attempts, left out %v", held, loop.retry.failures, loop.refusals.leftOut)
		}
		if n := b.logged(staysText); n != 1 {
			t.Errorf("logged %d times, want once: %v", n, b.logs.All())
		}
		k.set(false, false)
		_, before := k.seen()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if _, after := k.seen(); after == before || loop.affinity.retry.failures != 0 {
			t.Errorf("%d batches after %d, %d attempts: the entries stay", after, before, loop.affinity.retry.failures)
		}
	})
}

// TestFailingSettlementBacksOff fails to read the maps after each commit.
func TestFailingSettlementBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &forgetful{fails: true}
		b := runForgetful(t, k, Options{RetryMin: time.Second, RetryMax: time.Minute})
		first, _ := k.seen()
		time.Sleep(7500 * time.Millisecond) // pauses of 1, 2 and 4 seconds
		synctest.Wait()
		if reads, _ := k.seen(); reads > first+3 || b.loop.affinity.retry.failures == 0 {
			t.Errorf("%d reads after %d, %d attempts", reads, first, b.loop.affinity.retry.failures)
		}
		if n := b.logged(staysText); n != 1 {
			t.Errorf("logged %d times, want once: %v", n, b.logs.All())
		}
	})
}

// TestTableIsNotMadeAnewFromAPart changes the definition of a map: only a read can tell what
// else a new table has to hold.
func TestTableIsNotMadeAnewFromAPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(forgetful)
		b := runForgetful(t, k, Options{})
		for _, held := range b.loop.ruleset.Want()[nft.IP].Sets {
			if held.Set.Dynamic {
				held.Set.Size *= 2
			}
		}
		loyal := portWith("loyal", 1, 2)
		loyal.Affinity = time.Hour
		before, _ := k.seen()
		b.change(loyal)
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

// TestSeedingLeavesKnownClientsAlone fills an affinity map that exists already, as it does
// after a batch whose answer was lost.
func TestSeedingLeavesKnownClientsAlone(t *testing.T) {
	task := seedingTask(t)
	clients := func(names ...string) *nft.Elements {
		held := &nft.Elements{Set: task.Map, Map: make(map[string]nft.Element)}
		for _, name := range names {
			held.Map[name] = nft.Element{}
		}
		return held
	}
	for _, tt := range []struct {
		name string
		into *nft.Elements
		want []string
	}{
		{"the map does not exist", nil, []string{"a", "b"}},
		{"it exists and is empty", clients(), []string{"a", "b"}},
		{"packets have put a client there", clients("a"), []string{"b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := nft.NewTable(nft.IP)
			table.Sets[task.From] = clients("a", "b")
			if tt.into != nil {
				table.Sets[task.Map.Name] = tt.into
			}
			if got := slices.Sorted(maps.Keys(entriesFor(&task, table))); !slices.Equal(got, tt.want) {
				t.Errorf("entries of %q are copied, want those of %q", got, tt.want)
			}
			if n := len(table.Sets[task.From].Map); n != 2 {
				t.Errorf("%d entries are left in the table that was read, want 2", n)
			}
		})
	}
}

// seedingTask returns the task of a Service port with affinity whose policy becomes Local.
func seedingTask(t *testing.T) services.AffinityTask {
	t.Helper()
	here := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080")}
	port := tracker.ServicePort{
		ID:   tracker.PortID{Namespace: "ns", Service: "a", Protocol: tracker.TCP, Family: tracker.IPv4},
		Port: 80, ClusterIP: netip.MustParseAddr("10.96.0.1"), NodePort: 30080, Affinity: time.Hour,
		Cluster: here, Serving: here, HasEndpoints: true,
	}
	local := port
	local.ExternalLocal, local.Local = true, here
	r := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})
	r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: &port}})
	r.Committed()
	r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: &local}})
	tasks := r.AffinityTasks()
	if len(tasks) != 1 || !tasks[0].Seeds() {
		t.Fatalf("tasks %+v, want one that fills a map from another", tasks)
	}
	return tasks[0]
}
