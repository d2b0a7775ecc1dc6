package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// A table is the kernel's part in these tests: it keeps batches and answers them as it
// is told.
type table struct {
	mu      sync.Mutex
	batches []nft.Batch
	times   []time.Time
	answers []error
	always  error // the answer to everything, if set
	reads   int
}

func (k *table) ReadUnless(_ context.Context, _ func(before, after uint32) bool) (nft.Tables, uint32, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	return nft.Tables{}, 7, nil
}

func (k *table) Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error) {
	return nil, nil
}

func (k *table) Generation(context.Context) (uint32, error) { return 7, nil }

func (k *table) Audit(context.Context, nft.Tables) (string, error) { return "", nil }

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

func (f *feed) add(service string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := tracker.PortID{Namespace: "ns", Service: service, Protocol: tracker.TCP, Family: tracker.IPv4}
	port := &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: id, Port: 80,
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, 0, byte(len(service))})}, Lists: new(tracker.Lists)}
	f.deltas = append(f.deltas, tracker.Delta{Changed: []*tracker.ServicePort{port},
		Oldest: time.Now()})
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

// A bubble is a loop in the bubble of a test, with what goes in and what comes out.
type bubble struct {
	loop    *Loop
	feed    *feed
	logs    *observer.ObservedLogs
	reports []Report
}

// newBubble returns a loop that has not started, and whose source has these ports.
func newBubble(k client, options Options, ports ...*tracker.ServicePort) *bubble {
	core, logs := observer.New(zap.InfoLevel)
	b := &bubble{feed: new(feed), logs: logs}
	b.feed.set(ports...)
	options.Log = zap.New(core)
	options.Committed = func(r Report) { b.reports = append(b.reports, r) }
	ruleset := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, AffinitySize: bubbleAffinitySize})
	b.loop = New(b.feed, ruleset, k, options)
	return b
}

const bubbleAffinitySize = 1 << 15

// run runs the loop until the test ends and waits for its first sync.
func (b *bubble) run(t *testing.T) {
	runLoop(t, b.loop)
	synctest.Wait()
}

// start is newBubble and run.
func start(t *testing.T, k client, options Options, ports ...*tracker.ServicePort) *bubble {
	b := newBubble(k, options, ports...)
	b.run(t)
	return b
}

// change hands ports to the loop and waits until it has dealt with them.
func (b *bubble) change(ports ...*tracker.ServicePort) {
	b.feed.set(ports...)
	b.loop.options.Queue.Notify()
	synctest.Wait()
}

// pass lets time of the bubble pass, in which timers of the loop run. What the test has looked at
// before, the loop may change then: the notification orders the two for the race detector.
func (b *bubble) pass(d time.Duration) {
	b.change()
	time.Sleep(d)
	synctest.Wait()
}

// logged returns how many lines have that message.
func (b *bubble) logged(message string) int { return b.logs.FilterMessage(message).Len() }

func TestBurstIsOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		b := start(t, k, Options{MinInterval: time.Second})
		for _, name := range []string{"a", "bb", "ccc"} {
			b.feed.add(name)
			b.loop.options.Queue.Notify()
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
		b := start(t, k, Options{})
		b.loop.options.Queue.Notify()
		synctest.Wait()
		if len(k.batches) != 1 || len(b.reports) != 2 || b.reports[1].Operations != 0 {
			t.Errorf("%d batches, reports %+v", len(k.batches), b.reports)
		}
	})
}

func TestRefusedBatchIsRetriedFromTheKernelsState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &table{answers: []error{unix.ENOMEM, unix.ENOMEM, unix.ENOMEM}}
		b := newBubble(k, Options{})
		b.loop.backoff = retry.Backoff{Min: time.Second, Max: 2 * time.Second}
		b.run(t)
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
		k := &table{answers: []error{unix.ERESTART, kernel.ErrUnknownOutcome}}
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
		b := start(t, k, Options{})
		k.answers = []error{errors.New("no")}
		observed := time.Now()
		b.feed.add("a")
		b.loop.options.Queue.Notify()
		synctest.Wait()
		b.feed.add("bb")
		time.Sleep(5 * time.Second)
		synctest.Wait()
		last := b.reports[len(b.reports)-1]
		if !last.Delta.Oldest.Equal(observed) {
			t.Errorf("oldest change observed at %v, want %v", last.Delta.Oldest, observed)
		}
	})
}

// TestServiceAndItsEndpointsAreOneBatch: a Service is committed once with the slice that comes
// right after it, and by itself when none comes.
func TestServiceAndItsEndpointsAreOneBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = 10 * time.Millisecond
		k, queue := new(table), NewQueue()
		tr := tracker.New(tracker.Config{NodeName: "node", AwaitSlices: wait})
		ruleset := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})
		var last Report
		runLoop(t, New(tr, ruleset, k, Options{Log: zap.NewNop(), Queue: queue, Committed: func(r Report) { last = r }}))
		synctest.Wait()
		add := func(name string, ip byte, pause time.Duration) {
			if err := tr.SetService(lab.Service("ns", name, netip.AddrFrom4([4]byte{10, 96, 0, ip}))); err != nil {
				t.Fatal(err)
			}
			queue.Notify()
			time.Sleep(pause)
			slice := lab.Slice("ns", name, 0, corev1.IPv4Protocol, []netip.Addr{netip.AddrFrom4([4]byte{10, 128, 0, ip})})
			if err := tr.SetSlice(slice); err != nil {
				t.Fatal(err)
			}
			queue.Notify()
			synctest.Wait()
		}
		add("prompt", 1, wait/2)
		if len(k.batches) != 2 || last.Elements != 3 {
			t.Errorf("%d batches, the last of %d elements; want one after the first: cluster IP, frontend and endpoint",
				len(k.batches), last.Elements)
		}
		began := time.Now()
		add("late", 2, 3*wait)
		if len(k.batches) != 4 {
			t.Fatalf("%d batches, want one for the Service and one for its endpoint", len(k.batches))
		}
		if waited := k.times[2].Sub(began); waited != wait {
			t.Errorf("the Service without endpoints was committed after %v, want %v", waited, wait)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if oldest, _ := queue.Waiting(); len(k.batches) != 4 {
			t.Errorf("%d batches, waiting since %v", len(k.batches), oldest)
		}
	})
}

// slowTable takes the time that the kernel takes for elements.
type slowTable struct{ table }

func (k *slowTable) Commit(ctx context.Context, batch nft.Batch) error {
	time.Sleep(time.Duration(batch.ElementCount()) * 10 * time.Microsecond)
	return k.table.Commit(ctx, batch)
}

// holds reports whether the last batches have added an endpoint.
func (k *slowTable) holds(endpoint netip.Addr) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, batch := range k.batches[max(0, len(k.batches)-10):] {
		for _, op := range batch.Ops {
			if op.Verb == nft.Add && slices.ContainsFunc(op.Elements,
				func(e nft.KeyedElement) bool { return strings.HasPrefix(e.Data, nft.AddrKey(endpoint)) }) {
				return true
			}
		}
	}
	return false
}

// TestNeighbourWaitsForOneSmallCommit: beside a namespace that changes very much all the time, in different ways, a
// change of another namespace is committed within 30 ms.
func TestNeighbourWaitsForOneSmallCommit(t *testing.T) {
	addrs := func(net byte, n int) (list []netip.Addr) {
		for i := range n {
			list = append(list, netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)}))
		}
		return list
	}
	few, many, others := addrs(1, 1), addrs(2, 10_000), addrs(3, 10_000)
	type cluster struct {
		*tracker.Tracker
		set    func(namespace, name string, ip byte, endpoints ...netip.Addr)
		remove func(namespace, name string)
	}
	for name, change := range map[string]func(c cluster, i int){
		"one Service grows and shrinks": func(c cluster, i int) {
			c.set("loud", "web", 1, [][]netip.Addr{few, many}[i%2]...)
		},
		"all endpoints become others": func(c cluster, i int) {
			c.set("loud", "web", 1, [][]netip.Addr{others, many}[i%2]...)
		},
		"a new name each time": func(c cluster, i int) {
			c.set("loud", fmt.Sprint("web", i), byte(i), many...)
			c.remove("loud", fmt.Sprint("web", i-1))
		},
		"many Services": func(c cluster, i int) {
			for j := range 20 {
				c.set("loud", fmt.Sprint("web", j), byte(10+j), addrs(4, 500*(i%2))...)
			}
		},
		"one endpoint flaps": func(c cluster, i int) { c.set("loud", "web", 1, few[:i%2]...) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, queue := new(slowTable), NewQueue()
				tr := tracker.New(tracker.Config{NodeName: "node"})
				c := cluster{Tracker: tr}
				c.set = func(namespace, name string, ip byte, endpoints ...netip.Addr) {
					service := lab.Service(namespace, name, netip.AddrFrom4([4]byte{10, 96, namespace[0], ip}))
					if err := errors.Join(tr.SetService(service),
						tr.SetSlice(lab.Slice(namespace, name, 0, corev1.IPv4Protocol, endpoints))); err != nil {
						t.Fatal(err)
					}
					queue.Notify()
				}
				c.remove = func(namespace, name string) {
					tr.DeleteService(namespace, name)
					tr.DeleteSlice(namespace, name+"-0")
					queue.Notify()
				}
				ruleset := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})
				runLoop(t, New(tr, ruleset, k, Options{Log: zap.NewNop(), Queue: queue, MinInterval: time.Millisecond,
					Charge: tr.Charge, Hold: tr.Hold}))
				synctest.Wait()
				var longest time.Duration
				for i := range 300 {
					change(c, i)
					time.Sleep(7 * time.Millisecond)
					if i%10 == 5 {
						ready := netip.AddrFrom4([4]byte{10, 9, 0, byte(i)})
						c.set("calm", "web", 2, ready)
						came := time.Now()
						for !k.holds(ready) {
							if time.Sleep(time.Millisecond); time.Since(came) > time.Second {
								t.Fatal("a neighbour's change is not committed within a second")
							}
						}
						longest = max(longest, time.Since(came))
					}
				}
				if longest > 30*time.Millisecond {
					t.Errorf("a neighbour waited for %v", longest)
				}
			})
		})
	}
}

// TestAddressesWhileTheLoopTakesThem sets addresses all the time: neither side may wait for
// the other, and the latest ones count.
func TestAddressesWhileTheLoopTakesThem(t *testing.T) {
	l := New(new(feed), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), new(table),
		Options{Log: zap.NewNop()})
	ctx, stop := context.WithCancel(t.Context())
	latest := []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	l.options.Committed = func(Report) {
		if local := l.nodePorts.local; len(local) > 0 && local[0] == latest[0] {
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

// TestNodePortAddressesFollowTheNode hands addresses of the Node and of its interfaces to the
// loop, which works out where node ports are reached when one of them changes, and then only.
func TestNodePortAddressesFollowTheNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		setting, err := ParseNodePortAddresses([]string{"primary", "198.51.100.0/24"})
		if err != nil {
			t.Fatal(err)
		}
		b := start(t, new(table), Options{NodePorts: setting})
		node, local := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("198.51.100.1")
		for _, tt := range []struct {
			name  string
			delta tracker.Delta
			local []netip.Addr
			want  []netip.Addr
		}{
			{name: "nothing is known"},
			{name: "the Node", delta: tracker.Delta{AddressesChanged: true, NodeAddresses: []netip.Addr{node}},
				want: []netip.Addr{node}},
			{name: "an interface", local: []netip.Addr{local}, want: []netip.Addr{node, local}},
			{name: "another change", want: []netip.Addr{node, local}},
			{name: "the Node loses its address", delta: tracker.Delta{AddressesChanged: true}, want: []netip.Addr{local}},
		} {
			b.feed.deltas = []tracker.Delta{tt.delta}
			if tt.local != nil {
				b.loop.SetAddresses(tt.local)
			}
			before := b.loop.nodePorts.reached
			b.change()
			reached := b.reports[len(b.reports)-1].NodePorts
			if !slices.Equal(reached, tt.want) {
				t.Errorf("%s: reached at %v, want %v", tt.name, reached, tt.want)
			}
			if held := b.loop.ruleset.Want()[nft.IP].Sets["node-port-addresses"]; held == nil || len(held.Map) != len(tt.want) {
				t.Errorf("%s: the ruleset names %v, want %v", tt.name, held, tt.want)
			}
			if anew := len(before) > 0 && len(reached) > 0 &&
				&before[0] != &reached[0]; anew != (tt.local != nil || tt.delta.AddressesChanged) && tt.name != "the Node" {
				t.Errorf("%s: worked out anew: %v", tt.name, anew)
			}
		}
	})
}
