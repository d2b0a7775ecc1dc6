package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// patience bounds every wait for the daemon.
const patience = 2 * time.Minute

// A live cluster is an API server with a kube-nft that follows it, in a space where every
// endpoint answers.
type live struct {
	at         size
	space      *lab.Namespace
	server     *apiserver.Server
	observer   *observer
	listener   net.Listener
	dir        string
	kubeconfig string
	binary     string
	daemon     *measured
	fresh      sequence
}

func newLive(binary string, at size) (l *live, err error) {
	l = &live{at: at, binary: binary, server: apiserver.New()}
	if l.space, err = newSpace(true); err != nil {
		return nil, err
	}
	if err := l.space.Do(l.listen); err != nil {
		l.space.Close()
		return nil, err
	}
	go answer(l.listener)
	l.server.Apply(newNode())
	for i := range at.services {
		l.server.Apply(newService(serviceName(i), clusterIP(i)), newSlice(serviceName(i), 0, at.endpointsOf(i)))
	}
	return l, nil
}

// listen opens the sockets that belong to the space.
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
	if l.listener, err = net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", lab.EndpointPort)); err != nil {
		return err
	}
	l.observer, err = observe()
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
		_, err = l.daemon.stop()
	}
	l.server.Close()
	return errors.Join(err, l.observer.notices.Close(), l.listener.Close(), l.space.Close(), os.RemoveAll(l.dir))
}

// start starts the daemon and waits until the last Service answers.
func (l *live) start() (time.Duration, error) {
	var err error
	if l.daemon, err = startDaemon(l.space, l.binary, l.kubeconfig); err != nil {
		return 0, err
	}
	last := netip.AddrPortFrom(clusterIP(l.at.services-1), lab.ServicePort)
	if err := l.answers(last); err != nil {
		return 0, l.daemon.Failure(err)
	}
	return time.Since(l.daemon.started), nil
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
			select {
			case <-l.daemon.Exited():
				return errors.New("kube-nft has ended")
			default:
			}
		}
		return fmt.Errorf("%s does not answer within %s", to, patience)
	})
}

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
