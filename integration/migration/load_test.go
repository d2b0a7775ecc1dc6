package migration

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A load makes connections from the clients' namespace without a pause and counts what
// becomes of them.
type load struct {
	pace      time.Duration // of exchanges over a connection that lasts
	stop      chan struct{}
	wait      sync.WaitGroup
	began     time.Time
	tcp, udp  atomic.Int64 // connections and exchanges that went well
	exchanges atomic.Int64 // over connections that last
	mu        sync.Mutex
	failures  []string
	slow      []string // those that needed a packet sent again, or a busy machine
}

// A target is a frontend that the load connects to.
type target struct {
	network string // tcp or udp
	address netip.AddrPort
}

// slowExchange is what counts as slow: the kernel sends a lost SYN again after a second.
const slowExchange = 700 * time.Millisecond

// A stream makes a new connection each streamPause, 250 in a second. It is longer where the processor is emulated.
var streamPause = flag.Duration("pause", 4*time.Millisecond, "between two new connections of a stream of the load")

// startLoad connects to all targets in turn: streams of new TCP connections, one of UDP, and a connection to each of
// them that lasts and is used each pace.
func startLoad(t *testing.T, n *migrationNet, targets []target, streams int, pace time.Duration) *load {
	t.Helper()
	l := &load{pace: max(pace, *streamPause), stop: make(chan struct{}), began: time.Now()}
	t.Cleanup(l.end)
	only := func(network string) []target {
		return slices.DeleteFunc(slices.Clone(targets), func(x target) bool { return x.network != network })
	}
	for range streams {
		l.worker(n.client, func() { l.stream(only("tcp"), *streamPause, &l.tcp) })
	}
	l.worker(n.client, func() { l.stream(only("udp"), *streamPause, &l.udp) })
	for _, x := range targets {
		l.worker(n.client, func() { l.last(x) })
	}
	return l
}

// worker runs f on a thread in a namespace.
func (l *load) worker(in *lab.Namespace, f func()) {
	l.wait.Go(func() {
		if err := in.Join(); err != nil {
			l.fail("%v", err)
			return
		}
		f()
	})
}

// stream makes one connection after the other, one exchange over each.
func (l *load) stream(targets []target, pause time.Duration, good *atomic.Int64) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
		if l.once(targets[i%len(targets)]) {
			good.Add(1)
		}
	}
}

// once makes a connection, sends something and waits for the echo.
func (l *load) once(x target) bool {
	began := time.Now()
	conn, err := net.DialTimeout(x.network, x.address.String(), lab.Patience)
	if err != nil {
		return l.fail("new connection to %s %s: %v", x.network, x.address, err)
	}
	defer conn.Close()
	if err := exchange(conn); err != nil {
		return l.fail("exchange with %s %s after %v: %v", x.network, x.address, time.Since(began), err)
	}
	if took := time.Since(began); took > slowExchange {
		l.note(&l.slow, "%s %s took %v", x.network, x.address, took)
	}
	return true
}

// last keeps one connection and uses it again and again.
func (l *load) last(x target) {
	conn, err := net.DialTimeout(x.network, x.address.String(), lab.Patience)
	if err != nil {
		l.fail("lasting connection to %s %s: %v", x.network, x.address, err)
		return
	}
	l.keep(conn, x)
}

// keep uses a connection again and again.
func (l *load) keep(conn exchanger, x target) {
	defer conn.Close()
	tick := time.NewTicker(l.pace)
	defer tick.Stop()
	for {
		if err := exchange(conn); err != nil {
			l.fail("lasting connection to %s %s: %v", x.network, x.address, err)
			return
		}
		l.exchanges.Add(1)
		select {
		case <-l.stop:
			return
		case <-tick.C:
		}
	}
}

// An exchanger is a connection, also of a protocol that package net lacks.
type exchanger interface {
	io.ReadWriteCloser
	SetDeadline(time.Time) error
}

// exchange sends a byte and reads it back.
func exchange(conn exchanger) error {
	if err := conn.SetDeadline(time.Now().Add(lab.Patience)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte{'x'}); err != nil {
		return err
	}
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("reset: %w", err)
	}
	return err
}

// fail notes a failure and returns false.
func (l *load) fail(format string, args ...any) bool {
	l.note(&l.failures, format, args...)
	return false
}

// note appends to a list, with the time.
func (l *load) note(list *[]string, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	*list = append(*list, time.Since(l.began).String()+": "+fmt.Sprintf(format, args...))
}

// end stops the load and waits for its last exchanges.
func (l *load) end() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.wait.Wait()
}

// await waits until the load has made n more TCP connections.
func (l *load) await(t *testing.T, n int64) {
	t.Helper()
	deadline := time.Now().Add(lab.Patience)
	for want := l.tcp.Load() + n; l.tcp.Load() < want; {
		if time.Now().After(deadline) || len(l.some()) > 0 {
			t.Fatalf("the load has failed or stalled after %d connections: %v", l.tcp.Load(), l.some())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// some returns the first failures.
func (l *load) some() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failures[:min(len(l.failures), 5)]
}

// check ends the load and fails the test if anything of it failed.
func (l *load) check(t *testing.T) {
	t.Helper()
	l.end()
	rate := float64(l.tcp.Load()) / time.Since(l.began).Seconds()
	t.Logf("%d TCP connections (%.0f/s), %d UDP exchanges, %d exchanges over lasting connections, %d of all slow %v",
		l.tcp.Load(), rate, l.udp.Load(), l.exchanges.Load(), len(l.slow), l.slow)
	if len(l.failures) > 0 {
		t.Errorf("%d failures, the first of them: %v", len(l.failures), l.some())
	}
}
