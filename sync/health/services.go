package health

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/sync/retry"
	"github.com/kube-nft/kube-nft/sync/web"
	"github.com/kube-nft/kube-nft/tracker"
)

// yieldInterval is the pause before the second try at a port that could not be opened: another proxy may close it just
// now, as when a Service passes from one to the other. The pause doubles up to reopenInterval, but not while StandIn is
// on. Trying takes a quarter of the time at most.
const (
	reopenInterval = 5 * time.Second
	yieldInterval  = 50 * time.Millisecond
)

// Limits of problems that are reported in a minute, each once an hour.
const (
	problemsPerNamespace = 10
	problemsTotal        = 100
)

// connections is how many there may be at all health-check node ports together.
const connections = 256

// Services answers on the health-check node ports of Services. Make it with NewServices;
// Apply may be called while Run runs.
type Services struct {
	healthy func() bool
	failed  func(Service, error)
	log     *zap.Logger
	wake    retry.Wake // when open ports may differ from those that should be
	pool    *web.Pool
	most    int // ports that are open at a time, each at each address

	mu        sync.Mutex
	checks    *checks
	addresses []netip.Addr
	applied   bool // Apply has been called

	unserved atomic.Int64
	standIn  atomic.Bool
	tried    atomic.Bool

	// The goroutine of Run owns the rest.
	open     map[netip.AddrPort]*listener
	reported *quota.Quota // of problems passed to failed
}

// A listener is an open port of a Service.
type listener struct {
	service Service
	socket  net.Listener
	server  *http.Server
	serving chan struct{} // closed when no connection is accepted any more
}

// close closes the port at once. The server closes only listeners that its goroutine has registered
// already.
func (l *listener) close() {
	l.server.Close()
	l.socket.Close()
}

// NewServices returns Services without any Service. healthy says whether the proxy works. The
// goroutine of Run calls failed with reasons why ports of Services are not served, within limits.
func NewServices(healthy func() bool, failed func(Service, error), log *zap.Logger) *Services {
	return &Services{
		healthy: healthy,
		failed:  failed,
		log:     log,
		wake:    retry.NewWake(),
		pool:    web.NewPool(connections),
		most:    int(min(web.Files()/4, 1<<16)), // the source needs some, too
		checks:  newChecks(),
		open:    make(map[netip.AddrPort]*listener),
		reported: &quota.Quota{Interval: time.Minute, PerNamespace: problemsPerNamespace, Total: problemsTotal,
			Repeat: time.Hour},
	}
}

// Apply applies a commit's changes, and the addresses at which ports are now served; an unspecified
// address stands for its whole family. It does not wait for ports to open.
func (s *Services) Apply(delta *tracker.Delta, addresses []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.checks.apply(delta)
	if s.applied && !changed && slices.Equal(s.addresses, addresses) {
		return
	}
	s.applied = true
	s.addresses = addresses
	s.wake.Notify()
}

// StandIn says whether kube-proxy may still have the ports: then Run tries again soon, and does not report
// those that are not free.
func (s *Services) StandIn(on bool) {
	s.standIn.Store(on)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applied {
		s.wake.Notify()
	}
}

// Run opens and closes ports until ctx ends. Then it closes them all, and lets requests finish.
func (s *Services) Run(ctx context.Context) error {
	defer s.shutdown()
	var again <-chan time.Time
	backoff := retry.Backoff{Min: yieldInterval, Max: reopenInterval}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			backoff.Reset()
		case <-again:
		}
		again = nil
		began := time.Now()
		wanted, problems := s.wanted()
		open, rest := s.reconcile(ctx, wanted, problems), retry.Rest(time.Since(began))
		s.tried.Store(true)
		if !open {
			if s.standIn.Load() {
				backoff.Reset()
			}
			again = time.After(max(backoff.Next(), rest))
		}
		retry.Pause(ctx, rest) // any tenant can wake it all the time
	}
}

// shutdown closes all ports and lets requests finish.
func (s *Services) shutdown() {
	for _, l := range s.open {
		l.socket.Close()
		<-l.serving
	}
	s.pool.Drain()
	for at, l := range s.open {
		l.server.Close()
		delete(s.open, at)
	}
}

// wanted returns the ports that should be open, and the Services that lose a port to others or to
// the limit.
func (s *Services) wanted() (map[netip.AddrPort]Service, map[Service]error) {
	s.mu.Lock()
	services, addresses := maps.Clone(s.checks.services), s.addresses // Apply does not wait for the rest
	s.mu.Unlock()
	won, lost := winners(services)
	ports := make(map[netip.AddrPort]Service, len(won)*len(addresses))
	for at, service := range won {
		for _, addr := range addresses {
			if tracker.FamilyOf(addr) == at.family {
				ports[netip.AddrPortFrom(addr, at.port)] = service
			}
		}
	}
	if len(ports) > s.most {
		s.bound(services, ports, lost)
	}
	return ports, lost
}

// bound leaves out Services until no more than the limit of ports are open: any tenant can make
// many. Each namespace keeps its oldest Services, as many as every other namespace.
func (s *Services) bound(services map[Service]*tracker.ServicePort, ports map[netip.AddrPort]Service,
	lost map[Service]error) {
	sizes := make(map[Service]int)
	for _, service := range ports {
		sizes[service]++
	}
	order := slices.SortedFunc(maps.Keys(sizes), func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), tracker.ByAge(services[a], services[b]))
	})
	ranks, open := make(map[Service]int), 0 // in the namespace
	for i, service := range order {
		if i > 0 && order[i-1].Namespace == service.Namespace {
			ranks[service] = ranks[order[i-1]] + 1
		}
	}
	slices.SortStableFunc(order, func(a, b Service) int { return cmp.Compare(ranks[a], ranks[b]) })
	for _, service := range order {
		if open += sizes[service]; open > s.most {
			lost[service] = fmt.Errorf("kube-nft does not open health check node port %d (%s) of Service %s: it opens at most "+
				"%d such ports, a quarter of the files that it may open; the oldest Services of each namespace come first",
				services[service].HealthCheckNodePort, service.Family, service, s.most)
		}
	}
	maps.DeleteFunc(ports, func(_ netip.AddrPort, service Service) bool { return lost[service] != nil })
}

// reconcile opens exactly the wanted ports, and reports whether it could. Closing comes first: a
// port may pass from one Service to another, or from one address to all.
func (s *Services) reconcile(ctx context.Context, wanted map[netip.AddrPort]Service,
	problems map[Service]error) (done bool) {
	for at, l := range s.open {
		if service, ok := wanted[at]; !ok || service != l.service {
			l.close()
			delete(s.open, at)
		}
	}
	done = true
	for _, at := range slices.SortedFunc(maps.Keys(wanted), netip.AddrPort.Compare) {
		if s.open[at] != nil {
			continue
		}
		if err := s.listen(ctx, at, wanted[at]); err != nil {
			problems[wanted[at]], done = err, false
		}
	}
	s.report(problems)
	return done
}

// Tried reports whether all ports have been tried since the first Apply.
func (s *Services) Tried() bool { return s.tried.Load() }

// Unserved returns how many Services have a port that is not served, counted in each family.
func (s *Services) Unserved() int { return int(s.unserved.Load()) }

// report passes problems on to failed.
func (s *Services) report(problems map[Service]error) {
	if s.standIn.Load() {
		return
	}
	s.unserved.Store(int64(len(problems)))
	for service, err := range problems {
		if s.reported.Allow(service.Namespace, service.Name+" "+err.Error()) {
			s.failed(service, err)
		}
	}
}

// listen opens a port. Each family has its own: a wildcard of IPv6 does not include IPv4.
func (s *Services) listen(ctx context.Context, at netip.AddrPort, service Service) error {
	socket, err := web.Listen(ctx, web.Network(at.Addr()), at.String())
	if err != nil {
		return fmt.Errorf("health check of Service %s: %w; kube-nft tries again after %s, later every %s", service, err,
			yieldInterval, reopenInterval)
	}
	server := web.NewServer(&answer{services: s, service: service}, false, s.log)
	l := &listener{service: service, socket: socket, server: server, serving: make(chan struct{})}
	s.open[at] = l
	go func() {
		defer close(l.serving)
		server.Serve(s.pool.Limit(socket)) // ends with Close; failed connections concern only the client
	}()
	return nil
}

// ready returns the number of ready endpoints that a Service has on this node.
func (s *Services) ready(service Service) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if port := s.checks.services[service]; port != nil {
		return port.LocalReady
	}
	return 0
}

// An answer is what a load balancer gets at the health-check node port of a Service.
type answer struct {
	services *Services
	service  Service
}

// A serviceReport is the body, with kube-proxy's fields.
type serviceReport struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints int  `json:"localEndpoints"`
	ProxyHealthy   bool `json:"serviceProxyHealthy"`
}

// ServeHTTP answers any request: 200 if the Service has a ready endpoint on this node and the
// proxy works, else 503.
func (a *answer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	r := serviceReport{LocalEndpoints: a.services.ready(a.service), ProxyHealthy: a.services.healthy()}
	r.Service.Namespace, r.Service.Name = a.service.Namespace, a.service.Name
	body, _ := json.MarshalIndent(r, "", "\t") // has only what JSON can have
	code := http.StatusServiceUnavailable
	if r.LocalEndpoints > 0 && r.ProxyHealthy {
		code = http.StatusOK
	}
	w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(r.LocalEndpoints))
	web.Answer(w, code, "application/json", body)
}
