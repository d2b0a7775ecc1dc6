package sync

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/tracker"
)

// A trackedFlow is a connection to a frontend; one that bypasses translation has the frontend
// itself as its endpoint.
type trackedFlow struct {
	to       tracker.Frontend
	endpoint netip.AddrPort
}

func (f trackedFlow) bypasses() bool { return f.endpoint.Addr() == f.to.Address }

// A flowTable is connection tracking in the words of conntrack.Desired. A look at it takes a while,
// in which commits go on, and fails at random: what it has deleted until then is deleted.
type flowTable struct {
	mu     sync.Mutex
	random *rand.Rand
	flows  map[trackedFlow]bool
}

func (f *flowTable) Clean(ctx context.Context, changes []tracker.FlowChange,
	desired conntrack.Desired) (conntrack.Result, error) {
	return f.look(changes, desired, false)
}

func (f *flowTable) Full(ctx context.Context, changes []tracker.FlowChange,
	desired conntrack.Desired) (conntrack.Result, error) {
	return f.look(changes, desired, true)
}

func (f *flowTable) look(changes []tracker.FlowChange, desired conntrack.Desired,
	full bool) (r conntrack.Result, err error) {
	stale := func(flow trackedFlow) bool {
		allowed, known := desired.Endpoints(flow.to)
		at := slices.IndexFunc(changes, func(c tracker.FlowChange) bool { return c.Frontend == flow.to })
		switch {
		case known && allowed(flow.endpoint), flow.to.Protocol != tracker.UDP && !flow.bypasses():
			return false
		case full && known:
			return true
		case at < 0:
			return false
		case flow.bypasses():
			return known && (changes[at].Appeared || flow.to.Protocol == tracker.UDP)
		}
		return known || slices.ContainsFunc(changes[at].Removed, func(s tracker.Served) bool { return s.Has(flow.endpoint) })
	}
	f.mu.Lock()
	var found []trackedFlow
	for flow := range f.flows {
		if stale(flow) {
			found = append(found, flow)
		}
	}
	takes, fails := time.Duration(f.random.IntN(30))*time.Millisecond, f.random.IntN(3) == 0
	f.mu.Unlock()
	time.Sleep(takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, flow := range found {
		if fails && f.random.IntN(2) == 0 {
			err = errors.New("no connection tracking")
		} else if stale(flow) {
			delete(f.flows, flow)
		}
	}
	return r, err
}

// TestNoFlowIsForgotten lets endpoints and whole Services come and go while clean-ups are under way
// and fail, commits fail, and all connections are looked at now and then. In the end no connection
// leads where it must not.
func TestNoFlowIsForgotten(t *testing.T) {
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) { forgetNoFlow(t, seed) })
	}
}

func forgetNoFlow(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 0))
	k, table := new(table), &flowTable{random: rand.New(rand.NewPCG(seed, 1)), flows: make(map[trackedFlow]bool)}
	everywhere, err := ParseNodePortAddresses([]string{"all"})
	if err != nil {
		t.Fatal(err)
	}
	b := newBubble(k, Options{NodePorts: everywhere})
	b.loop.backoff = retry.Backoff{Min: time.Millisecond, Max: 20 * time.Millisecond}
	var commits atomic.Int32
	b.loop.options.Committed = func(Report) { commits.Add(1) }
	b.loop.CleanFlows(table)
	wanted := make(map[tracker.Frontend]*tracker.ServicePort) // a nil port is gone
	b.run(t)
	for range 150 {
		number, protocol := byte(random.IntN(4)), []tracker.Protocol{tracker.TCP, tracker.UDP}[random.IntN(2)]
		var endpoints []byte
		for e := range byte(4) {
			if random.IntN(2) == 0 {
				endpoints = append(endpoints, e)
			}
		}
		port := udp(fmt.Sprint("service-", number), number, endpoints...)
		port.ID.Protocol = protocol
		wanted[frontendAt(port)] = port
		if random.IntN(3) > 0 {
			b.feed.set(port)
		} else {
			wanted[frontendAt(port)] = nil
			b.feed.mu.Lock()
			b.feed.deltas = append(b.feed.deltas, tracker.Delta{Removed: map[tracker.PortID]bool{port.ID: true}})
			b.feed.mu.Unlock()
		}
		if random.IntN(10) == 0 { // addresses moved: any connection may be stale
			b.loop.SetAddresses([]netip.Addr{pod(byte(random.IntN(200)))})
		}
		k.mu.Lock()
		k.answers = slices.Repeat([]error{unix.ENOMEM}, max(0, random.IntN(6)-4))
		k.mu.Unlock()
		before := commits.Load()
		b.loop.options.Queue.Notify()
		pass(time.Duration(random.IntN(30)) * time.Millisecond)
		if commits.Load() == before { // the kernel does not hold what is wanted
			continue
		}
		table.mu.Lock()
		for f, port := range wanted {
			switch {
			case port == nil:
				table.flows[trackedFlow{f, netip.AddrPortFrom(f.Address, f.Port)}] = true
			case len(port.Serving) > 0:
				table.flows[trackedFlow{f, port.Serving[random.IntN(len(port.Serving))]}] = true
			}
		}
		table.mu.Unlock()
	}
	pass(time.Minute)
	for flow := range table.flows {
		port := wanted[flow.to]
		switch {
		case port == nil && flow.bypasses(), port != nil && slices.Contains(port.Serving, flow.endpoint):
		case flow.to.Protocol == tracker.UDP, flow.bypasses() && port != nil && len(port.Serving) > 0:
			t.Errorf("seed %d: a connection to %s leads to %s; wanted there: %v", seed, flow.to, flow.endpoint, port)
		}
	}
}
