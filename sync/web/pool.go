package web

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// A Pool bounds the connections of all listeners that share it. Whoever opens one too many ends the
// oldest connection of the client that has most of them, so that a client that holds connections
// loses its own, and a probe is answered however many others hold. Its methods may be called from
// any goroutine.
type Pool struct {
	most int

	mu      sync.Mutex
	conns   *list.List // of *pooled, oldest first
	clients map[netip.Prefix]int
}

// NewPool returns a pool for this many connections.
func NewPool(most int) *Pool {
	return &Pool{most: most, conns: list.New(), clients: make(map[netip.Prefix]int)}
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
	return l.pool.add(conn), nil
}

// A pooled connection leaves its pool when it is closed.
type pooled struct {
	net.Conn
	pool   *Pool
	client netip.Prefix
	place  *list.Element // nil: it has left
}

// clientOf returns the host at the other end, of IPv6 its network: a host has many addresses there.
func clientOf(conn net.Conn) (client netip.Prefix) {
	if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		addr := remote.AddrPort().Addr().Unmap().WithZone("")
		client, _ = addr.Prefix(min(addr.BitLen(), 64)) // valid, as the address is
	}
	return client
}

// add takes in a connection, and closes another one if there are too many.
func (p *Pool) add(conn net.Conn) net.Conn {
	c := &pooled{Conn: conn, pool: p, client: clientOf(conn)}
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

// Drain waits until no connection is left, for up to Farewell. Nobody may accept any more. It stands
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
