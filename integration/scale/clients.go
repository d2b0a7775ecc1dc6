package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A routedLive is a live cluster whose client and endpoints are beyond the node, in namespaces of their own.
type routedLive struct {
	*live
	client       *lab.Namespace
	empty        int                   // Services without endpoints that were added
	replacements int                   // endpoints that were replaced one by one
	replaced     map[[2]int]netip.Addr // the endpoint that took the last place of a slice of a Service
}

// Devices of the node and of both sides. The client's address is one of a pod, so that nothing is masqueraded. No
// endpoint has one of them.
var (
	nodeToClient  = netip.MustParsePrefix("10.255.254.1/30")
	clientToNode  = netip.MustParsePrefix("10.255.254.2/30")
	nodeToPods    = netip.MustParsePrefix("10.255.254.5/30")
	podsToNode    = netip.MustParsePrefix("10.255.254.6/30")
	notEndpoints  = netip.MustParsePrefix("10.255.0.0/16")
	endpointCIDRs = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/10"), netip.MustParsePrefix("10.192.0.0/11")}
)

// newRoutedLive returns a cluster of a size, without a proxy.
func newRoutedLive(at size) (*routedLive, error) {
	var spaces [3]*lab.Namespace
	var err error
	for i := range spaces {
		if spaces[i], err = lab.NewNamespace(); err != nil {
			break
		}
	}
	r := &routedLive{client: spaces[1], replaced: make(map[[2]int]netip.Addr)}
	if err == nil {
		if err = connect(spaces[0], spaces[1], spaces[2]); err == nil {
			r.live, err = newLiveIn(spaces[0], spaces[2], "")
		}
	}
	if err != nil {
		for _, space := range spaces {
			if space != nil {
				err = errors.Join(err, space.Close())
			}
		}
		return nil, err
	}
	r.at = at
	w := worldOf(at.services, at.endpoints)
	w.fill(r.server)
	r.last = w.last
	// While a program listens, a first commit takes the kernel half as long again.
	err = r.observer.notices.Close()
	r.observer = nil
	return r, err
}

func (r *routedLive) close() error { return errors.Join(r.live.close(), r.client.Close()) }

// connect lays out the three namespaces.
func connect(node, client, pods *lab.Namespace) error {
	err := node.Do(func() error {
		// All namespaces share the limit of conntrack entries: that of a connection that was reset goes after a second.
		err := errors.Join(layNode(), lab.SetSysctl("net.netfilter.nf_conntrack_tcp_timeout_close", "1"),
			lab.Connect("client", client, "node"), lab.Connect("pods", pods, "node"),
			lab.AddAddress("client", nodeToClient), lab.AddAddress("pods", nodeToPods))
		for _, prefix := range endpointCIDRs {
			err = errors.Join(err, lab.AddRoute("pods", prefix, podsToNode.Addr()))
		}
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(
		client.Do(func() error {
			return errors.Join(lab.AddAddress("node", clientToNode), lab.AddRoute("node", serviceCIDR, nodeToClient.Addr()))
		}),
		pods.Do(func() error {
			err := errors.Join(lab.AddAddress("node", podsToNode), lab.AddRoute("node", notEndpoints, nodeToPods.Addr()),
				loadText(departedSet))
			for _, prefix := range endpointCIDRs {
				err = errors.Join(err, lab.AddLocal(prefix))
			}
			return err
		}))
}

// clientThreads is how many connections are made at the same time.
const clientThreads = 4

// connectFor bounds how long a connection may take.
const connectFor = time.Second

// A result is what clients got: how long each connect took that succeeded, the CPU time of the clients, to which the
// kernel adds what it does with their packets, and how many failed, with one of the errors.
type result struct {
	took   []time.Duration
	cpu    time.Duration
	failed int
	err    error
}

// connect lets clients connect to Services for a while.
func (r *routedLive) connect(d time.Duration) (*result, error) {
	var all result
	var mu sync.Mutex
	var wait sync.WaitGroup
	var failed error
	for i := range clientThreads {
		wait.Go(func() {
			one := result{}
			// The thread ends with this function. The signals of Go's scheduler would interrupt a connect.
			urgent := &unix.Sigset_t{Val: [16]uint64{1 << (unix.SIGURG - 1)}}
			err := errors.Join(r.client.Join(), unix.PthreadSigmask(unix.SIG_BLOCK, urgent, nil))
			if err == nil {
				var before, after unix.Rusage
				_ = unix.Getrusage(unix.RUSAGE_THREAD, &before) // it fails for a bad argument alone
				one.connectUntil(time.Now().Add(d), rand.New(rand.NewPCG(5, uint64(i))), r.at.services)
				_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
				one.cpu = time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			}
			mu.Lock()
			defer mu.Unlock()
			failed = errors.Join(failed, err)
			all.took, all.cpu = append(all.took, one.took...), all.cpu+one.cpu
			all.failed, all.err = all.failed+one.failed, errors.Join(all.err, one.err)
		})
	}
	wait.Wait()
	if failed == nil && len(all.took) == 0 {
		failed = fmt.Errorf("no connection was made in %s: %w", d, all.err)
	}
	return &all, failed
}

// connectUntil makes one connection after the other, each to a Service chosen at random.
func (r *result) connectUntil(end time.Time, random *rand.Rand, services int) {
	for time.Now().Before(end) {
		to := &unix.SockaddrInet4{Port: lab.ServicePort, Addr: clusterIP(random.IntN(services)).As4()}
		took, err := connectOnce(to)
		if err != nil {
			r.failed++
			r.err = err
		} else {
			r.took = append(r.took, took)
		}
	}
}

// connectOnce connects, waits until the endpoint closes the connection, and resets it: its port is free at once.
func connectOnce(to *unix.SockaddrInet4) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	timeout := unix.NsecToTimeval(connectFor.Nanoseconds())
	err = errors.Join(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &timeout),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout))
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	if err := unix.Connect(fd, to); err != nil {
		return 0, fmt.Errorf("connect to %s: %w", netip.AddrFrom4(to.Addr), err)
	}
	took := time.Since(begin)
	_, err = unix.Read(fd, make([]byte, 1))
	return took, err
}

// grace is how long an endpoint answers after it has left the API server.
const grace = 2 * time.Second

// departedSet refuses connections to endpoints that have left.
const departedSet = `table ip endpoints {
	set departed { type ipv4_addr; }
	chain input { type filter hook input priority 0; ip daddr @departed reject with tcp reset; }
}`

// A churn replaces endpoints. Those that left refuse connections after the grace.
type churn struct {
	l      *routedLive
	random *rand.Rand
	left   chan departed
	ended  chan error
}

type departed struct {
	addr netip.Addr
	at   time.Time
}

// newChurn must be closed.
func (l *routedLive) newChurn() *churn {
	c := &churn{l: l, random: rand.New(rand.NewPCG(7, 8)), left: make(chan departed, 1<<16), ended: make(chan error, 1)}
	go func() { c.ended <- c.stopDeparted() }()
	return c
}

// close returns when all endpoints that left refuse connections.
func (c *churn) close() error {
	close(c.left)
	return <-c.ended
}

// replace puts an endpoint of a new address into the place of another one.
func (c *churn) replace(int) {
	slice, gone, _ := c.l.replacement(c.random)
	c.l.server.Apply(slice)
	c.left <- departed{gone, time.Now()}
}

// replacement is a slice, chosen at random, with an endpoint of a new address in the place of its last one.
func (l *routedLive) replacement(random *rand.Rand) (slice *discoveryv1.EndpointSlice, gone, came netip.Addr) {
	service := random.IntN(l.at.services)
	addrs := l.at.endpointsOf(service)
	part := random.IntN((len(addrs) + perSlice - 1) / perSlice)
	addrs = addrs[part*perSlice : min(len(addrs), (part+1)*perSlice)]
	last := &addrs[len(addrs)-1]
	place := [2]int{service, part}
	gone = *last
	if before, ok := l.replaced[place]; ok {
		gone = before
	}
	*last = l.fresh.next()
	l.replaced[place] = *last
	return newSlice(serviceName(service), part, addrs), gone, *last
}

// stopDeparted lets endpoints refuse connections, several at a time: each time is a program that runs.
func (c *churn) stopDeparted() error {
	const several = 50
	var list []string
	for d := range c.left {
		time.Sleep(time.Until(d.at.Add(grace)))
		if list = append(list, d.addr.String()); len(list) < several && len(c.left) > 0 {
			continue
		}
		text := "add element ip endpoints departed { " + strings.Join(list, ", ") + " }"
		if err := c.l.pods.Do(func() error { return loadText(text) }); err != nil {
			return err
		}
		list = nil
	}
	return nil
}
