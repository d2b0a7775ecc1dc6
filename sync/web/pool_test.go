package web

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"
)

// dialFrom connects from an address of the loopback device.
func dialFrom(t *testing.T, from, to string) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn, err := dialer.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// TestPool: a client that holds connections loses its own, and the server answers all other clients all the time.
func TestPool(t *testing.T) {
	const most = 4
	whole := func(conn net.Conn) Owner {
		addr := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		return Owner{Client: netip.PrefixFrom(addr, addr.BitLen())}
	}
	listener, pool := occupy(t), NewOwnedPool(most, whole, nil)
	server := NewServer(hello, false, zap.NewNop())
	server.ReadHeaderTimeout, server.ReadTimeout = time.Hour, time.Hour // only the pool ends a connection
	go server.Serve(pool.Limit(listener))
	defer server.Close()
	address := listener.Addr().String()
	early := dialFrom(t, "127.0.0.3", address)
	var hostile []net.Conn
	for i := range 5 * most {
		hostile = append(hostile, dialFrom(t, "127.0.0.2", address))
		for range 2 { // the second connection comes after the first one's end, or is one more
			if code, body := exchange(t, address, get); code != 200 || body != "hello" {
				t.Fatalf("with %d connections of others: %d %q", i, code, body)
			}
		}
	}
	pool.mu.Lock()
	if n := pool.conns.Len(); n > most {
		t.Errorf("%d connections, want %d at most; by owner %v", n, most, pool.held)
	}
	pool.mu.Unlock()
	hostile[0].SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := hostile[0].Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("the oldest connection of the client with most: %v, want its end", err)
	}
	io.WriteString(early, get)
	early.SetReadDeadline(time.Now().Add(time.Minute))
	if answer, err := io.ReadAll(early); err != nil || len(answer) == 0 {
		t.Errorf("a client with one connection lost it: %q, %v", answer, err)
	}
}

// TestClientOf: a process without privileges has many addresses, and is one client.
func TestClientOf(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.7":          "192.0.2.7/32",
		"::ffff:192.0.2.7":   "192.0.2.7/32",
		"127.3.4.5":          "127.0.0.0/8",
		"::ffff:127.3.4.5":   "127.0.0.0/8",
		"2001:db8::1:2:3:4":  "2001:db8::/64",
		"fe80::1:2:3:4%eth0": "fe80::/64",
		"::1":                "::/64",
	} {
		client := clientOf(remote{addr: netip.MustParseAddr(address)})
		if got := client.Client.String(); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}

// A remote is a connection from an address.
type remote struct {
	net.Conn
	addr netip.Addr
}

func (r remote) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.AddrPortFrom(r.addr, 1)) }

// TestPoolForgets: what is closed is not counted, however often it is closed.
func TestPoolForgets(t *testing.T) {
	listener, pool := occupy(t), NewPool(2)
	limit := pool.Limit(listener)
	for range 10 {
		dialFrom(t, "127.0.0.1", listener.Addr().String())
		conn, err := limit.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
		conn.Close()
	}
	if pool.conns.Len() != 0 || len(pool.held) != 0 {
		t.Errorf("%d connections, by owner %v", pool.conns.Len(), pool.held)
	}
}
