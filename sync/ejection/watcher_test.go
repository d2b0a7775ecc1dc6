package ejection

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/conntrack"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

// webPort is the port of the Service of these tests.
var webPort = tracker.PortID{Namespace: "shop", Service: "web", Protocol: tracker.TCP, Family: tracker.IPv4}

var (
	clusterIP   = netip.MustParseAddr("10.96.0.80")
	webFrontend = tracker.Frontend{Address: clusterIP, Protocol: tracker.TCP, Port: 80}
	node        = netip.MustParseAddr("192.0.2.1") // where node ports are reached
)

// committed says which Service ports have which frontends.
type committed map[tracker.Frontend]tracker.PortID

func (c committed) Owner(at tracker.Frontend) (tracker.PortID, bool) {
	id, ok := c[at]
	return id, ok
}

func (c committed) NodePortAddress(addr netip.Addr) bool { return addr == node }

func endpointAt(n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(n >> 8), byte(n)}), 8080)
}

func clientAt(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

// never is how long a connection waits for an endpoint that does not answer.
const never = time.Hour

// A connection is one of the world's. It was begun, and will be answered.
type connection struct {
	conntrack.Flow
	begun, answered time.Time
}

// A world has a Service, clients that connect to it, and a Watcher. Its clock is its own. It is the Watcher's Table.
type world struct {
	*testing.T
	*rand.Rand
	now     time.Time
	tracker *tracker.Tracker
	watcher *Watcher
	port    *tracker.ServicePort
	flows   []*connection
	next    uint32
	found   []Endpoint
	looks   time.Time // when the next look is

	// answer says how long an endpoint takes to answer a client, never if it does not. connect is called each 10 ms.
	answer  func(endpoint int, client int) time.Duration
	connect func()
	dumps   int // of connections with an answer

	affinity bool  // clients keep their endpoints
	failure  error // of Visit
	misses   bool  // Visit sees only some of the connections without an answer
	kept     map[int]netip.AddrPort
}

func newWorld(t *testing.T, endpoints int) *world {
	w := &world{T: t, Rand: rand.New(rand.NewPCG(1, 2)), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	w.tracker = tracker.New(tracker.Config{NodeName: "node-a", Clock: func() time.Time { return w.now }})
	w.watcher = New(Options{Log: zap.NewNop(), Committed: committed{webFrontend: webPort},
		Open:     func() (Table, error) { return w, nil },
		LeaveOut: w.tracker.LeaveOut, Silent: w.tracker.Silent,
		Found: func(e Endpoint) { w.found = append(w.found, e) }})
	w.answer = func(int, int) time.Duration { return 0 }
	w.connect = func() {}
	w.kept = make(map[int]netip.AddrPort)
	w.looks = w.now
	w.publish(endpoints)
	w.commit()
	return w
}

// newSilentWorld returns a world with three endpoints, of which the second one does not answer and is left out.
func newSilentWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 3)
	w.answer = func(endpoint, _ int) time.Duration {
		if endpoint == 1 {
			return never
		}
		return 0
	}
	w.connect = every(2, func() { w.open(w.IntN(20)) })
	w.run(6 * time.Second)
	if len(w.port.Cluster) != 2 {
		t.Fatalf("%v: endpoint 1 does not answer", w.port.Cluster)
	}
	return w
}

// publish gives the Service so many endpoints, some of them not ready.
func (w *world) publish(endpoints int, unready ...int) {
	err := w.tracker.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web",
			Annotations: map[string]string{"kube-nft.io/eject": "true"}},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP.String(), ClusterIPs: []string{clusterIP.String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Protocol: "TCP", Port: 80}}},
	})
	if err != nil {
		w.Fatal(err)
	}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}},
	}
	for n := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{endpointAt(n).Addr().String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(!slices.Contains(unready, n))}})
	}
	if err := w.tracker.SetSlice(slice); err != nil {
		w.Fatal(err)
	}
}

// commit hands what has changed to the Watcher.
func (w *world) commit() {
	d := w.tracker.Take()
	for _, p := range d.Changed {
		if p.ID == webPort {
			w.port = p
		}
	}
	w.watcher.Committed(&d)
}

// open makes a client connect.
func (w *world) open(client int) {
	if len(w.port.Cluster) == 0 {
		return
	}
	list := w.port.Endpoints(w.port.Cluster)
	endpoint := list[w.IntN(len(list))]
	if w.affinity {
		if kept := w.kept[client]; slices.Contains(list, kept) {
			endpoint = kept
		}
		w.kept[client] = endpoint
	}
	b := endpoint.Addr().As4()
	w.next++
	from := netip.AddrPortFrom(clientAt(client), uint16(1024+w.next%60000))
	c := &connection{begun: w.now, answered: w.now.Add(w.answer(int(b[2])<<8+int(b[3]), client))}
	c.Family, c.ID = tracker.IPv4, w.next*2654435761
	c.Original = conntrack.Tuple{Source: from, Destination: netip.AddrPortFrom(clusterIP, 80), Protocol: tracker.TCP}
	c.Reply = conntrack.Tuple{Source: endpoint, Destination: from, Protocol: tracker.TCP}
	w.flows = append(w.flows, c)
}

// Visit implements Table.
func (w *world) Visit(_ context.Context, filter conntrack.Filter, _ int, visit func(*conntrack.Flow)) (bool, error) {
	if filter.Has&conntrack.SeenReply != 0 {
		w.dumps++
	}
	if w.failure != nil {
		return false, w.failure
	}
	for _, c := range w.flows {
		if w.misses && filter.Lacks != 0 && w.IntN(2) == 0 {
			continue
		}
		c.Status, c.TCPState = conntrack.DestinationNAT, conntrack.SYNSent
		if !w.now.Before(c.answered) {
			c.Status, c.TCPState = c.Status|conntrack.SeenReply, 3
		}
		if filter.Matches(&c.Flow) {
			visit(&c.Flow)
		}
	}
	return !w.misses || filter.Lacks == 0, nil
}

// Delete implements Table: the client sends its SYN again, and gets another endpoint.
func (w *world) Delete(_ context.Context, flows []conntrack.Flow, _ func(*conntrack.Flow) bool) (int, error) {
	for _, flow := range flows {
		w.flows = slices.DeleteFunc(w.flows, func(c *connection) bool { return c.ID == flow.ID })
	}
	return len(flows), nil
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(10 * time.Millisecond) {
		w.connect()
		if w.now.Before(w.looks) {
			continue
		}
		w.watcher.look(w.Context(), w.now)
		w.looks = w.now.Add(w.watcher.interval(w.now))
		w.commit()
		w.flows = slices.DeleteFunc(w.flows, func(c *connection) bool { return w.now.Sub(c.begun) > 30*time.Second })
	}
}

// every calls f once in so many of the calls of connect.
func every(n int, f func()) func() {
	calls := 0
	return func() {
		if calls++; calls%n == 0 {
			f()
		}
	}
}

// foundAt lists the endpoints that were left out, each once.
func (w *world) foundAt() (list []netip.AddrPort) {
	for _, e := range w.found {
		if !slices.Contains(list, e.Endpoint) {
			list = append(list, e.Endpoint)
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}

// lossy is how long a handshake takes if one of 20 packets is lost: it is repeated after 1, 3 and 7 seconds.
func (w *world) lossy() time.Duration {
	const bothArrive = .95 * .95
	for _, at := range []time.Duration{0, time.Second, 3 * time.Second, 7 * time.Second} {
		if w.Float64() < bothArrive {
			return at
		}
	}
	return never
}

// TestVerdicts says which endpoints are left out in a minute of certain troubles.
func TestVerdicts(t *testing.T) {
	type scenario struct {
		name      string
		endpoints int
		clients   int
		every     int // 10 ms between connections
		answer    func(w *world, endpoint, client int) time.Duration
		want      []int // endpoints that are left out at some time
		within    time.Duration
		affinity  bool
	}
	dead := func(endpoints ...int) func(*world, int, int) time.Duration {
		return func(_ *world, endpoint, _ int) time.Duration {
			if slices.Contains(endpoints, endpoint) {
				return never
			}
			return 0
		}
	}
	// later begins after five seconds.
	start := newWorld(t, 1).now
	later := func(answer func(*world, int, int) time.Duration) func(*world, int, int) time.Duration {
		return func(w *world, endpoint, client int) time.Duration {
			if w.now.Sub(start) < 5*time.Second {
				return 0
			}
			return answer(w, endpoint, client)
		}
	}
	for _, s := range []scenario{
		{name: "one of 500", endpoints: 500, clients: 50, every: 1, answer: dead(1), want: []int{1},
			within: 30 * time.Second},
		{name: "affinity, one dies", endpoints: 3, clients: 20, every: 1, answer: later(dead(1)), want: []int{1},
			within: 10 * time.Second, affinity: true},
		{name: "affinity, one has never answered", endpoints: 3, clients: 20, every: 1, answer: dead(1), affinity: true},
		{name: "affinity, all die", endpoints: 3, clients: 20, every: 1, answer: later(dead(0, 1, 2)), affinity: true},
		{name: "affinity, a client is blocked", endpoints: 3, clients: 20, every: 1, affinity: true,
			answer: later(func(_ *world, _, client int) time.Duration {
				if client == 0 {
					return never
				}
				return 0
			})},
		{name: "affinity, clients are blocked", endpoints: 3, clients: 30, every: 1, affinity: true,
			answer: later(func(_ *world, _, client int) time.Duration {
				if client < 15 {
					return never
				}
				return 0
			})},
		{name: "affinity, loss of 5 %", endpoints: 3, clients: 20, every: 1, affinity: true,
			answer: func(w *world, _, _ int) time.Duration { return w.lossy() }},
		{name: "one of three, many clients", endpoints: 3, clients: 20, every: 1, answer: dead(1), want: []int{1},
			within: 4 * time.Second},
		{name: "one of three, one client", endpoints: 3, clients: 1, every: 10, answer: dead(1), want: []int{1},
			within: 6 * time.Second},
		{name: "one of three, few connections", endpoints: 3, clients: 3, every: 50, answer: dead(1), want: []int{1},
			within: 15 * time.Second},
		{name: "one of two", endpoints: 2, clients: 5, every: 5, answer: dead(0), want: []int{0}, within: 5 * time.Second},
		{name: "the only one", endpoints: 1, clients: 5, every: 5, answer: dead(0)},
		{name: "all", endpoints: 3, clients: 5, every: 5, answer: dead(0, 1, 2)},
		{name: "40 of 100", endpoints: 100, clients: 50, every: 1, want: sequence(40), within: time.Minute,
			answer: func(_ *world, endpoint, _ int) time.Duration {
				if endpoint < 40 {
					return never
				}
				return 0
			}},
		{name: "answers after 1.5 s", endpoints: 3, clients: 5, every: 5,
			answer: func(_ *world, endpoint, _ int) time.Duration {
				if endpoint == 1 {
					return 1500 * time.Millisecond
				}
				return 0
			}},
		{name: "a client is blocked", endpoints: 3, clients: 4, every: 5,
			answer: func(_ *world, _, client int) time.Duration {
				if client == 0 {
					return never
				}
				return 0
			}},
		{name: "blocked clients, others rarely", endpoints: 3, clients: 30, every: 10,
			answer: func(_ *world, _, client int) time.Duration {
				if client < 28 {
					return never
				}
				return 0
			}},
		{name: "a client is blocked at one endpoint", endpoints: 3, clients: 4, every: 5,
			answer: func(_ *world, endpoint, client int) time.Duration {
				if client == 0 && endpoint == 1 {
					return never
				}
				return 0
			}},
		{name: "two clients are blocked at one endpoint, and others rare", endpoints: 3, clients: 3, every: 25,
			want: []int{1}, within: 30 * time.Second,
			answer: func(_ *world, endpoint, client int) time.Duration {
				if client < 2 && endpoint == 1 {
					return never
				}
				return 0
			}},
		{name: "a connection in five seconds", endpoints: 2, clients: 5, every: 250, answer: dead(1), want: []int{1},
			within: 50 * time.Second},
		{name: "a connection in ten seconds", endpoints: 2, clients: 5, every: 1000, answer: dead(1)},
		{name: "loss of 5 %", endpoints: 3, clients: 10, every: 1,
			answer: func(w *world, _, _ int) time.Duration { return w.lossy() }},
		{name: "loss of 5 %, one client", endpoints: 3, clients: 1, every: 10,
			answer: func(w *world, _, _ int) time.Duration { return w.lossy() }},
		{name: "loss of 5 %, few connections", endpoints: 20, clients: 3, every: 30,
			answer: func(w *world, _, _ int) time.Duration { return w.lossy() }},
		{name: "loss of 5 %, and one is dead", endpoints: 3, clients: 2, every: 1, want: []int{1}, within: 6 * time.Second,
			answer: func(w *world, endpoint, _ int) time.Duration {
				if endpoint == 1 {
					return never
				}
				return w.lossy()
			}},
		{name: "flaps each second", endpoints: 3, clients: 5, every: 5,
			answer: func(w *world, endpoint, _ int) time.Duration {
				if endpoint == 1 && w.now.Second()%2 == 0 {
					return time.Second
				}
				return 0
			}},
	} {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t, s.endpoints)
			w.affinity = s.affinity
			w.answer = func(endpoint, client int) time.Duration { return s.answer(w, endpoint, client) }
			w.connect = every(s.every, func() { w.open(w.IntN(s.clients)) })
			began := w.now
			w.run(time.Minute)
			var want []netip.AddrPort
			for _, n := range s.want {
				want = append(want, endpointAt(n))
			}
			if got := w.foundAt(); !slices.Equal(got, want) {
				t.Errorf("left out %v, want %v", got, want)
			}
			for _, e := range w.found {
				if e.Times == 1 && e.Since.Sub(began) > s.within {
					t.Errorf("%v was left out after %v, want %v", e.Endpoint, e.Since.Sub(began), s.within)
				}
			}
		})
	}
}

func sequence(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

// TestTerms: an endpoint is tried again after 10 s, then after twice as long, up to a minute, by few connections. When
// it answers, it stays.
func TestTerms(t *testing.T) {
	w := newWorld(t, 3)
	down, lost := true, 0
	w.answer = func(endpoint, _ int) time.Duration {
		if endpoint == 1 && down {
			lost++
			return never
		}
		return 0
	}
	w.connect = func() { w.open(w.IntN(20)) } // 100 a second
	w.run(6 * time.Second)
	first := lost
	w.run(4 * time.Minute)
	var waits []time.Duration
	for i, e := range w.found {
		if e.Times != i+1 {
			t.Errorf("%d. time: %+v", i+1, e)
		}
		waits = append(waits, e.Until.Sub(e.Since))
	}
	want := []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, time.Minute, time.Minute, time.Minute}
	if !slices.Equal(waits, want) {
		t.Errorf("left out for %v, want %v", waits, want)
	}
	if trials := len(w.found) - 1; lost-first > 12*trials {
		t.Errorf("%d trials took %d connections", trials, lost-first)
	}
	down = false
	w.run(3 * time.Minute)
	if len(w.found) != len(want) || len(w.watcher.Endpoints()) > 0 || len(w.port.Cluster) != 3 {
		t.Errorf("after its return: %v, %v", w.watcher.Endpoints(), w.port.Cluster)
	}
}

// TestKubernetesDecides: an endpoint of which Kubernetes says something new is in its Service at once.
func TestKubernetesDecides(t *testing.T) {
	w := newSilentWorld(t)
	if shown := w.watcher.Endpoints(); len(shown) != 1 || shown[0].Endpoint != endpointAt(1) || shown[0].Clients < 2 {
		t.Fatalf("%+v", shown)
	}
	w.publish(3, 1)
	w.commit()
	w.publish(3)
	w.commit()
	w.answer = func(int, int) time.Duration { return 0 }
	if len(w.port.Cluster) != 3 {
		t.Errorf("%v: the endpoint was ready again", w.port.Cluster)
	}
	w.run(30 * time.Second)
	if len(w.found) != 1 || len(w.watcher.Endpoints()) > 0 {
		t.Errorf("found %v, now %v", w.found, w.watcher.Endpoints())
	}
}

// TestUnreadable: what was left out comes back when connection tracking cannot be read any more.
func TestUnreadable(t *testing.T) {
	w := newSilentWorld(t)
	w.failure = errors.New("no buffer space available")
	w.run(2 * time.Second)
	if len(w.port.Cluster) != 3 || len(w.watcher.Endpoints()) > 0 {
		t.Errorf("%v, left out %v", w.port.Cluster, w.watcher.Endpoints())
	}
	w.failure = nil
	w.run(6 * time.Second)
	if len(w.port.Cluster) != 2 {
		t.Errorf("%v: endpoint 1 does not answer, and this can be seen again", w.port.Cluster)
	}
}

// TestIncompleteReading: a connection that a reading misses was not answered.
func TestIncompleteReading(t *testing.T) {
	w := newWorld(t, 3)
	lost := 0
	w.answer = func(endpoint, _ int) time.Duration {
		if endpoint == 1 {
			lost++
			return never
		}
		return 0
	}
	w.misses, w.connect = true, func() { w.open(w.IntN(20)) }
	w.run(2 * time.Minute)
	if got := w.foundAt(); !slices.Equal(got, []netip.AddrPort{endpointAt(1)}) || lost > 200 {
		t.Errorf("left out %v; %d connections were lost", got, lost)
	}
}

// TestPortComesAgain: a port that was away for a while has all its endpoints.
func TestPortComesAgain(t *testing.T) {
	w := newSilentWorld(t)
	w.connect = func() {}
	if err := w.tracker.SetService(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web",
			Annotations: map[string]string{"kube-nft.io/eject": "true"}},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP.String(), ClusterIPs: []string{clusterIP.String()},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports:      []corev1.ServicePort{{Name: "other", Protocol: "TCP", Port: 80}}},
	}); err != nil {
		t.Fatal(err)
	}
	w.commit()
	w.run(2 * time.Second)
	w.publish(3)
	w.commit()
	w.run(2 * time.Second)
	if len(w.port.Cluster) != 3 {
		t.Errorf("%v: the port is new", w.port.Cluster)
	}
}

// TestConnectionsAreSaved: connections that wait for an endpoint that is left out go to another one.
func TestConnectionsAreSaved(t *testing.T) {
	w := newSilentWorld(t)
	for _, c := range w.flows {
		if c.Endpoint() == endpointAt(1) && w.now.Sub(c.begun) > time.Second {
			t.Errorf("a connection waits since %v", c.begun)
		}
	}
}

// TestAnswersAreReadOnSuspicion: while all connections are answered within a second, only those without an answer are
// read.
func TestAnswersAreReadOnSuspicion(t *testing.T) {
	for _, after := range []time.Duration{0, 900 * time.Millisecond} {
		w := newWorld(t, 3)
		w.answer = func(int, int) time.Duration { return after }
		w.connect = func() { w.open(w.IntN(20)) }
		w.run(10 * time.Second)
		if w.dumps > 0 || after == 0 && len(w.watcher.suspects) > 0 {
			t.Errorf("answers after %v: %d readings, %d suspects", after, w.dumps, len(w.watcher.suspects))
		}
	}
}

// TestOnlyPortsThatAskAreWatched: a connection counts for the port that has its frontend, if that asks for it.
func TestOnlyPortsThatAskAreWatched(t *testing.T) {
	other, shared := netip.MustParseAddr("10.96.7.1"), netip.MustParseAddr("203.0.113.7")
	older := webPort
	older.Service = "older"
	at := func(addr netip.Addr, port uint16) tracker.Frontend {
		return tracker.Frontend{Address: addr, Protocol: tracker.TCP, Port: port}
	}
	w := New(Options{Committed: committed{webFrontend: webPort, at(shared, 80): older,
		tracker.NodePort(tracker.IPv4, tracker.TCP, 30080): webPort}})
	port := &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: webPort, ClusterIP: clusterIP, Port: 80, NodePort: 30080,
		ExternalIPs: []netip.Addr{shared}, Settings: tracker.Settings{Eject: true}}, Lists: new(tracker.Lists)}
	w.Committed(&tracker.Delta{Changed: []*tracker.ServicePort{
		port, {PortSpec: &tracker.PortSpec{ID: older, Port: 80, ExternalIPs: []netip.Addr{shared}},
			Lists: new(tracker.Lists)}}})
	for _, tt := range []struct {
		at   netip.Addr
		port uint16
		want bool
	}{{clusterIP, 80, true}, {node, 30080, true}, {node, 80, false}, {other, 30080, false}, {clusterIP, 30080, false},
		{shared, 80, false}} {
		flow := &conntrack.Flow{Family: tracker.IPv4}
		flow.Original = conntrack.Tuple{Destination: netip.AddrPortFrom(tt.at, tt.port), Protocol: tracker.TCP}
		if got := w.portOf(flow) != nil; got != tt.want {
			t.Errorf("a connection to %v port %d counts: %v, want %v", tt.at, tt.port, got, tt.want)
		}
	}
}

// TestFloodIsBounded: connections without an answer take bounded memory, and those of one namespace leave room.
func TestFloodIsBounded(t *testing.T) {
	w := newWorld(t, 3)
	w.answer = func(int, int) time.Duration { return never }
	for range 20 * mostOfPort {
		w.open(w.IntN(200))
	}
	w.run(time.Second)
	if n := len(w.watcher.suspects[webPort].syns); n != mostOfPort {
		t.Errorf("%d connections are kept, want %d", n, mostOfPort)
	}
}

// TestNamespaceIsBounded: of a namespace whose ports are flooded, some connections are kept, and another namespace
// loses none of its own by that.
func TestNamespaceIsBounded(t *testing.T) {
	const ports = 2 * mostOfNamespace / mostOfPort
	w, table, delta := newCrowd(2*ports, 2)
	for i := range ports * mostOfPort {
		f := *table.flows[6*(i%ports)] // of shop-0
		f.ID += uint32(100_000 + i)
		table.flows = append(table.flows, &f)
	}
	slices.Reverse(table.flows)
	w.Committed(delta)
	w.look(t.Context(), time.Now())
	kept := make(map[string]int)
	for id, s := range w.suspects {
		kept[id.Namespace] += len(s.syns)
	}
	if kept["shop-0"] != mostOfNamespace || kept["shop-1"] != ports {
		t.Errorf("%v connections are kept, want %d and %d", kept, mostOfNamespace, ports)
	}
}

// TestLeftOutOfNamespaceIsBounded: of each namespace, so many endpoints are left out and no more.
func TestLeftOutOfNamespaceIsBounded(t *testing.T) {
	w, table, delta := newCrowd(2*leftOutNamespace+20, 2)
	for _, f := range table.flows {
		if f.Status&conntrack.SeenReply != 0 { // clients that are answered wait, too
			waits := *f
			waits.ID, waits.Status, waits.TCPState = f.ID+1_000_000, conntrack.DestinationNAT, conntrack.SYNSent
			waits.Reply.Source = endpointAt(1)
			table.flows = append(table.flows, &waits)
		}
	}
	w.Committed(delta)
	now := time.Now()
	for range 5 {
		w.look(t.Context(), now)
		for _, f := range table.flows {
			if f.Status&conntrack.SeenReply != 0 { // new connections
				f.ID += 10_000_000
			}
		}
		now = now.Add(lookInterval)
	}
	out := make(map[string]int)
	for _, e := range w.Endpoints() {
		out[e.Port.Namespace]++
	}
	if out["shop-0"] != leftOutNamespace || out["shop-1"] != leftOutNamespace {
		t.Errorf("%v endpoints are left out, want %d of each namespace", out, leftOutNamespace)
	}
}

// A sleeper is a Table that counts what it is asked, and takes long for it.
type sleeper struct {
	visits int
	took   time.Duration
	err    error
}

func (s *sleeper) Visit(context.Context, conntrack.Filter, int, func(*conntrack.Flow)) (bool, error) {
	s.visits++
	time.Sleep(s.took)
	return true, s.err
}

func (s *sleeper) Delete(context.Context, []conntrack.Flow, func(*conntrack.Flow) bool) (int, error) {
	return 0, nil
}

// TestShareOfTime: looks take a quarter of the time at most, and no look is made while no port asks for one.
func TestShareOfTime(t *testing.T) {
	for _, tt := range []struct {
		asks   bool
		took   time.Duration
		err    error
		visits int
	}{
		{asks: false}, {asks: true, took: 10 * time.Millisecond, visits: 60},
		{asks: true, took: 3 * time.Second, visits: 5}, {asks: true, err: errors.New("no"), visits: 60},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := &sleeper{took: tt.took, err: tt.err}
				began := time.Now()
				w := New(Options{Log: zap.NewNop(), Committed: committed{}, Open: func() (Table, error) { return table, nil },
					CPUTime: func() time.Duration { return time.Since(began) }})
				ctx, stop := context.WithTimeout(t.Context(), time.Minute-time.Millisecond)
				defer stop()
				port := &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: webPort, ClusterIP: clusterIP, Port: 80,
					Settings: tracker.Settings{Eject: tt.asks}}, Lists: new(tracker.Lists)}
				udp := port.With(func(spec *tracker.PortSpec) { spec.ID.Protocol, spec.Settings.Eject = tracker.UDP, true })
				go func() {
					time.Sleep(time.Millisecond)
					w.Committed(&tracker.Delta{Changed: []*tracker.ServicePort{port, udp}})
				}()
				w.Run(ctx)
				if table.visits != tt.visits {
					t.Errorf("%d looks, want %d", table.visits, tt.visits)
				}
			})
		})
	}
}

// A crowd is a Table with some connections, and counts how often it is read.
type crowd struct {
	flows []*conntrack.Flow
	reads int
}

func (c *crowd) Visit(_ context.Context, filter conntrack.Filter, _ int, visit func(*conntrack.Flow)) (bool, error) {
	c.reads++
	for _, f := range c.flows {
		if filter.Matches(f) {
			visit(f)
		}
	}
	return true, nil
}

func (c *crowd) Delete(context.Context, []conntrack.Flow, func(*conntrack.Flow) bool) (int, error) {
	return 0, nil
}

// newCrowd returns a Watcher that so many Services of so many namespaces ask, each with three endpoints, of which one
// has answered two connections and another one has not answered one.
func newCrowd(services, namespaces int) (*Watcher, *crowd, *tracker.Delta) {
	table, owners := &crowd{}, make(committed)
	w := New(Options{Log: zap.NewNop(), Committed: owners, Open: func() (Table, error) { return table, nil },
		LeaveOut: func(tracker.PortID, []netip.AddrPort) {}, Silent: func(tracker.PortID) []netip.AddrPort { return nil }})
	delta := &tracker.Delta{}
	for n := range services {
		id := webPort
		id.Namespace, id.Service = fmt.Sprint("shop-", n%namespaces), fmt.Sprint("web-", n)
		port := &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: id, Port: 80,
			ClusterIP: netip.AddrFrom4([4]byte{10, 97, byte(n >> 8), byte(n)}), Settings: tracker.Settings{Eject: true}},
			Lists: &tracker.Lists{Cluster: []netip.AddrPort{endpointAt(0), endpointAt(1), endpointAt(2)}}}
		delta.Changed = append(delta.Changed, port)
		owners[tracker.Frontend{Address: port.ClusterIP, Protocol: tracker.TCP, Port: 80}] = id
		for i := range 3 {
			from := netip.AddrPortFrom(clientAt(i), uint16(1024+n%60000))
			f := &conntrack.Flow{Family: tracker.IPv4, ID: uint32(3*n + i), Status: conntrack.DestinationNAT,
				TCPState: conntrack.SYNSent, Original: conntrack.Tuple{Source: from, Protocol: tracker.TCP,
					Destination: netip.AddrPortFrom(port.ClusterIP, 80)}}
			f.Reply = conntrack.Tuple{Source: endpointAt(1), Destination: from, Protocol: tracker.TCP}
			if i > 0 {
				f.Status, f.TCPState, f.Reply.Source = f.Status|conntrack.SeenReply, 3, endpointAt(2)
			}
			table.flows = append(table.flows, f)
		}
	}
	return w, table, delta
}

// TestManyServicesAsk: a look reads the connections once, however many Services ask, and those with an answer once.
func TestManyServicesAsk(t *testing.T) {
	const services = 10_000
	w, table, delta := newCrowd(services, 100)
	w.Committed(delta)
	now := time.Now()
	for n := range 3 {
		w.look(t.Context(), now.Add(time.Duration(n)*lookInterval))
	}
	if table.reads != 3+2 || len(w.suspects) != services || len(w.Endpoints()) > 0 {
		t.Errorf("%d readings, %d suspects, %v", table.reads, len(w.suspects), w.Endpoints())
	}
}

// TestManyAnswersAndSuspicions: the time to find endpoints that do not answer is no product of their number and of the
// number of those that have answered.
func TestManyAnswersAndSuspicions(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := time.Now()
	took := func(silent int) time.Duration {
		s := newSuspect(&tracker.ServicePort{})
		s.begin()
		s.compares = true
		for n := range 50_000 {
			s.answered[endpointAt(n)] = now.Add(-time.Minute)
		}
		for n := range silent {
			endpoint := netip.AddrPortFrom(endpointAt(n).Addr(), 9999)
			for from := range 2 {
				id := synID{uint32(2*n + from), endpoint}
				s.syns[id] = &syn{client: clientAt(from), first: now.Add(-3 * time.Second), last: now}
				s.clients[clientAt(from)] = &client{answered: true}
			}
		}
		shortest := time.Hour
		for range 5 {
			began := proxysync.ThreadTime()
			if list := s.verdicts(now); len(list) > 0 {
				t.Errorf("%d endpoints are to be left out although no other one answers", len(list))
			}
			shortest = min(shortest, proxysync.ThreadTime()-began)
		}
		return shortest
	}
	if few, many := took(50), took(500); many > 4*few {
		t.Errorf("%v for 500 endpoints that do not answer, %v for 50", many, few)
	}
}

// BenchmarkLook10000Services is a look at 30,000 connections, of which 10,000 wait, to 10,000 Services, without the
// kernel's part.
func BenchmarkLook10000Services(b *testing.B) {
	w, _, delta := newCrowd(10_000, 100)
	w.Committed(delta)
	now := time.Now()
	w.look(b.Context(), now)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(lookInterval)
		w.look(b.Context(), now)
	}
}

// BenchmarkNotAsked is what a commit of a Service that does not ask costs, among 10,000.
func BenchmarkNotAsked(b *testing.B) {
	w, _, delta := newCrowd(10_000, 100)
	for _, port := range delta.Changed {
		port.Settings.Eject = false
	}
	w.Committed(delta)
	one := &tracker.Delta{Changed: delta.Changed[:1]}
	b.ReportAllocs()
	for b.Loop() {
		w.Committed(one)
	}
}

// BenchmarkLookOneClient is a look at a flood of one client: as many connections as are kept of a port wait, each for
// another endpoint, while another client is answered.
func BenchmarkLookOneClient(b *testing.B) {
	w, table, delta := newCrowd(1, 1)
	for _, port := range delta.Changed {
		for n := range mostOfPort {
			port.Cluster = append(port.Cluster, endpointAt(n+3))
			f := *table.flows[0]
			f.ID, f.Original.Source, f.Reply.Source = uint32(n+3), netip.AddrPortFrom(clientAt(1), uint16(n+1)), endpointAt(n+3)
			table.flows = append(table.flows, &f)
		}
	}
	w.Committed(delta)
	now := time.Now()
	for n := range 3 {
		w.look(b.Context(), now.Add(time.Duration(n)*lookInterval))
	}
	now = now.Add(2 * lookInterval)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Microsecond)
		table.flows[2].ID += 10_000
		w.look(b.Context(), now)
	}
}
