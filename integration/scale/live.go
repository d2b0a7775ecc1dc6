package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// patience bounds every wait for the daemon.
var patience = 2 * time.Minute

// A live cluster is an API server with a kube-nft that follows it, in a space where every
// endpoint answers.
type live struct {
	at         size
	space      *lab.Namespace // the node
	pods       *lab.Namespace // the endpoints; may be the same
	server     *apiserver.Server
	observer   *observer
	listener   net.Listener
	dir        string
	kubeconfig string
	binary     string
	flags      []string       // of the daemon, besides those of startDaemon
	plain      bool           // the daemon may be a kube-proxy, which has not all flags of kube-nft
	last       netip.AddrPort // what the daemon's start is over with: it answers
	daemon     *measured
	fresh      sequence
}

// newLive returns a live cluster of a size.
func newLive(binary string, at size) (*live, error) {
	l, err := newEmptyLive(binary)
	if err != nil {
		return nil, err
	}
	l.at, l.last = at, netip.AddrPortFrom(clusterIP(at.services-1), lab.ServicePort)
	for i := range at.services {
		l.server.Apply(newService(serviceName(i), clusterIP(i)), newSlice(serviceName(i), 0, at.endpointsOf(i)))
	}
	return l, nil
}

// newEmptyLive returns a live cluster of a node alone.
func newEmptyLive(binary string) (*live, error) {
	space, err := newSpace(true)
	if err != nil {
		return nil, err
	}
	l, err := newLiveIn(space, space, binary)
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	return l, nil
}

// newLiveIn returns a live cluster of a node alone, which is one namespace; its endpoints are another one, or the same.
func newLiveIn(space, pods *lab.Namespace, binary string) (*live, error) {
	l := &live{binary: binary, server: apiserver.New(), space: space, pods: pods}
	if err := errors.Join(space.Do(l.listen), pods.Do(l.listenAsEndpoint)); err != nil {
		return nil, err
	}
	go answer(l.listener)
	l.server.Apply(newNode())
	return l, nil
}

// listen opens the sockets that belong to the node.
func (l *live) listen() (err error) {
	if l.dir, err = os.MkdirTemp("", "kube-nft-scale-"); err != nil {
		return err
	}
	if _, err = l.server.Start("127.0.0.1:0"); err != nil {
		return err
	}
	if l.kubeconfig, err = l.server.Kubeconfig(l.dir); err != nil {
		return err
	}
	l.observer, err = observe()
	return err
}

func (l *live) listenAsEndpoint() (err error) {
	l.listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", lab.EndpointPort))
	return err
}

// answer takes connections and ends them.
func answer(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_ = conn.Close() // the client may be gone
	}
}

// close ends everything. It may be called with the daemon running.
func (l *live) close() error {
	var err error
	if l.daemon != nil {
		err = l.daemon.stop()
	}
	l.server.Close()
	if l.observer != nil {
		err = errors.Join(err, l.observer.notices.Close())
	}
	if l.pods != l.space {
		err = errors.Join(err, l.pods.Close())
	}
	return errors.Join(err, l.listener.Close(), l.space.Close(), os.RemoveAll(l.dir))
}

// reset ends the daemon and removes what it has left in the kernel.
func (l *live) reset() error {
	if l.daemon != nil {
		if err := l.daemon.stop(); err != nil {
			return err
		}
		l.daemon = nil
	}
	return l.space.Do(func() error { return loadText("flush ruleset") })
}

// startUnobserved is start after the removal of what an earlier one has left in the kernel, and
// without the observer: while a program listens, a first commit takes the kernel half as long again.
func (l *live) startUnobserved() (took time.Duration, err error) {
	if err := errors.Join(l.observer.notices.Close(), l.reset()); err != nil {
		return 0, err
	}
	took, startErr := l.start()
	err = l.space.Do(func() error {
		again, err := observe()
		if err == nil {
			l.observer = again
		}
		return err
	})
	return took, errors.Join(startErr, err)
}

// start starts the daemon and waits until the last Service answers.
func (l *live) start() (time.Duration, error) {
	var err error
	if l.daemon, err = l.startDaemon(); err != nil {
		return 0, err
	}
	if err := l.answers(l.last); err != nil {
		return 0, l.daemon.Failure(err)
	}
	return time.Since(l.daemon.started), nil
}

// farewell ends the daemon and returns how long that took.
func (l *live) farewell() (time.Duration, error) {
	m, begin := l.daemon, time.Now()
	if err := m.Signal(syscall.SIGTERM); err != nil {
		return 0, m.Failure(err)
	}
	select {
	case <-m.Exited():
	case <-time.After(patience):
		return 0, m.Failure(fmt.Errorf("it does not end within %s of SIGTERM", patience))
	}
	took := time.Since(begin)
	l.daemon = nil
	if m.ExitCode() != 0 {
		return 0, m.Failure(fmt.Errorf("on SIGTERM: %s", m.State()))
	}
	return took, nil
}

// attemptFor is how long a connection may take before the next one is tried.
const attemptFor = 5 * time.Millisecond

// answers waits until a connection to a Service can be made.
func (l *live) answers(to netip.AddrPort) error {
	return l.space.Do(func() error {
		dialer := net.Dialer{Timeout: attemptFor}
		for end := time.Now().Add(patience); time.Now().Before(end); {
			if conn, err := dialer.Dial("tcp4", to.String()); err == nil {
				return conn.Close()
			}
			if l.daemon == nil {
				continue
			}
			select {
			case <-l.daemon.Exited():
				return fmt.Errorf("%s has ended", l.binary)
			default:
			}
		}
		return tooLate(fmt.Sprintf("%s does not answer within %s", to, patience))
	})
}

// tooLate says what did not happen within the patience.
type tooLate string

func (e tooLate) Error() string { return string(e) }

// replace puts a fresh endpoint in the place of the last one of Service i.
func (l *live) replace(i int) netip.Addr {
	addrs := l.at.endpointsOf(i)
	addrs[len(addrs)-1] = l.fresh.next()
	slice := newSlice(serviceName(i), 0, addrs)
	l.observer.expect(addrs[len(addrs)-1])
	l.server.Apply(slice)
	return addrs[len(addrs)-1]
}

// add adds Service number n after those that are there.
func (l *live) add(n int) netip.Addr {
	name := fmt.Sprintf("added-%d", n)
	var addrs []netip.Addr
	for range l.at.endpoints {
		addrs = append(addrs, l.fresh.next())
	}
	service, slice := newService(name, clusterIP(maxServices+n)), newSlice(name, 0, addrs)
	l.observer.expect(addrs[0])
	l.server.Apply(service, slice)
	return addrs[0]
}

// get asks a server inside the space.
func (l *live) get(url string) (*http.Response, error) {
	dial := func(_ context.Context, network, address string) (conn net.Conn, err error) {
		err = l.space.Do(func() (err error) {
			conn, err = net.Dial(network, address)
			return err
		})
		return conn, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
	return client.Get(url)
}

// metric returns the value of a metric of the daemon that has no labels.
func (l *live) metric(name string) (float64, error) {
	response, err := l.get("http://127.0.0.1:10249/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, errors.Join(fmt.Errorf("no metric %s", name), lines.Err())
}

// meanwhile calls do at a rate, until stop is called.
func meanwhile(rate int, do func(n int)) (stop func()) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		for i, begin := 0, time.Now(); ; {
			for due := 1 + int(time.Since(begin).Seconds()*float64(rate)); i < due; i++ {
				do(i)
			}
			select {
			case <-end:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}
