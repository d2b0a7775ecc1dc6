package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// A cleaning is one that a cleaner was asked for.
type cleaning struct {
	began   time.Time
	full    bool
	changes []tracker.FlowChange
}

// cleaner keeps what it is asked to clean up, takes its time for it and fails as it is told.
type cleaner struct {
	takes time.Duration
	then  func(conntrack.Desired) // if set, after that time

	mu    sync.Mutex
	fails error
	asked []cleaning
}

func (c *cleaner) Clean(_ context.Context, changes []tracker.FlowChange,
	desired conntrack.Desired) (conntrack.Result, error) {
	return c.clean(changes, desired, false)
}

func (c *cleaner) Full(_ context.Context, changes []tracker.FlowChange,
	desired conntrack.Desired) (conntrack.Result, error) {
	return c.clean(changes, desired, true)
}

func (c *cleaner) clean(changes []tracker.FlowChange, desired conntrack.Desired, full bool) (conntrack.Result, error) {
	c.mu.Lock()
	c.asked = append(c.asked, cleaning{time.Now(), full, changes})
	err := c.fails
	c.mu.Unlock()
	if c.takes > 0 {
		time.Sleep(c.takes)
	}
	if c.then != nil {
		c.then(desired)
	}
	return conntrack.Result{Deleted: 3, Deleted6: 1}, err
}

// all returns what it was asked for so far.
func (c *cleaner) all() []cleaning {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.asked)
}

func (c *cleaner) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = nil
}

// fail makes everything fail from now on; nil ends that.
func (c *cleaner) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fails = err
}

// newCleaning returns a loop in a bubble that has not started and cleans up with c, and the
// reports of that.
func newCleaning(k client, c *cleaner, options Options, ports ...*tracker.ServicePort) (*bubble, *[]FlowReport) {
	var reports []FlowReport
	options.Cleaned = func(r FlowReport) { reports = append(reports, r) }
	b := newBubble(k, options, ports...)
	b.loop.CleanFlows(c)
	return b, &reports
}

// pass lets time of the bubble pass, and waits for what happens meanwhile.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// udp is a Service port of UDP with these endpoints.
func udp(service string, number byte, endpoints ...byte) *tracker.ServicePort {
	p := portWith(service, number, 0)
	p.ID.Protocol, p.Cluster, p.HasEndpoints = tracker.UDP, nil, len(endpoints) > 0
	for _, endpoint := range endpoints {
		p.Cluster = append(p.Cluster, netip.AddrPortFrom(pod(endpoint), 8080))
	}
	p.Serving = p.Cluster
	return p
}

func frontendAt(p *tracker.ServicePort) tracker.Frontend {
	return tracker.Frontend{Address: p.ClusterIP, Protocol: p.ID.Protocol, Port: p.Port}
}

var compareAddresses = cmp.Options{
	cmp.Comparer(func(x, y netip.Addr) bool { return x == y }),
	cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y }),
}

func at8080(numbers ...byte) (endpoints []netip.AddrPort) {
	for _, number := range numbers {
		endpoints = append(endpoints, netip.AddrPortFrom(pod(number), 8080))
	}
	return endpoints
}

func served8080(numbers ...byte) []tracker.Served {
	return []tracker.Served{{List: at8080(numbers...)}}
}

// TestCommitsDoNotWaitForCleaning makes changes while a clean-up takes a second: all are
// committed at once, and the next clean-up finds one change for each frontend.
func TestCommitsDoNotWaitForCleaning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := new(table), &cleaner{takes: time.Second}
		b, cleaned := newCleaning(k, c, Options{}, udp("dns", 1, 1), udp("ntp", 2, 1))
		began := time.Now()
		b.run(t)
		for n := byte(2); n <= 5; n++ {
			b.change(udp("dns", 1, n))
		}
		b.change(udp("ntp", 2, 9))
		if len(k.batches) != 6 || time.Since(began) != 0 {
			t.Errorf("%d batches after %v, want all six at once", len(k.batches), time.Since(began))
		}
		if len(c.all()) != 1 || !c.all()[0].full || len(c.all()[0].changes) != 0 {
			t.Fatalf("asked for %+v, want a look at all connections", c.all())
		}
		pass(time.Minute)
		if len(c.all()) != 2 || c.all()[1].full {
			t.Fatalf("asked for %+v, want one more clean-up", c.all())
		}
		if gap := c.all()[1].began.Sub(began); gap != time.Second+retry.Rest(time.Second) {
			t.Errorf("the next clean-up after %v, want one second of work and a rest", gap)
		}
		got := c.all()[1].changes
		slices.SortFunc(got, func(x, y tracker.FlowChange) int { return x.Frontend.Compare(y.Frontend) })
		want := []tracker.FlowChange{
			{Frontend: frontendAt(udp("dns", 1)), Removed: served8080(1, 2, 3, 4)},
			{Frontend: frontendAt(udp("ntp", 2)), Removed: served8080(1)},
		}
		if diff := cmp.Diff(want, got, compareAddresses); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		if len(*cleaned) != 2 || (*cleaned)[0].Lag != time.Second || (*cleaned)[1].Lag != (2+retry.Rest(1))*time.Second ||
			(*cleaned)[1].Duration != time.Second || (*cleaned)[1].Deleted[tracker.IPv4] != 2 ||
			(*cleaned)[1].Deleted[tracker.IPv6] != 1 {
			t.Errorf("reports %+v", *cleaned)
		}
	})
}

// TestCleaningRests moves an endpoint 30 times a second, among so many connections that a
// clean-up takes as long as that: a quarter of a CPU is spent on it, and no more changes
// wait than frontends. After quiet the first clean-up comes at once.
func TestCleaningRests(t *testing.T) {
	t.Run("quiet", func(t *testing.T) { testCleaningRests(t, 1, 0.25) })
	// It works for a fifth of the time that passes, and rests for three fifths.
	t.Run("busy", func(t *testing.T) { testCleaningRests(t, 5, 5.0/8) })
}

func testCleaningRests(t *testing.T, busy time.Duration, want float64) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		c := &cleaner{takes: 35 * time.Millisecond}
		b, _ := newCleaning(new(table), c, Options{CPUTime: func() time.Duration { return time.Since(start) / busy }},
			udp("dns", 1, 1))
		b.run(t)
		pass(time.Second)
		c.forget()
		began := time.Now()
		for n := 0; time.Since(began) < time.Minute; n++ {
			b.change(udp("dns", 1, byte(n%200+2)))
			pass(time.Second / 30)
		}
		if first := c.all()[0].began; first != began {
			t.Errorf("the first clean-up %v after the change, want it at once", first.Sub(began))
		}
		share := float64(len(c.all())) * c.takes.Seconds() / time.Since(began).Seconds()
		if share > want+0.01 || share < want-0.05 {
			t.Errorf("%d clean-ups took %.0f%% of the time, want %.0f%%", len(c.all()), 100*share, 100*want)
		}
		for _, asked := range c.all() {
			if len(asked.changes) != 1 || asked.changes[0].Removed[0].Len() > 6 {
				t.Fatalf("asked for %+v", asked)
			}
		}
		pass(time.Second)
		before := time.Now()
		b.change(udp("dns", 1, 1))
		if last := c.all()[len(c.all())-1].began; last != before {
			t.Errorf("after quiet the last clean-up began at %v, want %v", last, before)
		}
	})
}

// TestCleaningSeesLaterCommits brings an endpoint back, removes a Service and moves the Service
// CIDRs while a clean-up is under way: what it asks for then is what was committed last, and
// nothing that was refused.
func TestCleaningSeesLaterCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		dns, ntp := frontendAt(udp("dns", 1)), frontendAt(udp("ntp", 2))
		c := &cleaner{takes: time.Second}
		b, _ := newCleaning(k, c, Options{}, udp("dns", 1, 1, 2), udp("ntp", 2, 1))
		b.loop.backoff = retry.Backoff{Min: time.Hour, Max: time.Hour}
		var seen []string
		c.then = func(d conntrack.Desired) {
			text := ""
			for _, f := range []tracker.Frontend{dns, ntp} {
				allowed, known := d.Endpoints(f)
				text += fmt.Sprint(known, allowed(at8080(1)[0]), allowed(at8080(2)[0]), d.ClusterIP(f.Address), " ")
			}
			seen = append(seen, text+fmt.Sprint(d.ServiceCIDR(dns.Address), d.NodePortAddress(dns.Address)))
		}
		b.run(t)
		pass(time.Minute)
		b.change(udp("dns", 1, 1)) // 2 goes
		b.change(udp("dns", 1, 1, 2))
		pass(time.Minute)
		b.feed.deltas = append(b.feed.deltas, tracker.Delta{
			Removed:      map[tracker.PortID]bool{udp("ntp", 2).ID: true},
			CIDRsChanged: true, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		})
		b.change(udp("dns", 1, 2))
		k.answer(unix.ENOMEM)
		b.change(udp("dns", 1, 1))
		pass(time.Minute)
		want := []string{
			"true true true true true true false true false false",
			"true true true true true true false true false false",    // of the commit with which 2 went: it is back
			"true false true true false false false false true false", // the last change was not committed
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("desired (-want +got):\n%s", diff)
		}
	})
}

// TestNothingIsCleanedBeforeTheCommit: neither what a refused batch would have made stale,
// nor by a view that is ahead of the kernel.
func TestNothingIsCleanedBeforeTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := new(table), new(cleaner)
		b, _ := newCleaning(k, c, Options{}, udp("dns", 1, 1))
		b.run(t)
		k.answer(unix.ENOMEM)
		b.change(udp("dns", 1, 2))
		if allowed, known := b.loop.stale.view.Endpoints(frontendAt(udp("dns", 1))); !known || !allowed(at8080(1)[0]) ||
			allowed(at8080(2)[0]) {
			t.Error("the view is ahead of the kernel")
		}
		if len(c.all()) != 1 {
			t.Errorf("asked for %+v before the commit", c.all()[1:])
		}
		k.answer(nil)
		pass(10 * time.Second)
		if allowed, _ := b.loop.stale.view.Endpoints(frontendAt(udp("dns", 1))); allowed(at8080(1)[0]) ||
			!allowed(at8080(2)[0]) {
			t.Error("the view is behind the kernel")
		}
		if len(c.all()) != 2 || len(c.all()[1].changes) != 1 ||
			!cmp.Equal(c.all()[1].changes[0].Removed, served8080(1), compareAddresses) {
			t.Errorf("asked for %+v", c.all()[1:])
		}
	})
}

// TestFailedCleaningIsRepeated fails to clean up after one commit: it is tried again after
// pauses that grow, with one change for each frontend, and its failure is logged once.
func TestFailedCleaningIsRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cleaner{fails: errors.New("no connection tracking")}
		b, cleaned := newCleaning(new(table), c, Options{}, udp("dns", 1, 1))
		began := time.Now()
		b.run(t)
		b.change(udp("dns", 1, 2))
		b.change(udp("dns", 1, 3))
		b.change(udp("dns", 1)) // scaled to zero
		pass(10 * time.Second)
		for i, want := range []time.Duration{0, 50, 150, 350, 750, 1550, 3150, 6350} {
			if i >= len(c.all()) || !c.all()[i].full || c.all()[i].began.Sub(began) != want*time.Millisecond {
				t.Fatalf("attempts %+v, want a look at all connections after 0, 50, 150, 350 ms and so on", c.all())
			}
		}
		want := []tracker.FlowChange{{Frontend: frontendAt(udp("dns", 1)), Removed: served8080(1, 2, 3), Gone: true}}
		if diff := cmp.Diff(want, c.all()[7].changes, compareAddresses); diff != "" {
			t.Errorf("changes (-want +got):\n%s", diff)
		}
		c.fail(nil)
		pass(time.Hour)
		if last := len(*cleaned) - 1; len(c.all()) != 9 || last != 8 || (*cleaned)[7].Err == nil ||
			(*cleaned)[7].Lag != 6350*time.Millisecond ||
			(*cleaned)[8].Err != nil || (*cleaned)[8].Lag != 12750*time.Millisecond {
			t.Errorf("%d attempts, reports %+v; want one more, that succeeds after 12.75 s", len(c.all()), *cleaned)
		}
		if n := b.logged("cannot delete stale conntrack entries; retrying"); n != 1 {
			t.Errorf("%d lines, want one", n)
		}
		c.fail(errors.New("no connection tracking"))
		b.change(udp("dns", 1, 1))
		b.change(udp("dns", 1, 2))
		if n := b.logged("cannot delete stale conntrack entries; retrying"); n != 2 {
			t.Errorf("%d lines, want one more", n)
		}
	})
}

// TestFailedCleaningIsLoggedOnce fails to clean up with every commit, then in another way, and
// after a success in that way again.
func TestFailedCleaningIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	l := New(new(feed), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), new(table),
		Options{Log: zap.New(core)})
	c := new(cleaner)
	l.CleanFlows(c)
	away, busy := errors.New("no connection tracking"), errors.New("busy")
	for i, tt := range []struct {
		err  error
		want int // lines so far
	}{{away, 1}, {away, 1}, {busy, 2}, {busy, 2}, {nil, 2}, {busy, 3}} {
		c.fail(tt.err)
		l.stale.committed(nil, true)
		if l.stale.clean(t.Context()); logs.Len() != tt.want {
			t.Errorf("commit %d: %d lines, want %d", i, logs.Len(), tt.want)
		}
	}
}

// TestFullCleaningKnowsFrontends looks at all connections: changes are needed for what a look
// at the present state does not tell, and they do not need a clean-up of their own.
func TestFullCleaningKnowsFrontends(t *testing.T) {
	c := new(cleaner)
	l := New(new(feed), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), new(table),
		Options{Log: zap.NewNop()})
	l.CleanFlows(c)
	made, moved, gone := udp("made", 3), udp("moved", 4), udp("gone", 9)
	l.stale.committed([]tracker.FlowChange{
		{Frontend: frontendAt(made), Appeared: true},
		{Frontend: frontendAt(moved), Removed: served8080(1)},
		{Frontend: frontendAt(gone), Gone: true},
	}, true)
	l.stale.clean(t.Context())
	if len(c.all()) != 1 || !c.all()[0].full {
		t.Fatalf("asked for %+v, want one look at all connections", c.all())
	}
	got := c.all()[0].changes
	slices.SortFunc(got, func(x, y tracker.FlowChange) int { return x.Frontend.Compare(y.Frontend) })
	if len(got) != 2 || got[0].Frontend != frontendAt(moved) || got[1].Frontend != frontendAt(gone) {
		t.Errorf("changes %v; want those of %v and %v", got, frontendAt(moved), frontendAt(gone))
	}
	if l.stale.clean(t.Context()); len(c.all()) != 1 {
		t.Errorf("cleaned up again: %+v", c.all())
	}
}

// TestOnceWaitsForCleaning: who calls Once may say how many connections were removed.
func TestOnceWaitsForCleaning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cleaner{takes: time.Second}
		b, cleaned := newCleaning(new(table), c, Options{}, udp("dns", 1, 1))
		if err := b.loop.once(t.Context()); err != nil || len(*cleaned) != 1 || (*cleaned)[0].Deleted[tracker.IPv4] != 2 {
			t.Errorf("%v, reports %+v", err, *cleaned)
		}
	})
}

// TestRunEndsWithItsCleaning: in the middle of a rest, and when the socket is broken.
func TestRunEndsWithItsCleaning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k, c := new(table), &cleaner{takes: time.Hour}
		b, _ := newCleaning(k, c, Options{}, udp("dns", 1, 1))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.loop.Run(ctx) }()
		pass(90 * time.Minute)
		began := time.Now()
		stop()
		if err := <-ended; err != nil || time.Since(began) != 0 {
			t.Errorf("ended with %v after %v", err, time.Since(began))
		}
		k = &table{answers: []error{nil, unix.EBADF}}
		b, _ = newCleaning(k, new(cleaner), Options{}, udp("dns", 1, 1))
		go func() { ended <- b.loop.Run(t.Context()) }()
		synctest.Wait()
		b.change(udp("dns", 1, 2))
		if err := <-ended; !errors.Is(err, unix.EBADF) {
			t.Errorf("ended with %v, want %v", err, unix.EBADF)
		}
	})
}

// TestViewWhileCommitsGoOn asks for endpoints all the time while they change; the race
// detector looks on.
func TestViewWhileCommitsGoOn(t *testing.T) {
	f := new(feed)
	c := &cleaner{then: func(d conntrack.Desired) {
		for number := range byte(200) {
			addr := netip.AddrFrom4([4]byte{10, 96, 0, number})
			allowed, _ := d.Endpoints(tracker.Frontend{Address: addr, Protocol: tracker.UDP, Port: 80})
			allowed(at8080(number)[0])
			d.ClusterIP(addr)
			d.ServiceCIDR(addr)
			d.NodePortAddress(addr)
		}
	}}
	committed := make(chan struct{}, 1)
	l := New(f, services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), new(table), Options{
		Log: zap.NewNop(), Committed: func(Report) {
			select {
			case committed <- struct{}{}:
			case <-t.Context().Done(): // one change may take two commits, so that some are left at the end
			}
		},
	})
	l.CleanFlows(c)
	runLoop(t, l)
	<-committed
	for n := range 500 {
		f.set(udp(fmt.Sprint("service-", n%7), byte(n%7), byte(n%100), byte(n%100+100)))
		l.SetAddresses([]netip.Addr{pod(byte(n))})
		l.options.Queue.Notify()
		<-committed
	}
}

// TestEndCleansUp ends the loop while stale flows wait for the rest to be over: they are removed first, and
// the end does not wait for longer than it has to.
func TestEndCleansUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cleaner{takes: 100 * time.Millisecond}
		b, _ := newCleaning(new(table), c, Options{}, udp("dns", 1, 1))
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := b.loop.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		pass(150 * time.Millisecond) // it rests
		c.forget()
		b.change(udp("dns", 1, 2))
		if len(c.all()) != 0 {
			t.Fatal("it does not rest")
		}
		began := time.Now()
		stop()
		<-ended
		asked := c.all()
		if len(asked) != 1 || asked[0].full || len(asked[0].changes) != 1 ||
			asked[0].changes[0].Frontend != frontendAt(udp("dns", 1)) {
			t.Errorf("asked for %+v, want the change that waited", asked)
		}
		if took := time.Since(began); took != c.takes {
			t.Errorf("the end took %v, want %v for the last clean-up", took, c.takes)
		}
	})
}
