package sync

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// A table is the kernel's part in these tests: it remembers batches and answers them as it
// is told.
type table struct {
	mu      sync.Mutex
	batches []nft.Batch
	times   []time.Time
	answers []error
	always  error // the answer to everything, if set
	reads   int
}

func (k *table) Read(context.Context) (nft.Tables, uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	return nft.Tables{}, 7, nil
}

func (k *table) Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error) {
	return nil, nil
}

func (k *table) Commit(_ context.Context, batch nft.Batch) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.batches, k.times = append(k.batches, batch), append(k.times, time.Now())
	if len(k.answers) == 0 || k.always != nil {
		return k.always
	}
	answer := k.answers[0]
	k.answers = k.answers[1:]
	return answer
}

// seen returns how often the table was read, and how many batches have come.
func (k *table) seen() (reads, batches int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.reads, len(k.batches)
}

// answer sets the answer to everything from now on.
func (k *table) answer(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.always = err
}

// A feed hands out deltas.
type feed struct {
	mu     sync.Mutex
	deltas []tracker.Delta
}

func (f *feed) Take() (merged tracker.Delta) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, delta := range f.deltas {
		merged.Merge(delta)
	}
	f.deltas = nil
	return merged
}

func (f *feed) NodeAddresses() []netip.Addr { return nil }

func (f *feed) add(service string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := tracker.PortID{Namespace: "ns", Service: service, Protocol: tracker.TCP, Family: tracker.IPv4}
	port := &tracker.ServicePort{ID: id, Port: 80, ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(len(service))})}
	f.deltas = append(f.deltas, tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{id: port}, Oldest: time.Now()})
}

// runLoop runs a loop until the test ends.
func runLoop(t testing.TB, loop *Loop) {
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

// start runs a loop until the test ends and waits for its first commit.
func start(t *testing.T, k *table, options Options) (*Loop, *feed, *[]Report) {
	t.Helper()
	var reports []Report
	options.Log = zap.NewNop()
	options.Committed = func(r Report) { reports = append(reports, r) }
	f := new(feed)
	loop := New(f, nft.NewRuleset(nft.Config{Families: []nft.Family{nft.IP}}), k, options)
	runLoop(t, loop)
	synctest.Wait()
	return loop, f, &reports
}

func TestBurstIsOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		loop, f, _ := start(t, k, Options{MinInterval: time.Second})
		for _, name := range []string{"a", "bb", "ccc"} {
			f.add(name)
			loop.Wake()
			time.Sleep(100 * time.Millisecond) // of the bubble's clock
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(k.batches) != 2 {
			t.Fatalf("%d batches, want the first and one for the burst", len(k.batches))
		}
		if gap := k.times[1].Sub(k.times[0]); gap != time.Second {
			t.Errorf("second batch after %v, want the minimum interval", gap)
		}
	})
}

func TestNothingNewSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		loop, _, reports := start(t, k, Options{})
		loop.Wake()
		synctest.Wait()
		if len(k.batches) != 1 || len(*reports) != 2 || (*reports)[1].Operations != 0 {
			t.Errorf("%d batches, reports %+v", len(k.batches), *reports)
		}
	})
}

func TestRefusedBatchIsRetriedFromTheKernelsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &table{answers: []error{unix.ENOMEM, unix.ENOMEM, unix.ENOMEM}}
		start(t, k, Options{RetryMin: time.Second, RetryMax: 2 * time.Second})
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(k.batches) != 4 || k.reads != 4 {
			t.Fatalf("%d batches after %d reads, want 4 of each", len(k.batches), k.reads)
		}
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 2 * time.Second} {
			if gap := k.times[i+1].Sub(k.times[i]); gap != want {
				t.Errorf("retry %d after %v, want %v", i+1, gap, want)
			}
		}
	})
}

func TestForeignCommitAndUnknownOutcomeAreReadBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &table{answers: []error{unix.ERESTART, nft.ErrUnknownOutcome}}
		began := time.Now()
		start(t, k, Options{})
		if len(k.batches) != 3 || k.reads != 3 || time.Since(began) != 0 {
			t.Errorf("%d batches, %d reads after %v; want 3 at once", len(k.batches), k.reads, time.Since(began))
		}
	})
}

func TestOldestSurvivesFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		loop, f, reports := start(t, k, Options{RetryMin: time.Second})
		k.answers = []error{errors.New("no")}
		observed := time.Now()
		f.add("a")
		loop.Wake()
		synctest.Wait()
		f.add("bb")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		last := (*reports)[len(*reports)-1]
		if !last.Delta.Oldest.Equal(observed) {
			t.Errorf("oldest change observed at %v, want %v", last.Delta.Oldest, observed)
		}
	})
}

func TestDistrustReadsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		loop, _, _ := start(t, k, Options{})
		loop.Distrust("somebody flushed the ruleset")
		synctest.Wait()
		if k.reads != 2 || len(k.batches) != 2 {
			t.Errorf("%d reads, %d batches; want the table read again and made anew", k.reads, len(k.batches))
		}
	})
}

// TestAddressesWhileTheLoopTakesThem sets addresses all the time: neither side may wait for
// the other, and the latest ones count.
func TestAddressesWhileTheLoopTakesThem(t *testing.T) {
	l := New(new(feed), nft.NewRuleset(nft.Config{Families: []nft.Family{nft.IP}}), new(table), Options{Log: zap.NewNop()})
	ctx, stop := context.WithCancel(t.Context())
	latest := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	l.options.Committed = func(Report) {
		if len(l.local) > 0 && l.local[0] == latest[0] {
			stop()
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	for range 200000 {
		l.SetAddresses(nil)
	}
	l.SetAddresses(latest)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
