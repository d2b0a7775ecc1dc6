package web

import (
	"container/list"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Pool bounds the connections of all listeners that share it. One connection too many ends the oldest connection of
// the owner that has most of them, among the owners of the namespace that has most of them. So a client that holds
// connections loses its own, and a probe is answered however many others hold. Its methods may be called from any
// goroutine.
type Pool struct {
	most  int
	whose func(net.Conn) Owner
	full  func(victim net.Conn) // nil, or called after each connection that was ended

	mu    sync.Mutex
	conns *list.List    // of *pooled, oldest first
	held  map[Owner]int // and those of a namespace: by an owner with no other field
}

// An Owner is whose a connection is: a client's, or a node port's of a namespace.
type Owner struct {
	Namespace string
	Client    netip.Prefix
	Port      uint16
}

// NewPool returns a pool for this many connections, or for fewer if the process may have few files. With those of
// sync/localhost, and the ports of both, all pools together leave a fifth of the files to everything else.
func NewPool(most int) *Pool {
	return NewOwnedPool(affordable(most, Files()), clientOf, nil)
}

// Files returns how many files this process may open; if the kernel does not say, the number that was usual once.
func Files() uint64 {
	files := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files)
	return files.Cur
}

// affordable returns how many connections a pool may have: a 32nd of the files at most, but two.
func affordable(most int, files uint64) int { return min(most, int(max(2, min(files, 1<<20)/32))) }

// NewOwnedPool returns a pool of connections that whose knows the owners of. It calls full with each connection that it
// has ended.
func NewOwnedPool(most int, whose func(net.Conn) Owner, full func(victim net.Conn)) *Pool {
	return &Pool{most: most, whose: whose, full: full, conns: list.New(), held: make(map[Owner]int)}
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
	pool  *Pool
	owner Owner
	place *list.Element // nil: it has left
}

// clientOf returns the host at the other end. A host has many addresses of one network in IPv6, and
// all of 127.0.0.0/8 on this node.
func clientOf(conn net.Conn) (client Owner) {
	if remote, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		addr := remote.AddrPort().Addr().Unmap().WithZone("")
		bits := min(addr.BitLen(), 64)
		if addr.Is4() && addr.IsLoopback() {
			bits = 8
		}
		client.Client, _ = addr.Prefix(bits) // valid, as the address is
	}
	return client
}

// Add takes in a connection, and ends another one if there are too many. The connection leaves the
// pool when what Add returns is closed.
func (p *Pool) Add(conn net.Conn) net.Conn {
	c := &pooled{Conn: conn, pool: p, owner: p.whose(conn)}
	p.mu.Lock()
	c.place = p.conns.PushBack(c)
	p.held[c.owner]++
	p.held[Owner{Namespace: c.owner.Namespace}]++
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

// greediest returns the oldest connection of the owner that has most of them, in the namespace that has most of them.
func (p *Pool) greediest() (victim *pooled) {
	var most [2]int
	for e := p.conns.Front(); e != nil; e = e.Next() {
		c := e.Value.(*pooled)
		held := [2]int{p.held[Owner{Namespace: c.owner.Namespace}], p.held[c.owner]}
		if slices.Compare(held[:], most[:]) > 0 {
			victim, most = c, held
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
	for _, owner := range []Owner{c.owner, {Namespace: c.owner.Namespace}} {
		if p.held[owner]--; p.held[owner] == 0 {
			delete(p.held, owner)
		}
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
