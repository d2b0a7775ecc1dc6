package flows

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

var (
	start    = time.Now()
	cluster  = tracker.Frontend{Address: netip.MustParseAddr("10.96.0.80"), Protocol: tracker.TCP, Port: 80}
	nodePort = tracker.NodePort(tracker.IPv4, tracker.TCP, 30080)
	node     = netip.MustParseAddr("192.0.2.1")
	web      = Service{"shop", "web"}
)

// committed says which Services have which frontends.
type committed map[tracker.Frontend]Service

func (o committed) Owner(at tracker.Frontend) (tracker.PortID, bool) {
	service, ok := o[at]
	return tracker.PortID{Namespace: service.Namespace, Service: service.Name}, ok
}

func (o committed) NodePortAddress(addr netip.Addr) bool { return addr == node }

func (o committed) exists(service Service) bool {
	return slices.Contains(slices.Collect(maps.Values(o)), service)
}

// newCounter returns a Counter that counts since start, and knows shop/web.
func newCounter() *Counter {
	o := committed{cluster: web, nodePort: web}
	c := New(Options{Log: zap.NewNop(), Committed: o, Exists: o.exists})
	c.setBegan(start)
	return c
}

// setOwner gives a Service a frontend; the zero Service is none.
func (c *Counter) setOwner(at tracker.Frontend, service Service) {
	o := c.options.Committed.(committed)
	if before, ok := o[at]; ok {
		c.Lose(at, before)
	}
	if o[at] = service; service == (Service{}) {
		delete(o, at)
	}
}

// connectionTo returns a connection that began some time after start.
func connectionTo(at tracker.Frontend, id uint32, after time.Duration, sent, returned uint64) *conntrack.Flow {
	addr := at.Address
	if at.NodePort() {
		addr = node
	}
	return &conntrack.Flow{
		Family: at.Family(), ID: id, Started: uint64(start.Add(after).UnixNano()),
		Original: conntrack.Tuple{Source: netip.MustParseAddrPort("203.0.113.9:4000"), Protocol: at.Protocol,
			Destination: netip.AddrPortFrom(addr, at.Port)},
		Status:   conntrack.DestinationNAT | conntrack.SeenReply,
		Sent:     conntrack.Counter{Packets: sent / 10, Bytes: sent},
		Returned: conntrack.Counter{Packets: returned / 10, Bytes: returned},
	}
}

// ended is a connection's end, after so much time.
func ended(f *conntrack.Flow, lasted time.Duration) *conntrack.Flow {
	end := *f
	end.Stopped = f.Started + uint64(lasted)
	return &end
}

// look lets a Counter see connections.
func (c *Counter) lookAt(now time.Time, list ...*conntrack.Flow) {
	c.ended = make(map[connection]struct{})
	for _, f := range list {
		c.see(f, now)
	}
	c.tidy(true, now)
}

// want compares what was counted for shop/web.
func (c *Counter) want(t *testing.T, sent, returned, ends uint64) {
	t.Helper()
	var got Usage
	if u := c.usages[web]; u != nil {
		got = u.Usage
	}
	if got.Sent.Bytes != sent || got.Returned.Bytes != returned || got.Ended != ends ||
		got.Sent.Packets != sent/10 || got.Returned.Packets != returned/10 {
		t.Errorf("%+v; want %d bytes sent, %d returned, %d ended", got, sent, returned, ends)
	}
}

// TestLastingConnectionCounts: while it lasts, and all of it only once.
func TestLastingConnectionCounts(t *testing.T) {
	for _, at := range []tracker.Frontend{cluster, nodePort} {
		c := newCounter()
		c.lookAt(start, connectionTo(at, 1, time.Second, 100, 1000))
		c.want(t, 100, 1000, 0)
		c.lookAt(start, connectionTo(at, 1, time.Second, 250, 1000))
		c.want(t, 250, 1000, 0)
		c.end(ended(connectionTo(at, 1, time.Second, 300, 2000), time.Minute), start)
		c.want(t, 300, 2000, 1)
		c.end(ended(connectionTo(at, 2, time.Second, 40, 50), time.Second), start) // no look has seen it
		c.want(t, 340, 2050, 2)
		if u := c.usages[web]; u.Timed != 2 || u.Seconds != 61 || u.Durations != [...]uint64{0, 1, 1, 2, 2, 2, 2} {
			t.Errorf("%+v", u.Usage)
		}
		if len(c.live) > 0 || c.shares["shop"].connections > 0 {
			t.Errorf("%d connections last", len(c.live))
		}
	}
}

// TestConnectionsFromBefore: what they had moved before is not counted.
func TestConnectionsFromBefore(t *testing.T) {
	c := newCounter()
	const before = -time.Minute
	c.lookAt(start, connectionTo(cluster, 1, before, 100, 1000))
	c.want(t, 0, 0, 0)
	c.lookAt(start, connectionTo(cluster, 1, before, 150, 1000))
	c.want(t, 50, 0, 0)
	c.end(ended(connectionTo(cluster, 1, before, 160, 1010), time.Hour), start)
	c.want(t, 60, 10, 1)
	// One that no look has seen: it is not known how much of it came before.
	c.end(ended(connectionTo(cluster, 2, before, 1000, 1000), time.Hour), start)
	c.want(t, 60, 10, 1)
	// One that is older than the kernel's counting has neither times nor counts.
	unknown := connectionTo(cluster, 3, before, 0, 0)
	unknown.Started = 0
	c.lookAt(start, unknown)
	c.end(unknown, start)
	c.want(t, 60, 10, 2)
	if u := c.usages[web]; u.Timed != 1 {
		t.Errorf("%d durations", u.Timed)
	}
}

// TestClockIsSet: the kernel's times are by the node's clock, which may go forwards and back.
func TestClockIsSet(t *testing.T) {
	for _, step := range []time.Duration{-time.Hour, time.Hour} {
		c := newCounter()
		// The clock was set after a minute. A time without a monotonic part is what the clock says; its difference to
		// start is the step and a minute.
		c.old(connectionTo(cluster, 1, 0, 0, 0), start)
		c.began = c.began.Add(step) // as seen from the new clock
		now := start.Add(time.Minute + step)
		c.end(ended(connectionTo(cluster, 1, time.Minute+step, 100, 0), time.Second), now)
		c.end(ended(connectionTo(cluster, 2, time.Second, 100, 0), time.Second), now) // from before the step
		c.want(t, 200, 0, 2)
	}
}

// TestServiceIsDeleted: the connections of a deleted Service count for it while they end, also if another Service gets
// its address. Other connections do not.
func TestServiceIsDeleted(t *testing.T) {
	c := newCounter()
	c.lookAt(start, connectionTo(cluster, 1, time.Second, 100, 0))
	c.setOwner(cluster, Service{})
	c.setOwner(nodePort, Service{})
	c.end(ended(connectionTo(cluster, 2, time.Second, 10, 0), time.Second), start)
	c.want(t, 110, 0, 1)
	c.setOwner(cluster, Service{"other", "web"})
	c.end(ended(connectionTo(cluster, 1, time.Second, 200, 0), time.Second), start)
	c.want(t, 210, 0, 2)
	c.end(ended(connectionTo(cluster, 3, time.Second, 7, 0), time.Second), start)
	c.want(t, 210, 0, 2)
	stranger := connectionTo(cluster, 4, time.Second, 1000, 0)
	stranger.Original.Destination = netip.MustParseAddrPort("10.96.0.81:80")
	c.end(ended(stranger, time.Second), start)
	if got := len(c.usages); got != 2 {
		t.Errorf("%d Services have counts", got)
	}
	later := time.Now().Add(lostFor + time.Second)
	c.lookAt(later)
	c.end(ended(connectionTo(nodePort, 5, time.Second, 1000, 0), time.Second), later)
	c.want(t, 210, 0, 2)
	if len(c.owners.lost) != 0 || len(c.owners.list) != 0 {
		t.Errorf("%d frontends that were lost are kept", len(c.owners.list))
	}
	c.lookAt(later.Add(idleFor))
	if c.usages[web] != nil || c.usages[Service{"other", "web"}] == nil {
		t.Errorf("%v", c.Usages())
	}
}

// TestEndDuringLook: a look may read what is older than an end.
func TestEndDuringLook(t *testing.T) {
	c := newCounter()
	c.lookAt(start, connectionTo(cluster, 1, time.Second, 100, 0))
	c.ended = make(map[connection]struct{})
	c.end(ended(connectionTo(cluster, 1, time.Second, 300, 0), time.Second), start)
	c.end(ended(connectionTo(cluster, 2, time.Second, 50, 0), time.Second), start)
	c.see(connectionTo(cluster, 1, time.Second, 200, 0), start)
	c.see(connectionTo(cluster, 2, time.Second, 40, 0), start)
	dying := connectionTo(cluster, 3, time.Second, 40, 0)
	dying.Status |= conntrack.Dying
	c.see(dying, start)
	c.tidy(true, start)
	c.want(t, 350, 0, 2)
	if len(c.live) > 0 {
		t.Errorf("%d connections last", len(c.live))
	}
}

// TestLostEnd: what a connection had moved until a look saw it last was counted, and its place is free again.
func TestLostEnd(t *testing.T) {
	c := newCounter()
	c.lookAt(start, connectionTo(cluster, 1, time.Second, 100, 0))
	for range missingLooks - 1 {
		c.lookAt(start)
	}
	if len(c.live) != 1 {
		t.Error("it is forgotten too soon")
	}
	c.lookAt(start)
	c.want(t, 100, 0, 1)
	if len(c.live) != 0 {
		t.Error("it is kept")
	}
	for range 2 * missingLooks { // looks that saw a part only do not count
		c.ended = make(map[connection]struct{})
		c.see(connectionTo(cluster, 2, time.Second, 10, 0), start)
		c.tidy(false, start)
	}
	if len(c.live) != 1 {
		t.Error("a part was taken for all")
	}
}

// TestCountersAreReset: another program has set the kernel's counters to zero.
func TestCountersAreReset(t *testing.T) {
	c := newCounter()
	c.lookAt(start, connectionTo(cluster, 1, time.Second, 100, 50))
	c.lookAt(start, connectionTo(cluster, 1, time.Second, 30, 60))
	c.want(t, 130, 60, 0)
}

// TestNamespaceWithManyServices: it does not use up what others need, and nothing is missing in the sum.
func TestNamespaceWithManyServices(t *testing.T) {
	c := newCounter()
	at := func(i int) tracker.Frontend {
		addr := netip.AddrFrom4([4]byte{10, 97, byte(i >> 8), byte(i)})
		return tracker.Frontend{Address: addr, Protocol: tracker.TCP, Port: 80}
	}
	const many = 10_000
	for i := range many {
		c.setOwner(at(i), Service{"greedy", fmt.Sprint("s", i)})
		c.end(ended(connectionTo(at(i), uint32(i), time.Second, 10, 0), time.Second), start)
	}
	if got := c.shares["greedy"].services; got > mostServices/2 {
		t.Errorf("it has %d places", got)
	}
	c.end(ended(connectionTo(cluster, 1, time.Second, 10, 0), time.Second), start)
	c.want(t, 10, 0, 1)
	var sum uint64
	for _, u := range c.Usages() {
		sum += u.Sent.Bytes
	}
	if rest := c.usages[Rest]; sum != 10*(many+1) || rest == nil || rest.Sent.Bytes < sum/2 {
		t.Errorf("%d in all, %+v in the rest", sum, rest)
	}
	// A thousand namespaces want as much as they can get: each has something.
	for ns := range 1000 {
		for i := range 5 {
			service := Service{fmt.Sprint("ns", ns), fmt.Sprint("s", i)}
			c.setOwner(at(many+5*ns+i), service)
			c.end(ended(connectionTo(at(many+5*ns+i), 1, time.Second, 10, 0), time.Second), start)
		}
	}
	if got := c.State().Services; got > mostServices {
		t.Errorf("%d Services have places", got)
	}
}

// TestManyConnections: those of a namespace that have no place count when they end.
func TestManyConnections(t *testing.T) {
	c := newCounter()
	const many = mostConnections
	list := make([]*conntrack.Flow, many)
	for i := range list {
		list[i] = connectionTo(cluster, uint32(i), time.Second, 10, 0)
	}
	c.lookAt(start, list...)
	other := tracker.Frontend{Address: netip.MustParseAddr("10.96.0.81"), Protocol: tracker.UDP, Port: 53}
	c.setOwner(other, Service{"dns", "dns"})
	c.lookAt(start, connectionTo(other, many, time.Second, 10, 0))
	if known := c.shares["shop"].connections; known > many/2 || c.shares["dns"].connections != 1 {
		t.Errorf("%d and %d connections are known", known, c.shares["dns"].connections)
	}
	for _, f := range list {
		c.end(ended(f, time.Second), start)
	}
	c.want(t, 10*many, 0, many)
}

// TestLoopDoesNotWait: the sync loop says who loses which frontend while a walk through all connections is under way.
func TestLoopDoesNotWait(t *testing.T) {
	c := newCounter()
	c.mu.Lock() // as tidy holds it
	defer c.mu.Unlock()
	done := make(chan struct{})
	go func() {
		c.Lose(cluster, web)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(lab.Patience):
		t.Error("it waits")
	}
}

// loseMany lets shop/web have many frontends and lose them.
func (c *Counter) loseMany(many int) {
	for i := range many {
		at := tracker.Frontend{Address: lab.After(cluster.Address, 1+i), Protocol: tracker.TCP, Port: 80}
		c.setOwner(at, web)
		c.setOwner(at, Service{})
	}
}

// TestLostFrontendsOfNeighbours: a namespace that loses more frontends than are remembered leaves others theirs.
func TestLostFrontendsOfNeighbours(t *testing.T) {
	c := newCounter()
	c.loseMany(mostLost + 1)
	other := tracker.Frontend{Address: netip.MustParseAddr("10.96.0.81"), Protocol: tracker.UDP, Port: 53}
	c.setOwner(other, Service{"dns", "dns"})
	c.setOwner(other, Service{})
	if known := c.owners.by["shop"]; known > mostLost/2 || c.owners.by["dns"] != 1 || c.owners.lost[other] == nil {
		t.Errorf("%d and %d lost frontends are remembered", known, c.owners.by["dns"])
	}
}

// TestManyFrontendsAreGone: all are forgotten, in several turns.
func TestManyFrontendsAreGone(t *testing.T) {
	c := newCounter()
	const many = 2*mostForgotten + 1
	c.loseMany(many)
	if got := len(c.owners.lost); got != many {
		t.Errorf("%d frontends were lost", got)
	}
	c.lookAt(time.Now().Add(lostFor + time.Second))
	if len(c.owners.lost) > 0 || len(c.owners.list) > 0 || len(c.owners.by) > 0 {
		t.Errorf("%d frontends that were lost are kept", len(c.owners.list))
	}
}

// TestRandomConnections lets connections come, move bytes and go while looks are under way, some of which read what is
// older than ends: the sum is what they have moved since the start.
func TestRandomConnections(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 1))
		c := newCounter()
		var table []*conntrack.Flow
		var want, ends uint64
		id := uint32(0)
		open := func(after time.Duration, bytes uint64) {
			id++
			table = append(table, connectionTo([]tracker.Frontend{cluster, nodePort}[r.IntN(2)], id, after, bytes, 0))
		}
		for range 20 {
			open(-time.Minute, 10*uint64(r.IntN(100)))
		}
		step := func() {
			switch n := r.IntN(10); {
			case n < 3:
				bytes := 10 * uint64(r.IntN(100))
				open(time.Second, bytes)
				want += bytes
			case len(table) == 0:
			case n < 7:
				i, more := r.IntN(len(table)), 10*uint64(r.IntN(100))
				grown := *table[i]
				grown.Sent.Bytes += more
				grown.Sent.Packets += more / 10
				table[i] = &grown
				want += more
			default:
				i := r.IntN(len(table))
				c.end(ended(table[i], time.Minute), start)
				table = slices.Delete(table, i, i+1)
				ends++
			}
		}
		c.lookAt(start, table...)
		for range 20 {
			for range r.IntN(30) {
				step()
			}
			c.ended = make(map[connection]struct{})
			for _, f := range slices.Clone(table) { // as they are now
				if r.IntN(3) == 0 {
					step()
				}
				c.see(f, start)
			}
			c.tidy(true, start)
			c.lookAt(start, table...)
			if c.want(t, want, 0, ends); t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
}
