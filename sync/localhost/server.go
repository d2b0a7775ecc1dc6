package localhost

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// dialTimeout bounds the attempt to reach one endpoint; attempts bounds the number of attempts.
const (
	dialTimeout = 5 * time.Second
	attempts    = 3
)

// A server listens on one node port.
type server struct {
	log   *zap.Logger
	lines *quota.Quota
	at    netip.AddrPort
	stop  context.CancelFunc
	pool  *web.Pool
	retry time.Duration // pause before another try at a port in use

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

// listenRetry is the pause before another try at a node port in use.
const listenRetry = 5 * time.Second

// owner returns whose the connections are that come now.
func (s *server) owner() web.Owner {
	s.mu.Lock()
	defer s.mu.Unlock()
	return web.Owner{Namespace: s.port.ID.Namespace, Port: s.at.Port()}
}

// logged reports whether to log one more line about this node port.
func (s *server) logged(key string) bool {
	return s.lines.Allow(s.owner().Namespace, s.at.String()+" "+key)
}

// run accepts connections until ctx ends; they last until node ends. It logs an error of the listener
// once for as long as it stays the same.
func (s *server) run(ctx, node context.Context) {
	var failing quota.Once
	for ctx.Err() == nil {
		err := s.listen(ctx, node, &failing)
		if err != nil && ctx.Err() == nil && failing.Report(err.Error()) && s.logged(err.Error()) {
			s.log.Warn("node port is not served at localhost", zap.Stringer("address", s.at), zap.Error(err),
				zap.Duration("retry_in", s.retry))
		}
		retry.Pause(ctx, s.retry)
	}
}

func (s *server) listen(ctx, node context.Context, failing *quota.Once) error {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, web.Network(s.at.Addr()), s.at.String())
	if err != nil {
		return err
	}
	if failing.Over() && s.logged("served") {
		s.log.Info("node port is served at localhost now", zap.Stringer("address", s.at))
	}
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return errors.Join(err, listener.Close())
		}
		ctx, stop := context.WithCancel(node)
		go s.forward(ctx, conn.(*net.TCPConn), s.pool.Add(&stopping{conn, s.owner(), stop}))
	}
}

// A stopping connection is one of a client. When the pool closes it, an attempt to reach an endpoint for it ends, too:
// that has a file as well.
type stopping struct {
	net.Conn
	owner web.Owner
	stop  context.CancelFunc
}

func ownerOf(conn net.Conn) web.Owner { return conn.(*stopping).owner }

// Close closes the connection.
func (c *stopping) Close() error {
	c.stop()
	return c.Conn.Close()
}

// forward connects a client to an endpoint and copies until both sides are done. Closing pooled closes
// client, ends ctx, and gives its place to others.
func (s *server) forward(ctx context.Context, client *net.TCPConn, pooled net.Conn) {
	defer pooled.Close()
	endpoint, err := s.dial(ctx)
	if err != nil {
		if ctx.Err() == nil && s.logged("no endpoint") {
			s.log.Warn("no endpoint answers", zap.Stringer("address", s.at), zap.Error(err))
		}
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
		conn, err := dialer.DialContext(ctx, web.Network(ep.Addr()), ep.String())
		if err == nil {
			s.pin(ep, time.Now())
			return conn.(*net.TCPConn), nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// candidates lists the endpoints to try, in an order that chance makes, with their weights. A hash does
// not choose here: all clients have one address.
func (s *server) candidates(now time.Time) (list []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := tracker.Served{List: s.port.Cluster, Port: s.port.TargetPort}
	if now.Before(s.until) && all.Has(s.pinned) {
		list = append(list, s.pinned)
	}
	for _, i := range weightedOrder(len(s.port.Cluster), s.port.ClusterWeights) {
		ep := s.port.Endpoints(s.port.Cluster[i : i+1])[0]
		if len(list) < attempts && !slices.Contains(list, ep) {
			list = append(list, ep)
		}
	}
	return list
}

// weightedOrder returns the first endpoints of a random order of n, as many as there are attempts. Each is the first
// one as often as its weight says: the shortest of waiting times whose rates are the weights comes first. Nil weights
// are equal: of 100,000 endpoints, only those are looked at that are returned.
func weightedOrder(n int, weights []uint16) (order []int) {
	if weights == nil {
		for len(order) < min(attempts, n) {
			if i := rand.IntN(n); !slices.Contains(order, i) {
				order = append(order, i)
			}
		}
		return order
	}
	times := make([]float64, len(weights))
	for i := range times {
		times[i] = rand.ExpFloat64() / float64(weights[i])
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(times[a], times[b]) })
	return order[:min(attempts, n)]
}

// pin records the endpoint of the node's connection, if the Service has session affinity.
func (s *server) pin(ep netip.AddrPort, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinned, s.until = ep, now.Add(s.port.Affinity)
}
