package web

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"
)

// A Pool bounds the connections of all listeners that share it. A client that opens one too many ends the
// oldest connection of the client that has most of them, so that a client that holds connections
// loses its own, and a probe is answered however many others hold. Its methods may be called from
// any goroutine.
type Pool struct {
	most  int
	whose func(net.Conn) netip.Prefix // which connections are of one client
	full  func(victim net.Conn)       // nil, or called after each connection that was ended

	mu      sync.Mutex
	conns   *list.List // of *pooled, oldest first
	clients map[netip.Prefix]int
}

// NewPool returns a pool for this many connections, or for fewer if the process may have few files. With those of
// sync/localhost, and the ports of both, all pools together leave a fifth of the files to everything else.
func NewPool(most int) *Pool {
	return newPool(affordable(most, Files()), clientOf, nil)
}

// Files returns how many files this process may open; if the kernel does not say, the number that was usual once.
func Files() uint64 {
	files := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	return files.Cur
}

// affordable returns how many connections a pool may have: a 32nd of the files at most, but two.
func affordable(most int, files uint64) int { return min(most, int(max(2, min(files, 1<<20)/32))) }

// NewPortPool returns a pool in which the connections to one port are those of one client: for
// clients that all have the same address. It calls full with each connection that it has ended.
func NewPortPool(most int, full func(victim net.Conn)) *Pool { return newPool(most, portOf, full) }

func newPool(most int, whose func(net.Conn) netip.Prefix, full func(net.Conn)) *Pool {
	return &Pool{most: most, whose: whose, full: full, conns: list.New(), clients: make(map[netip.Prefix]int)}
}

// Limit returns l with its connections in the pool.
func (p *Pool) Limit(l net.Listener) net.Listener { return &limited{l, p} }

type limited struct {
	net.Listener
	pool *Pool
}

// Accept returns the next connection.
func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.pool.Add(conn), nil
}

// A pooled connection leaves its pool when it is closed.
type pooled struct {
	net.Conn
	pool   *Pool
	client netip.Prefix
	place  *list.Element // nil: it has left
}

// clientOf returns the host at the other end. A host has many addresses of one network in IPv6, and
// all of 127.0.0.0/8 on this node.
func clientOf(conn net.Conn) (client netip.Prefix) {
	if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		addr := remote.AddrPort().Addr().Unmap().WithZone("")
		bits := min(addr.BitLen(), 64)
		if addr.Is4() && addr.IsLoopback() {
			bits = 8
		}
		client, _ = addr.Prefix(bits) // valid, as the address is
	}
	return client
}

// portOf stands the port at which conn was accepted for its client.
func portOf(conn net.Conn) netip.Prefix {
	local, _ := conn.LocalAddr().(*net.TCPAddr)
	if local == nil {
		return netip.Prefix{}
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{2: byte(local.Port >> 8), 3: byte(local.Port)}), 32)
}

// Add takes in a connection, and ends another one if there are too many. The connection leaves the
// pool when what Add returns is closed.
func (p *Pool) Add(conn net.Conn) net.Conn {
	c := &pooled{Conn: conn, pool: p, client: p.whose(conn)}
	p.mu.Lock()
	c.place = p.conns.PushBack(c)
	p.clients[c.client]++
	var victim *pooled
	if p.conns.Len() > p.most {
		victim = p.greediest()
		p.remove(victim)
	}
	p.mu.Unlock()
	if victim != nil {
		victim.Conn.Close() // its server notices
		if p.full != nil {
			p.full(victim.Conn)
		}
	}
	return c
}

// greediest returns the oldest connection of the client that has most of them.
func (p *Pool) greediest() (victim *pooled) {
	most := 0
	for e := p.conns.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*pooled); p.clients[c.client] > most {
			victim, most = c, p.clients[c.client]
		}
	}
	return victim
}

func (p *Pool) remove(c *pooled) {
	if c.place == nil {
		return
	}
	p.conns.Remove(c.place)
	c.place = nil
	if p.clients[c.client]--; p.clients[c.client] == 0 {
		delete(p.clients, c.client)
	}
}

// Drain waits until no connection is left, for up to Farewell. No listener may accept any more. It stands
// for http.Server.Shutdown, which drops requests on connections that have just been accepted.
func (p *Pool) Drain() {
	for deadline := time.Now().Add(Farewell); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		p.mu.Lock()
		n := p.conns.Len()
		p.mu.Unlock()
		if n == 0 {
			return
		}
	}
}

// Close closes the connection.
func (c *pooled) Close() error {
	c.pool.mu.Lock()
	c.pool.remove(c)
	c.pool.mu.Unlock()
	return c.Conn.Close()
}
