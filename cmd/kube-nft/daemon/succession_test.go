package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/sync/web"
)

// TestHandOverToLateSuccessor: a process that has asked for the sockets gets them, even if nobody has
// heard it yet when the end comes; and one that says nothing does not hold the end up for long.
func TestHandOverToLateSuccessor(t *testing.T) {
	lab.Require(t) // only CAP_NET_ADMIN can succeed
	for _, tt := range []struct {
		name    string
		request string
		heard   time.Duration // after the end has come
		want    int           // sockets
	}{
		{"heard late", requestSucceed + "\n", 30 * time.Millisecond, 1},
		{"heard before", requestSucceed + "\n", -30 * time.Millisecond, 1},
		{"says nothing", "", -30 * time.Millisecond, 0},
		{"never heard", requestSucceed + "\n", time.Hour, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			const tries = 5 // a busy machine may not hear anybody while handOver waits
			got := -1
			for n := 0; got != tt.want && n < tries; n++ {
				got = handOverTo(t, tt.request, tt.heard)
			}
			if got != tt.want {
				t.Errorf("%d sockets, want %d, %d times", got, tt.want, tries)
			}
		})
	}
}

// handOverTo hands one socket over to a process that sends a request, and is heard so long after the end
// has come, or before it. It returns how many sockets the process gets.
func handOverTo(t *testing.T, request string, heard time.Duration) int {
	t.Helper()
	s := &succession{log: zap.NewNop(), sockets: web.NewSockets()}
	socket, err := s.sockets.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	address := &net.UnixAddr{Name: fmt.Sprintf("@kube-nft-test-%d", time.Now().UnixNano()), Net: "unix"}
	door, err := net.ListenUnix("unix", address)
	if err != nil {
		t.Fatal(err)
	}
	s.opened(door)
	next, err := net.DialUnix("unix", nil, address)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	heir := &succession{sockets: web.NewSockets(), last: next}
	type result struct {
		n   int
		err error
	}
	received := make(chan result, 1)
	fmt.Fprint(next, request)
	next.SetReadDeadline(time.Now().Add(time.Minute))
	go func() {
		n, err := heir.receive(next, mostInherited()) // it proves its right before
		received <- result{n, err}
	}()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	hear := func() { (&daemon{log: zap.NewNop(), succession: s}).answerPeers(ctx, door, nil) }
	if heard < 0 {
		go hear()
		time.Sleep(-heard) // if it is not heard by then, it is while handOver waits
	} else {
		defer time.AfterFunc(heard, hear).Stop()
	}
	began := time.Now()
	s.handOver()
	if took := time.Since(began); took > 10*handOverPatience {
		t.Errorf("the hand-over took %v", took)
	}
	stop()
	door.Close()
	got := <-received
	if got.err != nil {
		t.Error(got.err)
	}
	return got.n
}

// TestReceiveSockets: of what the one before hands over, sockets count that are here, listen where they
// should and are not too many.
func TestReceiveSockets(t *testing.T) {
	lab.Require(t)
	elsewhere := lab.Open(t, lab.NewNamespace)
	for _, tt := range []struct {
		name    string
		from    func(func() error) error // where the sockets are
		want    int
		wantErr string
	}{
		{"few", func(f func() error) error { return f() }, 3, ""},
		{"elsewhere", elsewhere.Do, 0, "a socket of another network namespace for \"tcp 0.0.0.0:"},
		{"many", func(f func() error) error { return f() }, 3, "more than 3 sockets"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			number := 3
			if tt.name == "many" {
				number++
			}
			last := &succession{log: zap.NewNop(), sockets: web.NewSockets()}
			for n := range number {
				if err := tt.from(func() error {
					host := fmt.Sprintf("127.0.0.%d:0", 1+n)
					if tt.name == "elsewhere" {
						host = "0.0.0.0:0"
					}
					listener, err := last.sockets.Listen(t.Context(), "tcp", host)
					if err == nil {
						t.Cleanup(func() { listener.Close() })
					}
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			ends := []*net.UnixConn{unixConn(t, fds[0]), unixConn(t, fds[1])}
			last.next = []*successor{{conn: ends[0]}}
			last.handOver()
			n, err := (&succession{sockets: web.NewSockets()}).receive(ends[1], 3)
			if n != tt.want || (err != nil) != (tt.wantErr != "") || err != nil && !strings.HasPrefix(err.Error(), tt.wantErr) {
				t.Errorf("%d sockets, %v; want %d, %q", n, err, tt.want, tt.wantErr)
			}
		})
	}
}

// unixConn returns an end of a pair of sockets.
func unixConn(t *testing.T, fd int) *net.UnixConn {
	t.Helper()
	file := os.NewFile(uintptr(fd), "")
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.UnixConn)
}
