package health

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// newPort returns a port of a Service in namespace shop. Age orders Services, the oldest has
// the highest.
func newPort(name, port string, family tracker.Family, healthPort uint16, ready, age int) *tracker.ServicePort {
	return &tracker.ServicePort{PortSpec: &tracker.PortSpec{
		ID:      tracker.PortID{Namespace: "shop", Service: name, Port: port, Protocol: tracker.TCP, Family: family},
		Created: epoch.Add(-time.Duration(age) * time.Hour), UID: "uid-" + name,
		HealthCheckNodePort: healthPort,
	},
		Lists: new(tracker.Lists), LocalReady: ready,
	}
}

func changed(ports ...*tracker.ServicePort) *tracker.Delta {
	delta := tracker.Delta{Changed: ports}
	return &delta
}

func removed(ports ...*tracker.ServicePort) *tracker.Delta {
	delta := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
	for _, port := range ports {
		delta.Removed[port.ID] = true
	}
	return &delta
}

func TestClaims(t *testing.T) {
	old := newPort("old", "http", tracker.IPv4, 30000, 1, 9)
	young := newPort("young", "http", tracker.IPv4, 30000, 1, 1)
	const lost = "health check node port 30000 (IPv4) belongs to Service shop/old, which is older; give Service " +
		"shop/young another spec.healthCheckNodePort"
	for _, tt := range []struct {
		name   string
		deltas []*tracker.Delta
		want   string // who is served where
		lost   string
	}{
		{"none", nil, "map[]", "map[]"},
		{"without a port", []*tracker.Delta{changed(newPort("a", "http", tracker.IPv4, 0, 0, 1))}, "map[]", "map[]"},
		{"one", []*tracker.Delta{changed(old)}, "map[{2 30000}:shop/old]", "map[]"},
		{"both families", []*tracker.Delta{changed(old, newPort("old", "http", tracker.IPv6, 30000, 1, 9))},
			"map[{2 30000}:shop/old {10 30000}:shop/old]", "map[]"},
		{"the older wins", []*tracker.Delta{changed(young), changed(old)}, "map[{2 30000}:shop/old]",
			"map[shop/young:" + lost + "]"},
		{"until it goes", []*tracker.Delta{changed(young, old), removed(old)}, "map[{2 30000}:shop/young]", "map[]"},
		{"until it is being removed", []*tracker.Delta{changed(young, old),
			{Leaving: map[tracker.ServiceID]bool{{Namespace: "shop", Service: "old"}: true}}},
			"map[{2 30000}:shop/young]", "map[]"},
		{"until it comes back", []*tracker.Delta{changed(young, old),
			{Leaving: map[tracker.ServiceID]bool{{Namespace: "shop", Service: "old"}: true}}, changed(old)},
			"map[{2 30000}:shop/old]", "map[shop/young:" + lost + "]"},
		{"one of two ports goes", []*tracker.Delta{changed(old, newPort("old", "https", tracker.IPv4, 30000, 1, 9)),
			removed(old)},
			"map[{2 30000}:shop/old]", "map[]"},
		{"a port is renamed", []*tracker.Delta{changed(old), {
			Changed: changed(newPort("old", "web", tracker.IPv4, 30000, 1, 9)).Changed, Removed: removed(old).Removed,
		}}, "map[{2 30000}:shop/old]", "map[]"},
		{"another port", []*tracker.Delta{changed(old), changed(newPort("old", "http", tracker.IPv4, 30001, 1, 9))},
			"map[{2 30001}:shop/old]", "map[]"},
		{"policy Cluster again", []*tracker.Delta{changed(old), changed(newPort("old", "http", tracker.IPv4, 0, 0, 9))},
			"map[]", "map[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			checks := newChecks()
			for _, delta := range tt.deltas {
				checks.apply(delta)
			}
			won, lost := winners(checks.services)
			if got := fmt.Sprint(won); got != tt.want {
				t.Errorf("served: %s, want %s", got, tt.want)
			}
			if got := fmt.Sprint(lost); got != tt.lost {
				t.Errorf("lost: %s, want %s", got, tt.lost)
			}
		})
	}
}

// TestChecksChange: only what decides who gets a port makes all ports be looked at again. Endpoints come and go often.
func TestChecksChange(t *testing.T) {
	for _, tt := range []struct {
		name string
		port *tracker.ServicePort
		want bool
	}{
		{"another number of endpoints", newPort("web", "http", tracker.IPv4, 30000, 5, 9), false},
		{"another port", newPort("web", "http", tracker.IPv4, 30001, 1, 9), true},
		{"another age", newPort("web", "http", tracker.IPv4, 30000, 1, 8), true},
		{"no port", newPort("web", "http", tracker.IPv4, 0, 0, 9), true},
		{"another Service", newPort("other", "http", tracker.IPv4, 30000, 1, 9), true},
	} {
		checks := newChecks()
		checks.apply(changed(newPort("web", "http", tracker.IPv4, 30000, 1, 9)))
		if got := checks.apply(changed(tt.port)); got != tt.want {
			t.Errorf("%s: changed %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A world is a Services whose ports are opened by the calling goroutine, so that it works in
// the namespace of the test.
type world struct {
	*Services
	healthyNow bool
	problems   []string
}

func newWorld(t *testing.T) *world {
	w := &world{healthyNow: true}
	w.Services = NewServices(func() bool { return w.healthyNow },
		func(service Service, err error) { w.problems = append(w.problems, service.String()+": "+err.Error()) }, zap.NewNop())
	t.Cleanup(func() { w.reconcile(context.Background(), nil, nil) })
	return w
}

// sync applies a delta and waits until ports are open.
func (w *world) sync(t *testing.T, delta *tracker.Delta, addrs ...string) (done bool) {
	t.Helper()
	var addresses []netip.Addr
	for _, addr := range addrs {
		addresses = append(addresses, netip.MustParseAddr(addr))
	}
	w.Apply(delta, addresses)
	wanted, problems := w.wanted()
	return w.reconcile(t.Context(), wanted, problems)
}

// get asks for a path from the calling thread.
func get(address, method, path string) (code int, weight, body string, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, "", "", err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: lb\r\nConnection: close\r\n\r\n", method, path)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", "", err
	}
	text, err := io.ReadAll(response.Body)
	for name, want := range map[string]string{"Content-Type": "application/json", "X-Content-Type-Options": "nosniff"} {
		if got := response.Header.Get(name); got != want {
			err = errors.Join(err, fmt.Errorf("%s: %q, want %q", name, got, want))
		}
	}
	return response.StatusCode, response.Header.Get("X-Load-Balancing-Endpoint-Weight"), string(text), err
}

func checkPort(t *testing.T, address string, code int, service, ready, healthy string) {
	t.Helper()
	want := "{\n\t\"service\": {\n\t\t\"namespace\": \"shop\",\n\t\t\"name\": \"" + service +
		"\"\n\t},\n\t\"localEndpoints\": " +
		ready + ",\n\t\"serviceProxyHealthy\": " + healthy + "\n}"
	for _, request := range [][2]string{{"GET", "/"}, {"POST", "/any/path?x=y"}} {
		gotCode, weight, body, err := get(address, request[0], request[1])
		if err != nil || gotCode != code || weight != ready || body != want {
			t.Errorf("%s %s: %v, got %d weight %s %s\nwant %d %s", request, address, err, gotCode, weight, body, code, want)
		}
	}
}

func checkClosed(t *testing.T, addresses ...string) {
	t.Helper()
	for _, address := range addresses {
		if _, _, _, err := get(address, "GET", "/"); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: %v, want a refused connection", address, err)
		}
	}
}

// node makes a namespace with addresses on its loopback device, which has ::1 anyway.
func node(t *testing.T) {
	t.Helper()
	lab.New(t)
	lo, err := netlink.LinkByName("lo")
	for _, addr := range []string{"192.0.2.1/32", "192.0.2.2/32"} {
		parsed, parseErr := netlink.ParseAddr(addr)
		if err = errors.Join(err, parseErr); err == nil {
			err = netlink.AddrAdd(lo, parsed)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestServicePortsInKernel(t *testing.T) {
	node(t)
	w := newWorld(t)
	a4, a6 := newPort("a", "http", tracker.IPv4, 30000, 2, 2), newPort("a", "http", tracker.IPv6, 30000, 0, 2)
	w.sync(t, changed(a4, a6), "192.0.2.1", "::1")
	checkPort(t, "192.0.2.1:30000", 200, "a", "2", "true")
	checkPort(t, "[::1]:30000", 503, "a", "0", "true")
	checkClosed(t, "192.0.2.2:30000", "127.0.0.1:30000")

	w.healthyNow = false
	checkPort(t, "192.0.2.1:30000", 503, "a", "2", "false")
	w.healthyNow = true

	w.sync(t, changed(a4), "192.0.2.2", "::") // the node has other addresses now
	checkPort(t, "192.0.2.2:30000", 200, "a", "2", "true")
	checkPort(t, "[::1]:30000", 503, "a", "0", "true")
	checkClosed(t, "192.0.2.1:30000", "127.0.0.1:30000")

	w.sync(t, changed(), "0.0.0.0", "::")
	checkPort(t, "127.0.0.1:30000", 200, "a", "2", "true")
	checkPort(t, "[::1]:30000", 503, "a", "0", "true")

	w.sync(t, changed(newPort("a", "http", tracker.IPv4, 30001, 2, 2), newPort("b", "http", tracker.IPv4, 30000, 1, 1)),
		"0.0.0.0", "::")
	checkPort(t, "192.0.2.1:30001", 200, "a", "2", "true")
	checkPort(t, "192.0.2.1:30000", 200, "b", "1", "true")
	checkPort(t, "[::1]:30000", 503, "a", "0", "true")

	w.sync(t, removed(a4, a6), "0.0.0.0", "::")
	checkClosed(t, "192.0.2.1:30001", "[::1]:30000")
	if w.problems != nil {
		t.Errorf("problems: %q", w.problems)
	}
}

func TestPortInUseInKernel(t *testing.T) {
	node(t)
	w := newWorld(t)
	taken, err := net.Listen("tcp4", "192.0.2.1:30000")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	a := changed(newPort("a", "http", tracker.IPv4, 30000, 1, 1))
	for range 2 { // told once
		if w.sync(t, a, "192.0.2.1", "192.0.2.2") {
			t.Error("done, although a port is taken")
		}
	}
	if got := w.Unserved(); got != 1 {
		t.Errorf("%d Services are not served, want 1", got)
	}
	want := "shop/a: health check of Service shop/a: listen tcp4 192.0.2.1:30000: bind: address already in use; " +
		"kube-nft tries again after 50ms, later every 5s"
	if len(w.problems) != 1 || w.problems[0] != want {
		t.Errorf("problems: %q, want %q", w.problems, want)
	}
	checkPort(t, "192.0.2.2:30000", 200, "a", "1", "true")
	taken.Close()
	if !w.sync(t, a, "192.0.2.1", "192.0.2.2") {
		t.Error("not done, although the port is free")
	}
	if got := w.Unserved(); got != 0 {
		t.Errorf("%d Services are not served, want 0", got)
	}
	checkPort(t, "192.0.2.1:30000", 200, "a", "1", "true")
}

// TestPortOfLastProxyInKernel: a port that the proxy before this one has rightly is no problem, and it is served
// soon after that one has ended.
func TestPortOfLastProxyInKernel(t *testing.T) {
	node(t)
	w := newWorld(t)
	taken, err := net.Listen("tcp4", "192.0.2.1:30000")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	w.StandIn(true)
	a := changed(newPort("a", "http", tracker.IPv4, 30000, 1, 1))
	if w.sync(t, a, "192.0.2.1") || w.Unserved() != 0 || w.problems != nil {
		t.Errorf("%d Services are not served, problems %q", w.Unserved(), w.problems)
	}
	w.StandIn(false)
	if w.sync(t, a, "192.0.2.1") || w.Unserved() != 1 || len(w.problems) != 1 {
		t.Errorf("afterwards: %d Services are not served, problems %q", w.Unserved(), w.problems)
	}
}

func TestRunOpensAndClosesPorts(t *testing.T) {
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddrPort(free.Addr().String())
	w := newWorld(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	w.Apply(changed(newPort("a", "http", tracker.IPv4, address.Port(), 1, 1)), []netip.Addr{address.Addr()})
	for w.Unserved() == 0 {
		time.Sleep(time.Millisecond)
	}
	free.Close() // as the proxy does that has had the Service
	closed := time.Now()
	for conn, err := net.Dial("tcp", address.String()); ; conn, err = net.Dial("tcp", address.String()) {
		if err == nil {
			conn.Close()
			break
		}
	}
	if gap := time.Since(closed); gap > reopenInterval-time.Second {
		t.Errorf("the port is open %v after it was free", gap)
	}
	checkPort(t, address.String(), 200, "a", "1", "true")
	w.Apply(changed(newPort("a", "http", tracker.IPv4, address.Port(), 3, 1)), []netip.Addr{address.Addr()})
	checkPort(t, address.String(), 200, "a", "3", "true")
	stop()
	if err := <-ended; err != nil {
		t.Errorf("Run returned %v", err)
	}
	checkClosed(t, address.String())
}

// TestPortsAreBounded: a tenant with many health-check node ports takes none from another one.
func TestPortsAreBounded(t *testing.T) {
	w := newWorld(t)
	w.most = 5
	delta := changed()
	for i := range 10 {
		for namespace, age := range map[string]int{"many": 20 - i, "few": 2} { // the oldest ones have the lowest ports
			port := newPort(fmt.Sprint("web-", i), "http", tracker.IPv4, uint16(30000+i), 1, age)
			if namespace == "few" {
				if i > 0 {
					continue
				}
				port.HealthCheckNodePort = 31000
			}
			port.ID.Namespace = namespace
			delta.Changed = append(delta.Changed, port)
		}
	}
	w.Apply(delta, []netip.Addr{netip.MustParseAddr("127.0.0.1")})
	open, lost := w.wanted()
	for _, port := range []uint16{30000, 30001, 30002, 30003, 31000} {
		if _, ok := open[netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port)]; !ok {
			t.Errorf("port %d is not served: %v", port, open)
		}
	}
	if len(open) != 5 || len(lost) != 6 {
		t.Errorf("%d ports are served, %d Services go without", len(open), len(lost))
	}
	const want = "kube-nft does not open health check node port 30009 (IPv4) of Service many/web-9: it opens at most 5 " +
		"such ports, a quarter of the files that it may open; the oldest Services of each namespace come first"
	if got := lost[Service{"many", "web-9", tracker.IPv4}]; got == nil || got.Error() != want {
		t.Errorf("got %v, want %s", got, want)
	}
}
