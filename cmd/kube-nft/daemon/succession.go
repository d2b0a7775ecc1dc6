package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/sync/web"
)

// Requests of the next kube-nft to this one, on one connection to the instance socket: to hand over
// its listening sockets when it ends, and that the next one is ready to follow.
const (
	requestSucceed = "succeed"
	requestReady   = "ready"
)

// A succession passes listening sockets from one kube-nft to the next, so that probes of load
// balancers find somebody at each moment: the sockets go with the first word of the end, and
// connections wait in them until the next kube-nft accepts.
type succession struct {
	log     *zap.Logger
	sockets *web.Sockets
	arrived chan struct{} // closed when nobody before this process hands over any more
	handed  bool          // there were sockets; set before that
	since   time.Time     // that

	mu     sync.Mutex
	last   *net.UnixConn     // to the kube-nft before this one; nil without
	next   []*successor      // oldest first
	door   *net.UnixListener // where successors come; nil without
	unread []*net.UnixConn   // who came there and is not known yet, oldest first
}

// A successor is a process that follows this one.
type successor struct {
	conn  *net.UnixConn
	ready bool
}

// maxSuccessors is how many processes may wait, and maxUnread how many connections may have said
// nothing yet. One more ends the oldest.
const (
	maxSuccessors = 4
	maxUnread     = 64
)

// newSuccession asks the kube-nft that runs, if there is one, for its sockets.
func newSuccession(ctx context.Context, log *zap.Logger) *succession {
	s := &succession{log: log, sockets: web.NewSockets(), arrived: make(chan struct{})}
	last, err := findInstance()
	if err == nil && (!trusted(&last.Ucred) || kernel.Unlocked()) { // nobody programs who could hand over
		err = last.conn.Close()
		last = nil
	}
	if err != nil || last == nil {
		close(s.arrived)
		return s
	}
	s.last = last.conn
	context.AfterFunc(ctx, last.Close)
	s.request(requestSucceed) // before all others on this connection
	go func() {
		defer close(s.arrived)
		defer last.Close()
		n, err := s.receive(last.conn, mostInherited())
		s.handed, s.since = n > 0, time.Now()
		if n > 0 || err != nil {
			log.Info("the last kube-nft handed its listening sockets over", zap.Int("sockets", n), zap.Error(err))
		}
	}()
	return s
}

// request writes a request to the kube-nft before this one. It may have ended meanwhile.
func (s *succession) request(request string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		fmt.Fprintln(s.last, request)
	}
}

// inherited waits until nobody before this process hands over any more, and reports whether anybody
// has; false if ctx ended.
func (s *succession) inherited(ctx context.Context) bool {
	select {
	case <-s.arrived:
		return s.handed
	case <-ctx.Done():
		return false
	}
}

// letsGo reports whether the process before this one may have listening sockets still, after it handed
// them over: it closes them within moments.
func (s *succession) letsGo() bool {
	select {
	case <-s.arrived:
		return s.handed && time.Since(s.since) < 2*web.Farewell
	default:
		return false
	}
}

// claimed says that this process programs the tables now: what the last one had to send is on its way.
func (s *succession) claimed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		time.AfterFunc(web.Farewell, func() { s.last.Close() })
	}
}

// mostInherited is how many sockets a process takes in. Health-check node ports and those at localhost
// have half of the files at most, and whoever has the address can hand over more.
func mostInherited() int {
	files := unix.Rlimit{Cur: 1024}
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &files) // else what was usual once
	return int(min(files.Cur, 1<<20)) / 4 * 3
}

// receive takes sockets in until the other end has no more. Each message has one, and its name. With
// the socket of a proof the other end asks for that first.
func (s *succession) receive(conn *net.UnixConn, most int) (n int, err error) {
	name, control := make([]byte, 512), make([]byte, unix.CmsgSpace(4))
	var here uint64
	raw, err := conn.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { here = networkOf(int(fd)) })
	}
	if err != nil {
		return 0, err
	}
	for {
		length, controlLen, _, _, err := conn.ReadMsgUnix(name, control)
		if err != nil || length == 0 {
			return n, nil // any end will do
		}
		messages, err := unix.ParseSocketControlMessage(control[:controlLen])
		if err != nil || len(messages) != 1 {
			return n, fmt.Errorf("a message without a socket (%w)", err)
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return n, err
		}
		if string(name[:length]) == requestProof+"\n" && len(fds) == 1 {
			if err := kernel.Prove(os.NewFile(uintptr(fds[0]), requestProof), kernel.Requester); err != nil {
				return n, fmt.Errorf("prove CAP_NET_ADMIN: %w", err)
			}
			s.request(answerProof)
			continue
		}
		for _, fd := range fds {
			unix.CloseOnExec(fd)
			if n == most {
				return n, errors.Join(fmt.Errorf("more than %d sockets", most), unix.Close(fd))
			}
			if networkOf(fd) != here { // nobody would answer at its address here
				return n, errors.Join(fmt.Errorf("a socket of another network namespace for %q", name[:length]), unix.Close(fd))
			}
			if err := s.sockets.Inherit(strings.TrimSpace(string(name[:length])), fd); err != nil {
				return n, err
			}
			n++
		}
	}
}

// networkOf tells the network namespaces of sockets apart; 0 before Linux 5.14.
func networkOf(fd int) uint64 {
	cookie, _ := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	return cookie
}

// opened says where successors come.
func (s *succession) opened(door *net.UnixListener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.door = door
}

// greet notes a connection of somebody who is not known yet; read says that he is, or has gone.
func (s *succession) greet(conn *net.UnixConn) (read func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unread) == maxUnread {
		s.unread[0].Close()
		s.unread = s.unread[1:]
	}
	s.unread = append(s.unread, conn)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.unread = slices.DeleteFunc(s.unread, func(c *net.UnixConn) bool { return c == conn })
	}
}

// expects reports whether somebody has connected who may want to succeed.
func (s *succession) expects() (waiting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unread) > 0 || s.door == nil {
		return len(s.unread) > 0
	}
	if raw, err := s.door.SyscallConn(); err == nil {
		raw.Control(func(fd uintptr) {
			n, _ := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			waiting = n > 0
		})
	}
	return waiting
}

// follow keeps the connection of a process that wants to succeed until that process closes it. It
// calls read as soon as that process is known.
func (s *succession) follow(l *line, ready bool, read func()) {
	next := &successor{conn: l.UnixConn, ready: ready}
	s.mu.Lock()
	if len(s.next) == maxSuccessors {
		s.next[0].conn.Close()
		s.next = s.next[1:]
	}
	s.next = append(s.next, next)
	s.mu.Unlock()
	read()
	for {
		request, err := l.lines.ReadSlice('\n')
		if err != nil {
			break
		}
		s.mu.Lock()
		next.ready = next.ready || string(request) == requestReady+"\n"
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = slices.DeleteFunc(s.next, func(n *successor) bool { return n == next })
}

// nextReady reports whether the process that was started last is ready to follow. Without one there
// is nobody to wait for.
func (s *succession) nextReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.next) == 0 || s.next[len(s.next)-1].ready
}

// A process may have asked for the sockets right before the end, while the goroutines that would have
// heard it wait for a CPU. handOver hears it if it looks until nobody is expected quietLooks times in
// a row, for handOverPatience at most: anybody can connect and say nothing.
const (
	handOverPatience = 250 * time.Millisecond
	quietLook        = 5 * time.Millisecond
	quietLooks       = 4
)

// handOver sends the listening sockets to the process that was started last. They are in the hands
// of the kernel when handOver returns: nobody waits for the other process.
func (s *succession) handOver() {
	quiet := 0
	for deadline := time.Now().Add(handOverPatience); quiet < quietLooks && time.Now().Before(deadline); time.Sleep(quietLook) {
		if quiet++; s.expects() {
			quiet = 0
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.next) == 0 {
		return
	}
	conn := s.next[len(s.next)-1].conn
	conn.SetWriteDeadline(time.Now().Add(web.Farewell))
	n := 0
	err := s.sockets.HandOver(func(name string, fd int) error {
		_, _, err := conn.WriteMsgUnix([]byte(name+"\n"), unix.UnixRights(fd), nil)
		n++
		return err
	})
	conn.CloseWrite()
	s.log.Info("listening sockets go to the next kube-nft", zap.Int("sockets", n), zap.Error(err))
}
