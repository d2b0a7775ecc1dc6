package localhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// An address is a loopback address at which a test serves node ports.
type address struct{ netip.Addr }

func inBothFamilies(t *testing.T, test func(t *testing.T, at address)) {
	for _, at := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()} {
		t.Run(at.String(), func(t *testing.T) { test(t, address{at}) })
	}
}

// listen listens at any port. Without the address, as on a machine without IPv6, it skips the test.
func (at address) listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", netip.AddrPortFrom(at.Addr, 0).String())
	if err != nil {
		t.Skipf("no loopback address: %v", err)
	}
	t.Cleanup(func() { listener.Close() })
	return listener
}

// endpoint starts a server that answers what it is sent with its name before it.
func (at address) endpoint(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	listener := at.listen(t)
	lab.Serve(listener, func(conn net.Conn) {
		text, _ := io.ReadAll(conn)
		fmt.Fprintf(conn, "%s: %s", name, text)
	})
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// ports counts the ports that freePort has tried. It begins somewhere else in each process.
var ports atomic.Uint32

func init() { ports.Store(uint32(os.Getpid()) * 97) }

// freePort returns a port at which nothing listens, a new one each time. It is none of those that the kernel
// gives to connections, and to listeners that want any.
func (at address) freePort(t *testing.T) uint16 {
	t.Helper()
	const first, n = 10000, 20000
	for range n {
		port := uint16(first + ports.Add(1)%n)
		listener, err := net.Listen("tcp", netip.AddrPortFrom(at.Addr, port).String())
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Skipf("no loopback address: %v", err)
		}
		listener.Close()
		return port
	}
	t.Fatal("no port is free")
	return 0
}

func (at address) servicePort(name string, nodePort uint16, endpoints ...netip.AddrPort) *tracker.ServicePort {
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	return &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID:       tracker.PortID{Namespace: "ns", Service: name, Protocol: tracker.TCP, Family: tracker.FamilyOf(at.Addr)},
		UID:      name,
		NodePort: nodePort,
	},
		Lists: &tracker.Lists{Cluster: endpoints},
	}
}

func changed(ports ...*tracker.ServicePort) tracker.Delta {
	delta := tracker.Delta{Changed: ports}
	return delta
}

// exchange sends a text to a node port and returns the answer; it goes through both halves of
// the connection.
func (at address) exchange(t *testing.T, nodePort uint16) (string, error) {
	t.Helper()
	conn, err := net.Dial("tcp", netip.AddrPortFrom(at.Addr, nodePort).String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// eventually asks until the answer is as wanted: listeners start and stop on their own.
func (at address) eventually(t *testing.T, nodePort uint16, wanted func(string, error) bool) {
	t.Helper()
	deadline := time.Now().Add(lab.Patience)
	for {
		answer, err := at.exchange(t, nodePort)
		if wanted(answer, err) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still %q, %v", answer, err)
		}
		time.Sleep(time.Millisecond)
	}
}

func refusedConnection(_ string, err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }

func answers(want string) func(string, error) bool {
	return func(answer string, err error) bool { return err == nil && answer == want }
}

func (at address) newProxy(t *testing.T) *Proxy {
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	return NewProxy(ctx, []netip.Addr{at.Addr}, zap.NewNop())
}

func TestProxyFollowsItsService(t *testing.T) {
	inBothFamilies(t, func(t *testing.T, at address) {
		a, b, number := at.endpoint(t, "a"), at.endpoint(t, "b"), at.freePort(t)
		p := at.newProxy(t)
		p.Apply(changed(at.servicePort("web", number, a)))
		at.eventually(t, number, answers("a: hello"))
		p.Apply(changed(at.servicePort("web", number, b)))
		at.eventually(t, number, answers("b: hello"))
		p.Apply(changed(at.servicePort("web", number)))
		at.eventually(t, number, refusedConnection)
		p.Apply(changed(at.servicePort("web", number, a)))
		at.eventually(t, number, answers("a: hello"))
		p.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{at.servicePort("web", 0).ID: true}})
		at.eventually(t, number, refusedConnection)
	})
}

func TestProxyOlderServiceHasThePort(t *testing.T) {
	inBothFamilies(t, func(t *testing.T, at address) {
		a, b, number := at.endpoint(t, "a"), at.endpoint(t, "b"), at.freePort(t)
		p := at.newProxy(t)
		p.Apply(changed(at.servicePort("younger", number, b), at.servicePort("elder", number, a)))
		at.eventually(t, number, answers("a: hello"))
		p.Apply(tracker.Delta{Removed: map[tracker.PortID]bool{at.servicePort("elder", 0).ID: true}})
		at.eventually(t, number, answers("b: hello"))
	})
}

func TestProxyKeepsToOneEndpointWithAffinity(t *testing.T) {
	inBothFamilies(t, func(t *testing.T, at address) {
		number := at.freePort(t)
		port := at.servicePort("web", number, at.endpoint(t, "a"), at.endpoint(t, "b"), at.endpoint(t, "c"))
		port.Affinity = time.Hour
		p := at.newProxy(t)
		p.Apply(changed(port))
		var first string
		at.eventually(t, number, func(answer string, err error) bool { first = answer; return err == nil })
		for range 30 {
			if answer, err := at.exchange(t, number); err != nil || answer != first {
				t.Fatalf("%q, %v after %q", answer, err, first)
			}
		}
	})
}

func TestProxyTriesAnotherEndpoint(t *testing.T) {
	inBothFamilies(t, func(t *testing.T, at address) {
		number := at.freePort(t)
		dead := netip.AddrPortFrom(at.Addr, at.freePort(t))
		p := at.newProxy(t)
		p.Apply(changed(at.servicePort("web", number, dead, at.endpoint(t, "a"))))
		for range 20 {
			at.eventually(t, number, answers("a: hello"))
		}
	})
}

// TestUnservedProtocolsAreLogged: the log says once that UDP is not served, and nothing listens for it.
func TestUnservedProtocolsAreLogged(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	p := NewProxy(t.Context(), []netip.Addr{netip.IPv6Loopback()}, zap.New(core))
	at := address{netip.IPv6Loopback()}
	for _, protocol := range []tracker.Protocol{tracker.UDP, tracker.SCTP} {
		port := at.servicePort("dns", 30053)
		port.ID.Protocol = protocol
		p.Apply(changed(port))
	}
	four := at.servicePort("v4", 30054)
	four.ID.Family = tracker.IPv4
	p.Apply(changed(four))
	if n := logs.Len(); n != 1 || len(p.servers) != 0 {
		t.Errorf("%d log lines, %d servers", n, len(p.servers))
	}
}

// TestPortInUse: a node port in use is logged once, and served when it is free.
func TestPortInUse(t *testing.T) {
	inBothFamilies(t, func(t *testing.T, at address) {
		number := at.freePort(t)
		holder, err := net.Listen("tcp", netip.AddrPortFrom(at.Addr, number).String())
		if err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.InfoLevel)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		s := &server{log: zap.New(core), lines: &quota.Quota{Interval: time.Minute}, at: netip.AddrPortFrom(at.Addr, number),
			stop: stop, pool: web.NewOwnedPool(10, ownerOf, nil), retry: time.Millisecond}
		s.set(at.servicePort("web", number, at.endpoint(t, "a")))
		go s.run(ctx, ctx)
		told := func() int { return logs.FilterMessage("node port is not served at localhost").Len() }
		lab.Eventually(t, "a line that says that the node port is in use", func() bool { return told() > 0 })
		time.Sleep(20 * time.Millisecond) // it tries again and again
		if n := told(); n != 1 {
			t.Errorf("%d lines say that the node port is in use", n)
		}
		holder.Close()
		at.eventually(t, number, answers("a: hello"))
		if n := logs.FilterMessage("node port is served at localhost now").Len(); n != 1 {
			t.Errorf("%d lines say that the node port is served", n)
		}
	})
}

// TestLogOfNodePortsWithoutEndpointsIsLimited: a client that connects all the time to a node port without a working
// endpoint makes one line a minute.
func TestLogOfNodePortsWithoutEndpointsIsLimited(t *testing.T) {
	inBothFamilies(t, func(t *testing.T, at address) {
		core, logs := observer.New(zap.InfoLevel)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p := newProxy(ctx, []netip.Addr{at.Addr}, zap.New(core), 100, 10)
		number := at.freePort(t)
		gone := netip.AddrPortFrom(at.Addr, at.freePort(t))
		p.Apply(changed(at.servicePort("web", number, gone)))
		for range 50 {
			lab.Eventually(t, "a reset", func() bool {
				conn, err := net.Dial("tcp", netip.AddrPortFrom(at.Addr, number).String())
				if err != nil {
					return false
				}
				defer conn.Close()
				_, err = conn.Read(make([]byte, 1))
				return errors.Is(err, syscall.ECONNRESET)
			})
		}
		if n := logs.FilterMessage("no endpoint answers").Len(); n != 1 {
			t.Errorf("%d lines for 50 connections", n)
		}
	})
}

// TestProxyIsBounded: too many connections to the node ports of a namespace end the oldest of them, and none of another
// namespace, which has more connections to its one node port.
func TestProxyIsBounded(t *testing.T) {
	at := address{netip.IPv6Loopback()}
	const most = 6
	a, b := []uint16{at.freePort(t), at.freePort(t), at.freePort(t), at.freePort(t)}, at.freePort(t)
	core, logs := observer.New(zap.WarnLevel)
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	p := newProxy(ctx, []netip.Addr{at.Addr}, zap.New(core), most, len(a)+1)
	for _, number := range a {
		p.Apply(changed(at.servicePort(fmt.Sprint("a", number), number, at.endpoint(t, "a"))))
		at.eventually(t, number, answers("a: hello"))
	}
	neighbour := at.servicePort("b", b, at.endpoint(t, "b"))
	neighbour.ID.Namespace = "neighbour"
	p.Apply(changed(neighbour))
	at.eventually(t, b, answers("b: hello"))
	hold := func(nodePort uint16) *net.TCPConn {
		conn, err := net.Dial("tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), nodePort).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn.(*net.TCPConn)
	}
	first, second := hold(b), hold(b)
	var held []*net.TCPConn
	for i := range 50 {
		held = append(held, hold(a[i%len(a)]))
	}
	held[0].SetReadDeadline(time.Now().Add(lab.Patience))
	if _, err := held[0].Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the oldest of too many connections: %v, want its end", err)
	}
	at.eventually(t, a[0], answers("a: hello"))
	for _, conn := range []*net.TCPConn{first, second} {
		fmt.Fprint(conn, "still there")
		conn.CloseWrite()
		if answer, err := io.ReadAll(conn); string(answer) != "b: still there" || err != nil {
			t.Errorf("a connection of another namespace: %q, %v", answer, err)
		}
	}
	if n := logs.FilterMessageSnippet("too many connections").Len(); n != 1 {
		t.Errorf("%d log lines, want 1", n)
	}
	c := at.freePort(t)
	p.Apply(changed(at.servicePort("c", c, at.endpoint(t, "c"))))
	if logs.FilterMessageSnippet("is not served at localhost: too many node ports").Len() != 1 ||
		!refusedConnection(at.exchange(t, c)) {
		t.Errorf("one node port too many is served, or nothing says that it is not: %v", logs.All())
	}
}

// full returns an endpoint that does not answer: its queue of connections is full.
func (at address) full(t *testing.T) netip.AddrPort {
	t.Helper()
	listener := at.listen(t)
	raw, err := listener.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) })
	if err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := net.DialTimeout("tcp", listener.Addr().String(), 100*time.Millisecond)
		if err != nil {
			return listener.Addr().(*net.TCPAddr).AddrPort()
		}
		t.Cleanup(func() { conn.Close() })
	}
}

// TestAttemptEndsWithItsConnection: an attempt to reach an endpoint ends when the connection for which it is made
// gives its place to another one. Otherwise clients could use up all files.
func TestAttemptEndsWithItsConnection(t *testing.T) {
	inBothFamilies(t, func(t *testing.T, at address) {
		const clients, most = 50, 2
		number := at.freePort(t)
		port := at.servicePort("web", number, at.full(t), at.full(t), at.full(t))
		files := func() int {
			list, err := os.ReadDir("/proc/self/fd")
			if err != nil {
				t.Fatal(err)
			}
			return len(list)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		p := newProxy(ctx, []netip.Addr{at.Addr}, zap.NewNop(), most, 10)
		p.Apply(changed(port))
		var before int
		for i := range clients {
			lab.Eventually(t, "a connection", func() bool {
				conn, err := net.Dial("tcp", netip.AddrPortFrom(at.Addr, number).String())
				if err == nil {
					t.Cleanup(func() { conn.Close() })
				}
				return err == nil
			})
			if i == 0 {
				before = files()
			}
		}
		// A client has a file here as well. The connections in the pool have two, and one of them is in before. Attempts
		// that nothing ends last longer than this deadline: three times dialTimeout.
		want := before + clients + 2*most
		for deadline := time.Now().Add(2 * dialTimeout); files() > want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d files, want %d", files(), want)
			}
		}
	})
}

// TestBounds: connections get a sixteenth of the files, 1,024 at most, and node ports a quarter.
func TestBounds(t *testing.T) {
	for _, tt := range []struct {
		files              uint64
		connections, ports int
	}{{64, 4, 16}, {1024, 64, 256}, {1 << 14, 1024, 4096}, {1 << 62, 1024, 65536}} {
		if connections, ports := bounds(tt.files); connections != tt.connections || ports != tt.ports {
			t.Errorf("with %d files: %d connections and %d ports, want %d and %d", tt.files, connections, ports,
				tt.connections, tt.ports)
		}
	}
}

func TestRoute(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, routeLocalnet)
	_, err := Route(root)
	want := "node ports at 127.0.0.1 need the sysctl net.ipv4.conf.all.route_localnet=1: open " + path +
		": no such file or directory; set it on the host"
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("0\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if text := Exposure(root); text != "" {
		t.Errorf("before: %s", text)
	}
	for _, want := range []bool{true, false} {
		if changed, err := Route(root); changed != want || err != nil {
			t.Errorf("changed %v, %v; want %v", changed, err, want)
		}
	}
	const exposure = "the sysctl net.ipv4.conf.all.route_localnet is 1; --localhost-nodeports and kube-proxy's " +
		"iptables mode set it. No rule of kube-nft drops connections from other hosts to 127.0.0.1. If no program on this " +
		"node needs the sysctl: sysctl -w net.ipv4.conf.all.route_localnet=0"
	if text := Exposure(root); text != exposure {
		t.Errorf("got %s\nwant %s", text, exposure)
	}
}

// TestWeightedOrder counts which endpoint comes first.
func TestWeightedOrder(t *testing.T) {
	first := make([]float64, 3)
	const draws = 20000
	for range draws {
		first[weightedOrder(3, []uint16{1, 2, 7})[0]]++
	}
	for i, want := range []float64{0.1, 0.2, 0.7} {
		if got := first[i] / draws; math.Abs(got-want) > 0.02 {
			t.Errorf("endpoint %d comes first in %.3f of the draws, want %.1f", i, got, want)
		}
	}
	for n := range 5 {
		order := weightedOrder(n, nil)
		if slices.Sort(order); len(order) != min(n, attempts) || len(slices.Compact(order)) != min(n, attempts) {
			t.Errorf("order %d of %d", order, n)
		}
	}
}

// TestConnectionsToManyEndpoints: what a connection allocates does not depend on how many endpoints there are.
func TestConnectionsToManyEndpoints(t *testing.T) {
	allocated := func(endpoints int) float64 {
		s := &server{port: address{netip.IPv6Loopback()}.servicePort("web", 30080)}
		for _, addr := range lab.Addresses(netip.MustParseAddr("10.8.0.1"), endpoints) {
			s.port.Cluster = append(s.port.Cluster, netip.AddrPortFrom(addr, 0))
		}
		s.port.TargetPort = 80
		return testing.AllocsPerRun(10, func() {
			if list := s.candidates(time.Now()); len(list) != attempts {
				t.Errorf("candidates %v", list)
			}
		})
	}
	if few, many := allocated(10), allocated(1000); many > few {
		t.Errorf("%v allocations with 1000 endpoints, %v with 10", many, few)
	}
}
