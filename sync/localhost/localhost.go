// Package localhost serves node ports at loopback addresses.
//
// The ruleset serves 127.0.0.1, once the kernel routes such packets: Route sets the sysctl. The
// kernel never routes ::1, so a Proxy listens there for TCP and copies; UDP and SCTP are not
// served.
//
// Clients are on this node itself, for which external traffic policy Local does not hold:
// connections go to the cluster-wide list, as they do for every other address of the node.
package localhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// dialTimeout bounds the attempt to reach one endpoint; attempts bounds the number of attempts.
const (
	dialTimeout = 5 * time.Second
	attempts    = 3
)

// What a Proxy has at most: connections, which take six files each while they are spliced, and node
// ports. Of the files that kube-nft may open, connections get no more than three eighths, and node
// ports no more than a quarter.
const (
	mostConnections    = 1024
	filesPerConnection = 16
	filesPerPort       = 4
)

// A Proxy serves TCP node ports at [::1]. Make it with NewProxy.
//
// All its clients have one address. If they open more connections than it may have, the oldest
// connection to the node port that has most of them ends.
type Proxy struct {
	ctx  context.Context
	log  *zap.Logger
	pool *web.Pool
	most int // node ports

	// Apply's goroutine owns these fields.
	numbers map[tracker.PortID]uint16 // the node port of each Service port that has one
	claims  map[uint16]map[tracker.PortID]*tracker.ServicePort
	servers map[uint16]*server
}

// NewProxy returns a Proxy without node ports. When ctx ends, so do its listeners and
// connections.
func NewProxy(ctx context.Context, log *zap.Logger) *Proxy {
	files := syscall.Rlimit{Cur: 1024}
	_ = syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files) // else what was usual once
	return newProxy(ctx, log, int(min(files.Cur/filesPerConnection, mostConnections)), int(min(files.Cur/filesPerPort, 1<<16)))
}

func newProxy(ctx context.Context, log *zap.Logger, connections, ports int) *Proxy {
	var logged atomic.Int64 // when, in seconds since the start
	began := time.Now()
	full := func(victim net.Conn) {
		now, last := int64(time.Since(began)/time.Second), logged.Load()
		if (last == 0 || now-last >= fullInterval) && logged.CompareAndSwap(last, max(now, 1)) {
			log.Warn("node ports at [::1] have too many connections: the oldest of the one with most ends for each further one",
				zap.Stringer("node_port", victim.LocalAddr()), zap.Int("connections", connections))
		}
	}
	return &Proxy{
		ctx: ctx, log: log, pool: web.NewPortPool(connections, full), most: ports,
		numbers: make(map[tracker.PortID]uint16),
		claims:  make(map[uint16]map[tracker.PortID]*tracker.ServicePort),
		servers: make(map[uint16]*server),
	}
}

// Apply applies a commit's changes. Connections under way go on. It must not run in two goroutines
// at a time.
func (p *Proxy) Apply(delta tracker.Delta) {
	touched := make(map[uint16]bool)
	for id := range delta.Removed {
		p.set(id, nil, touched)
	}
	for id, port := range delta.Changed {
		p.set(id, port, touched)
	}
	for number := range touched {
		p.serve(number, p.oldest(number))
	}
}

// set keeps the value of a Service port if its node port is served here.
func (p *Proxy) set(id tracker.PortID, port *tracker.ServicePort, touched map[uint16]bool) {
	if id.Protocol != tracker.TCP || id.Family != tracker.IPv6 {
		return
	}
	if number, ok := p.numbers[id]; ok {
		touched[number] = true
		delete(p.numbers, id)
		delete(p.claims[number], id)
	}
	if port == nil || port.NodePort == 0 {
		return
	}
	touched[port.NodePort] = true
	p.numbers[id] = port.NodePort
	if p.claims[port.NodePort] == nil {
		p.claims[port.NodePort] = make(map[tracker.PortID]*tracker.ServicePort)
	}
	p.claims[port.NodePort][id] = port
}

// oldest returns the Service port that gets a node port: the oldest one, as in the ruleset.
func (p *Proxy) oldest(number uint16) (oldest *tracker.ServicePort) {
	for _, port := range p.claims[number] {
		if oldest == nil || port.Older(oldest) {
			oldest = port
		}
	}
	if oldest == nil {
		delete(p.claims, number)
	}
	return oldest
}

// serve starts, changes or stops the server of a node port.
func (p *Proxy) serve(number uint16, port *tracker.ServicePort) {
	s := p.servers[number]
	if port == nil || len(port.Cluster) == 0 {
		if s != nil {
			s.stop()
			delete(p.servers, number)
		}
		return
	}
	if s == nil && len(p.servers) >= p.most {
		p.log.Warn("node port is not served at [::1]: as many are served as kube-nft may open files for; raise that limit", zap.Uint16("node_port", number), zap.Int("served", p.most))
		return
	}
	if s == nil {
		ctx, stop := context.WithCancel(p.ctx)
		s = &server{log: p.log, pool: p.pool, number: number, stop: stop}
		p.servers[number] = s
		go s.run(ctx, p.ctx)
	}
	s.set(port)
}

// A server listens on one node port.
type server struct {
	log    *zap.Logger
	pool   *web.Pool
	number uint16
	stop   context.CancelFunc

	mu     sync.Mutex
	port   *tracker.ServicePort
	pinned netip.AddrPort // the node's endpoint by session affinity, valid before until
	until  time.Time
}

func (s *server) set(port *tracker.ServicePort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.port = port
}

// fullInterval is how often a Proxy logs at most that it ends connections, in seconds.
const fullInterval = 60

// listenRetry is the pause before another try at a node port in use.
const listenRetry = 5 * time.Second

// run accepts connections until ctx ends; they last until node ends.
func (s *server) run(ctx, node context.Context) {
	for ctx.Err() == nil {
		if err := s.listen(ctx, node); err != nil && ctx.Err() == nil {
			s.log.Warn("node port is not served at [::1]", zap.Uint16("node_port", s.number), zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry):
		}
	}
}

func (s *server) listen(ctx, node context.Context) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), s.number).String())
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		go s.forward(node, conn.(*net.TCPConn), s.pool.Add(conn))
	}
}

// forward connects a client to an endpoint and copies until both sides are done. Closing pooled closes
// client, and gives its place to others.
func (s *server) forward(ctx context.Context, client *net.TCPConn, pooled net.Conn) {
	defer pooled.Close()
	endpoint, err := s.dial(ctx)
	if err != nil {
		s.log.Warn("no endpoint answers", zap.Uint16("node_port", s.number), zap.Error(err))
		client.SetLinger(0) // sends a reset, as for a refused connection
		return
	}
	defer endpoint.Close()
	defer context.AfterFunc(ctx, func() { client.Close(); endpoint.Close() })()
	var copying sync.WaitGroup
	copying.Go(func() { pour(endpoint, client) })
	copying.Go(func() { pour(client, endpoint) })
	copying.Wait()
}

// pour copies until from ends, and then closes the sending side of to.
func pour(to, from *net.TCPConn) {
	if _, err := io.Copy(to, from); err != nil {
		to.SetLinger(0)
		to.Close()
		return
	}
	to.CloseWrite()
}

// dial connects to the pinned endpoint, or to a random one, and to others if that does not answer.
func (s *server) dial(ctx context.Context) (*net.TCPConn, error) {
	var errs []error
	for _, ep := range s.candidates(time.Now()) {
		dialer := net.Dialer{Timeout: dialTimeout}
		conn, err := dialer.DialContext(ctx, "tcp6", ep.String())
		if err == nil {
			s.pin(ep, time.Now())
			return conn.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// candidates lists the endpoints to try, in order.
func (s *server) candidates(now time.Time) []netip.AddrPort {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]netip.AddrPort, 0, attempts)
	for _, i := range rand.Perm(len(s.port.Cluster)) {
		ep := s.port.Cluster[i]
		switch {
		case ep == s.pinned && now.Before(s.until):
			list = append([]netip.AddrPort{ep}, list...)
		default:
			list = append(list, ep)
		}
	}
	return list[:min(attempts, len(list))]
}

// pin notes the endpoint of the node's connection, if the Service has session affinity.
func (s *server) pin(ep netip.AddrPort, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinned, s.until = ep, now.Add(s.port.Affinity)
}

// routeLocalnet is the sysctl that lets packets with loopback addresses leave and enter by other
// interfaces (Documentation/networking/ip-sysctl.rst).
const routeLocalnet = "net/ipv4/conf/all/route_localnet"

// Route makes the kernel route packets from and to 127.0.0.1; root is the path of /proc/sys. It
// reports whether it changed anything. The rule that keeps other hosts out must be in force before:
// after Route, nothing else keeps them out.
func Route(root string) (changed bool, err error) {
	path := filepath.Join(root, routeLocalnet)
	on, err := routed(path)
	if on {
		return false, nil
	}
	if err == nil {
		err = os.WriteFile(path, []byte("1"), 0)
	}
	if err != nil {
		return false, fmt.Errorf("node ports at 127.0.0.1 need the sysctl net.ipv4.conf.all.route_localnet=1: %w; set it on the host", err)
	}
	return true, nil
}

// Exposure says what the kernel leaves open if it routes loopback addresses while no rule of ours
// keeps other hosts out, and how to close it; empty if the kernel does not route them. root is the
// path of /proc/sys. Exposure does not reset the sysctl: nobody knows who set it.
func Exposure(root string) string {
	if on, _ := routed(filepath.Join(root, routeLocalnet)); !on {
		return ""
	}
	return "the sysctl net.ipv4.conf.all.route_localnet is 1, as --localhost-nodeports and kube-proxy's iptables mode leave it, and no rule of kube-nft's " +
		"keeps neighbours on the network from what listens at 127.0.0.1; unless something on this node needs it: sysctl -w net.ipv4.conf.all.route_localnet=0"
}

// routed reports whether the sysctl is set.
func routed(path string) (bool, error) {
	value, err := os.ReadFile(path)
	return err == nil && strings.TrimSpace(string(value)) == "1", err
}
