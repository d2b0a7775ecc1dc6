package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// A path is what the packet tests use in one family: a client, a cluster IP that no device
// has, and two endpoints, all within one namespace.
type path struct {
	family    string // as nft writes it
	client    netip.Addr
	clusterIP netip.AddrPort
	endpoints [2]netip.AddrPort
}

var paths = []path{{
	family:    "ip",
	client:    netip.MustParseAddr("192.0.2.1"),
	clusterIP: netip.MustParseAddrPort("10.96.0.10:53"),
	endpoints: [2]netip.AddrPort{netip.MustParseAddrPort("10.244.0.5:5353"), netip.MustParseAddrPort("10.244.1.5:5353")},
}, {
	family:    "ip6",
	client:    netip.MustParseAddr("2001:db8::1"),
	clusterIP: netip.MustParseAddrPort("[fd00:96::10]:53"),
	endpoints: [2]netip.AddrPort{netip.MustParseAddrPort("[fd00:244::5]:5353"),
		netip.MustParseAddrPort("[fd00:244::6]:5353")},
}}

// lay makes a namespace in which p's addresses exist and connections are tracked.
func (p *path) lay(t *testing.T) {
	t.Helper()
	lab.New(t)
	for _, addr := range []netip.Addr{p.client, p.endpoints[0].Addr(), p.endpoints[1].Addr()} {
		lab.Run(t, "", "ip", "address", "add", addr.String(), "dev", "lo", "nodad")
	}
	// What is not translated goes to a neighbour that does not exist. Over lo it would not
	// leave in IPv6: the kernel refuses such routes.
	addr := p.clusterIP.Addr().String()
	lab.Run(t, "", "ip", "link", "add", "nowhere", "up", "type", "veth", "peer", "name", "drain")
	lab.Run(t, "", "ip", "link", "set", "drain", "up")
	lab.Run(t, "", "ip", "route", "add", addr, "dev", "nowhere")
	lab.Run(t, "", "ip", "neighbour", "add", addr, "lladdr", "02:00:00:00:00:01", "dev", "nowhere")
	p.translate(t, netip.AddrPort{})
}

// translate makes rules that send the cluster IP to endpoint, in place of what was there;
// the zero endpoint is none.
func (p *path) translate(t *testing.T, endpoint netip.AddrPort) {
	t.Helper()
	rule := ""
	if endpoint.IsValid() {
		rule = fmt.Sprintf("%s daddr %s meta l4proto { tcp, udp } dnat to %s", p.family, p.clusterIP.Addr(), endpoint)
	}
	lab.Run(t, fmt.Sprintf(`
		table %[1]s test {
			chain output { type nat hook output priority -101; }
			chain tracked { type filter hook output priority 0; ct state new counter; }
		}
		flush chain %[1]s test output
		table %[1]s test {
			chain output { %[2]s; }
		}`, p.family, rule), "nft", "-f", "-")
}

// serve answers each datagram that reaches endpoint with the endpoint's address.
func serve(t *testing.T, endpoint netip.AddrPort) {
	t.Helper()
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 16)
		for {
			_, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort([]byte(endpoint.String()), from)
		}
	}()
}

// dialUDP returns a client socket that keeps its port, as many resolvers do.
func (p *path) dialUDP(t *testing.T) *net.UDPConn {
	t.Helper()
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.client, 0))
	conn, err := net.DialUDP("udp", local, net.UDPAddrFromAddrPort(p.clusterIP))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchange sends a datagram every 50 ms until one is answered, and returns who answered. The answer to another one may
// come later: it is for silence.
func exchange(t *testing.T, conn *net.UDPConn, patience time.Duration) (answer string) {
	t.Helper()
	buffer := make([]byte, 64)
	for start := time.Now(); time.Since(start) < patience; {
		_, _ = conn.Write([]byte("?")) // fails when an ICMP error has come: ask again
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := conn.Read(buffer); err == nil {
			return string(buffer[:n])
		}
	}
	return ""
}

// exchangeOnce sends one datagram, waits for the answer, and returns who answered.
func exchangeOnce(t *testing.T, conn *net.UDPConn) string {
	t.Helper()
	buffer := make([]byte, 64)
	_ = conn.SetDeadline(time.Now().Add(lab.Patience))
	for {
		if _, err := conn.Write([]byte("?")); errors.Is(err, unix.ECONNREFUSED) {
			continue // of a datagram before, and this one was not sent
		}
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		return string(buffer[:n])
	}
}

// desired returns what p's cluster IP looks like after a commit.
func (p *path) desired(serving ...netip.AddrPort) *cluster {
	c := &cluster{clusterIPs: []string{p.clusterIP.Addr().String()}, cidr: "10.96.0.0/16"}
	var list []string
	for _, endpoint := range serving {
		list = append(list, endpoint.String())
	}
	c.endpoints = map[tracker.Frontend][]string{p.frontend(tracker.UDP): list, p.frontend(tracker.TCP): list}
	return c
}

func (p *path) frontend(protocol tracker.Protocol) tracker.Frontend {
	return at(protocol, p.clusterIP.String())
}

func clean(t *testing.T, change tracker.FlowChange, desired Desired) Result {
	t.Helper()
	result, err := NewReconciler(openTable(t)).Clean(t.Context(), []tracker.FlowChange{change}, desired)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestEndpointRemoved: a UDP client whose endpoint is removed reaches another one with its next
// datagram, and would not without us.
func TestEndpointRemoved(t *testing.T) {
	for _, p := range paths {
		t.Run(p.family, func(t *testing.T) {
			p.lay(t)
			serve(t, p.endpoints[1])
			p.translate(t, p.endpoints[0])
			conn := p.dialUDP(t)
			if got := exchange(t, conn, 200*time.Millisecond); got != "" {
				t.Fatalf("%s answered, want silence from the first endpoint", got)
			}
			p.translate(t, p.endpoints[1])
			if got := exchange(t, conn, 200*time.Millisecond); got != "" {
				t.Fatalf("%s answered before the clean-up: the test proves nothing", got)
			}
			removed := []tracker.Served{{List: p.endpoints[:1]}}
			clean(t, tracker.FlowChange{Frontend: p.frontend(tracker.UDP), Removed: removed}, p.desired(p.endpoints[1]))
			if got := exchangeOnce(t, conn); got != p.endpoints[1].String() {
				t.Errorf("%q answered, want %s", got, p.endpoints[1])
			}
		})
	}
}

// TestScaledToZeroAndBack: with the last endpoint the flows go, and flows from the time
// without rules do not survive the next one.
func TestScaledToZeroAndBack(t *testing.T) {
	for _, p := range paths {
		t.Run(p.family, func(t *testing.T) {
			p.lay(t)
			serve(t, p.endpoints[0])
			p.translate(t, p.endpoints[0])
			conn := p.dialUDP(t)
			if got := exchangeOnce(t, conn); got != p.endpoints[0].String() {
				t.Fatalf("%q answered, want %s", got, p.endpoints[0])
			}
			p.translate(t, netip.AddrPort{})
			gone := tracker.FlowChange{Frontend: p.frontend(tracker.UDP), Gone: true,
				Removed: []tracker.Served{{List: p.endpoints[:1]}}}
			if result := clean(t, gone, p.desired()); result.Deleted != 1 {
				t.Errorf("scaled to zero: got %+v, want 1 deleted", result)
			}
			if got := exchange(t, conn, 100*time.Millisecond); got != "" {
				t.Errorf("scaled to zero: %s answered", got)
			}
			p.translate(t, p.endpoints[0])
			clean(t, tracker.FlowChange{Frontend: p.frontend(tracker.UDP), Appeared: true}, p.desired(p.endpoints[0]))
			if got := exchangeOnce(t, conn); got != p.endpoints[0].String() {
				t.Errorf("scaled up: %q answered, want %s", got, p.endpoints[0])
			}
		})
	}
}

// TestConnectionBeforeRules: a connection whose SYN was sent before the rules is made by
// its repetition, once the trace of the first is gone.
func TestConnectionBeforeRules(t *testing.T) {
	for _, p := range paths {
		t.Run(p.family, func(t *testing.T) {
			p.lay(t)
			listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(p.endpoints[0]))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = listener.Close() })
			client := lab.Start(t, "socat", "-u", "OPEN:/dev/null", fmt.Sprintf("TCP:%s,bind=%s", p.clusterIP,
				bracketed(p.client)))
			awaitSYN(t, p.client)
			p.translate(t, p.endpoints[0])
			change := tracker.FlowChange{Frontend: p.frontend(tracker.TCP), Appeared: true}
			if result := clean(t, change, p.desired(p.endpoints[0])); result.Deleted != 1 {
				t.Errorf("got %+v, want 1 deleted", result)
			}
			select {
			case <-client.Exited():
				if client.ExitCode() != 0 {
					t.Errorf("client: exit code %d: %s", client.ExitCode(), client.Stderr())
				}
			case <-time.After(lab.Patience):
				t.Errorf("the client is not connected after %s", lab.Patience)
			}
		})
	}
}

func bracketed(addr netip.Addr) string {
	if addr.Is6() {
		return "[" + addr.String() + "]"
	}
	return addr.String()
}

// awaitSYN waits until client's SYN has left a flow.
func awaitSYN(t *testing.T, client netip.Addr) {
	t.Helper()
	table := openTable(t)
	for deadline := time.Now().Add(lab.Patience); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
		flows, err := table.Flows(t.Context(), Filter{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(flows, func(f Flow) bool { return f.Original.Source.Addr() == client && f.Bypasses() }) {
			return
		}
	}
	t.Fatal("no SYN was tracked")
}
