package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// instanceName is the address of the instance socket. There the kube-nft that programs a network
// namespace answers. An abstract address belongs to the network namespace, as our tables do. It is
// free as soon as the process has ended, however it ended. Anybody there can take it, so it only
// decides who can be asked. The right to program the tables is a kernel.Lock.
const instanceName = "@kube-nft"

// requestRelease is the request that Release writes to the socket. The answer is one line:
// answerDone, answerAlready, or the reason for a refusal. The answer to requestSettings is a
// config.Running as JSON, in one line. With that request comes the socket of a kernel.Proof, which
// the daemon gives before it answers.
//
// The other requests are for those who can program the network namespace. Before the daemon does what
// they want, it writes requestProof, with the socket of a kernel.Proof, and waits for answerProof. A
// kube-nft without proofs does not write that, and answers at once.
const (
	requestRelease  = "release"
	requestSettings = "settings"
	requestProof    = "prove CAP_NET_ADMIN"
	answerProof     = "proved"
	answerDone      = "done"
	answerAlready   = "already" // nobody owned the tables
)

// An Instance is the process that has the instance socket. Without a connection it is an unknown
// process that has the lock.
type Instance struct {
	conn *net.UnixConn
	unix.Ucred
}

// findInstance connects to the process that has the instance socket.
func findInstance() (*Instance, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: instanceName, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ucred, err := peerOf(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &Instance{conn, *ucred}, nil
}

// Running returns the daemon that programs this network namespace, or nil. The caller closes it.
func Running() *Instance {
	if kernel.Unlocked() { // then whoever has the socket programs nothing: root in any container can take it
		return nil
	}
	i, err := findInstance()
	switch {
	case err == nil && trusted(&i.Ucred):
		return i
	case err == nil:
		i.Close()
	}
	if kernel.Locked() {
		return new(Instance)
	}
	return nil
}

// Close ends the connection.
func (i *Instance) Close() {
	if i.conn != nil {
		i.conn.Close()
	}
}

// peerOf returns the process at the other end.
func peerOf(conn *net.UnixConn) (ucred *unix.Ucred, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	controlErr := raw.Control(func(fd uintptr) {
		ucred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return ucred, errors.Join(controlErr, err)
}

// trusted reports whether a process at the other end may speak for kube-nft. Anybody can connect to
// an abstract address, or take it.
func trusted(peer *unix.Ucred) bool { return peer.Uid == 0 || int(peer.Uid) == os.Geteuid() }

// String names the process as far as it is visible.
func (i *Instance) String() string {
	switch {
	case i.conn == nil:
		return "kube-nft, hidden behind another process that has the address " + instanceName
	case i.Pid == 0:
		return "kube-nft, in another container"
	}
	return processName(i.Pid)
}

// processName names a process as far as it is visible.
func processName(pid int32) string {
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(int(pid)), "comm"))
	switch {
	case pid == 0:
		return "in another container"
	case err != nil:
		return fmt.Sprintf("pid %d", pid)
	}
	return fmt.Sprintf("%s, pid %d", nft.Visible(strings.TrimSpace(string(name))), pid)
}

// Ended returns a channel that is closed when the process has released the socket and the lock. It is
// never closed once ctx has ended. If the kernel has the lock, the lock decides, because another
// process may have the socket. The end of the connection is not enough: the process also closes
// connections of peers that it does not trust.
func (i *Instance) Ended(ctx context.Context) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		for {
			for kernel.Locked() {
				if !pause(ctx, claimRetry) {
					return
				}
			}
			if kernel.Unlocked() {
				close(ended)
				return
			}
			if i.conn != nil {
				_, _ = io.Copy(io.Discard, i.conn) // any end will do
			}
			if !i.holds() {
				close(ended)
				return
			}
			if !pause(ctx, claimRetry) {
				return
			}
		}
	}()
	return ended
}

// holds reports whether the process still has the instance socket, as far as visible, or the lock.
func (i *Instance) holds() bool {
	if i.conn == nil {
		return kernel.Locked()
	}
	now, err := findInstance()
	if err != nil {
		return false
	}
	now.conn.Close()
	return now.Ucred == i.Ucred
}

// claim waits until no other kube-nft programs this network namespace. Otherwise an old and a new one
// would fight over the tables. ok is false if ctx ended. listener is nil if the instance socket cannot
// be used.
func (d *daemon) claim(ctx context.Context) (listener *net.UnixListener, ok bool) {
	lock, err := kernel.TakeLock()
	if errors.Is(err, kernel.ErrLocked) {
		other := "kube-nft"
		if i := Running(); i != nil {
			other = i.String()
			i.Close()
		}
		d.log.Warn("another kube-nft programs this network namespace: waiting until it ends", zap.String("process", other))
		free := make(chan struct{})
		go func() {
			for errors.Is(err, kernel.ErrLocked) && pause(ctx, claimRetry) {
				lock, err = kernel.TakeLock()
			}
			close(free)
		}()
		if !d.wait(ctx, fmt.Sprintf("the other kube-nft (%s) to end", other), free) {
			return nil, false
		}
		d.log.Info("the other kube-nft has ended: taking over")
	}
	if err != nil {
		d.log.Warn("another kube-nft is noticed by the address "+instanceName+" alone, which any process can take", zap.Error(err))
	}
	d.lock = lock
	return d.claimAddress(ctx)
}

// claimAddress listens on the instance socket. If the kernel has no lock, only this address shows
// another kube-nft: claimAddress waits until that ends. With the lock, another process that has the
// address does not program this network namespace, or is about to end.
func (d *daemon) claimAddress(ctx context.Context) (listener *net.UnixListener, ok bool) {
	for deadline := time.Now().Add(claimPatience); ; {
		listener, err := listen()
		switch {
		case err == nil:
			return listener, true
		case !errors.Is(err, unix.EADDRINUSE):
			d.log.Warn("kube-nft release does not reach this kube-nft", zap.Error(err))
			return nil, true
		}
		other, err := findInstance()
		switch {
		case err != nil && time.Now().Before(deadline): // it is ending, or very busy
			if !pause(ctx, claimRetry) {
				return nil, false
			}
			continue
		case err != nil:
			d.log.Warn("a process has the address "+instanceName+" and does not answer: not waiting for it; kube-nft release does not reach this kube-nft before that process has ended", zap.Error(err))
			return nil, ctx.Err() == nil
		case d.lock != nil && time.Now().Before(deadline):
			other.Close()
			if !pause(ctx, claimRetry) {
				return nil, false
			}
			continue
		case d.lock != nil && trusted(&other.Ucred):
			d.log.Warn("a process that does not program this network namespace has the address "+instanceName+": not waiting for it; kube-nft release does not reach this kube-nft before that process has ended",
				zap.Int32("pid", other.Pid))
			other.Close()
			return nil, ctx.Err() == nil
		case !trusted(&other.Ucred):
			d.log.Warn("a process of another user poses as kube-nft: not waiting for it", zap.Stringer("process", other), zap.Uint32("uid", other.Uid))
			other.Close()
			return nil, ctx.Err() == nil
		}
		d.log.Warn("another kube-nft programs this network namespace: waiting until it ends", zap.Stringer("process", other))
		ended := d.wait(ctx, fmt.Sprintf("the other kube-nft (%s) to end", other), other.Ended(ctx))
		other.Close()
		if !ended {
			return nil, false
		}
		d.log.Info("the other kube-nft has ended: taking over")
		deadline = time.Now().Add(claimPatience)
	}
}

// listen takes the instance socket.
func listen() (*net.UnixListener, error) {
	return net.ListenUnix("unix", &net.UnixAddr{Name: instanceName, Net: "unix"})
}

// pause waits for d; false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Pauses before the lock or the instance socket is tried again: when another has it, and when
// accepting a connection fails.
const (
	claimRetry  = 100 * time.Millisecond
	acceptRetry = time.Second
	// claimPatience is how long a process that has the instance socket may take to answer.
	claimPatience = time.Second
)

// answerPeers serves the instance socket until ctx ends. If listener is nil, it first waits until it
// can have the address. It goes on after an error: a lack of descriptors or memory passes, and
// Services do not depend on this socket.
func (d *daemon) answerPeers(ctx context.Context, listener *net.UnixListener, release func(context.Context) string) error {
	for listener == nil {
		if !pause(ctx, acceptRetry) {
			return nil
		}
		listener, _ = listen() // the log has said why not
	}
	d.succession.opened(listener)
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			read := d.succession.greet(conn)
			go d.answerPeer(ctx, conn, release, read)
		case ctx.Err() != nil:
			return nil
		default:
			d.log.Warn("instance socket", zap.Error(err), zap.Duration("retry_in", acceptRetry))
			pause(ctx, acceptRetry)
		}
	}
}

// requestPatience is how long a peer may take for its request, and for a proof.
const requestPatience = 10 * time.Second

func (d *daemon) answerPeer(ctx context.Context, conn *net.UnixConn, release func(context.Context) string, read func()) {
	defer conn.Close()
	defer read()
	peer, err := peerOf(conn)
	if err != nil || !trusted(peer) {
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := conn.SetReadDeadline(time.Now().Add(requestPatience)); err != nil {
		return
	}
	l := newLine(conn, 64)
	defer l.drop()
	request, err := l.lines.ReadSlice('\n')
	switch {
	case err != nil:
	case string(request) == requestRelease+"\n":
		if _, err := l.proof(); err != nil {
			d.refuse(peer, requestRelease, err)
			fmt.Fprintln(conn, err)
			return
		}
		read()
		fmt.Fprintln(conn, release(ctx)) // a client that has gone needs no answer
	case string(request) == requestSettings+"\n":
		running, err := d.config.Running(started)
		if err == nil && l.socket != nil {
			err = kernel.Prove(l.socket, kernel.Programmer)
		}
		if err == nil {
			_ = json.NewEncoder(conn).Encode(running) // as above
		}
	case string(request) == requestSucceed+"\n" && stop(): // the end is when the connection is needed
		ready, err := l.proof()
		if err == nil {
			err = conn.SetReadDeadline(time.Time{})
		}
		if err != nil {
			d.refuse(peer, requestSucceed, err)
			return
		}
		d.succession.follow(l, ready, read)
	}
}

// refuse notes a request of a process that has no right to it, once a minute.
func (d *daemon) refuse(peer *unix.Ucred, request string, err error) {
	now := time.Now().UnixNano()
	if last := d.refused.Load(); last != 0 && now-last < int64(time.Minute) || !d.refused.CompareAndSwap(last, now) {
		return
	}
	d.log.Warn("a process has asked at "+instanceName+" for what needs CAP_NET_ADMIN: refused", zap.String("request", request),
		zap.String("process", processName(peer.Pid)), zap.Uint32("uid", peer.Uid), zap.Error(err))
}

// Release makes the running daemon release the ownership of its tables. already says that nobody owned
// them. It returns an error if no daemon runs, if it cannot be reached, does not answer within a
// minute, or refuses.
func Release(ctx context.Context) (already bool, err error) {
	other, err := findInstance()
	if err == nil && !trusted(&other.Ucred) {
		err = fmt.Errorf("a process of user %d poses as kube-nft (%s)", other.Uid, other)
		other.Close()
	}
	if err == nil && kernel.Unlocked() { // a process that poses: see Running
		other.Close()
		err = unix.ECONNREFUSED
	}
	switch {
	case err != nil && kernel.Locked():
		return false, fmt.Errorf("reach the running kube-nft: %w; another process has the address %s: ss -xap shows which one, end it, and kube-nft takes the address within seconds", err, instanceName)
	case errors.Is(err, unix.ECONNREFUSED):
		return false, errors.New("no kube-nft programs this network namespace: nft can change what there is")
	case err != nil:
		return false, fmt.Errorf("reach the running kube-nft: %w", err)
	}
	defer other.Close()
	stop := context.AfterFunc(ctx, other.Close)
	defer stop()
	if err := other.conn.SetDeadline(time.Now().Add(releasePatience)); err != nil {
		return false, err
	}
	if _, err := fmt.Fprintln(other.conn, requestRelease); err != nil {
		return false, fmt.Errorf("request to kube-nft (%s): %w", other, err)
	}
	l := newLine(other.conn, maxAnswer)
	defer l.drop()
	answer, err := l.lines.ReadSlice('\n')
	if err == nil && string(answer) == requestProof+"\n" {
		if err := l.prove(); err != nil {
			return false, err
		}
		answer, err = l.lines.ReadSlice('\n')
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", releasePatience)
	}
	if err != nil {
		return false, fmt.Errorf("kube-nft (%s) did not answer: %w; run this as root, or end that process if it is no kube-nft", other, err)
	}
	switch answer := strings.TrimSpace(string(answer)); answer {
	case answerDone, answerAlready:
		return answer == answerAlready, nil
	default:
		return false, fmt.Errorf("kube-nft (%s): %s", other, nft.Visible(answer))
	}
}

// Limits of the answers to requestRelease and requestSettings, in time and in bytes. A release takes
// longer, because it writes the tables anew.
const (
	releasePatience  = time.Minute
	maxAnswer        = 1 << 16
	settingsPatience = 3 * time.Second
	maxSettings      = 1 << 20
)

// Settings requests the settings of the kube-nft that programs this network namespace. It returns nil
// without an error if there is none that this process may trust.
func Settings(ctx context.Context) (*config.Running, error) {
	other := Running()
	if other == nil || other.conn == nil {
		return nil, nil
	}
	defer other.Close()
	stop := context.AfterFunc(ctx, other.Close)
	defer stop()
	if err := other.conn.SetDeadline(time.Now().Add(settingsPatience)); err != nil {
		return nil, err
	}
	proof, err := kernel.NewProof()
	if err != nil {
		return nil, err
	}
	defer proof.Close()
	if _, _, err := other.conn.WriteMsgUnix([]byte(requestSettings+"\n"), proof.Rights(), nil); err != nil {
		return nil, fmt.Errorf("request to kube-nft (%s): %w", other, err)
	}
	var running config.Running
	err = json.NewDecoder(io.LimitReader(other.conn, maxSettings)).Decode(&running)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no answer within %s", settingsPatience)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("no answer: it is an older kube-nft, or it does not trust this user")
	}
	if err != nil {
		return nil, fmt.Errorf("settings of the running kube-nft (%s): %w", other, err)
	}
	if !proof.Given(kernel.Programmer) { // its settings may name a kubeconfig that runs a program
		return nil, fmt.Errorf("settings of the running kube-nft (%s): it does not prove that it has CAP_NET_ADMIN: it is an older kube-nft, or a process that poses as one", other)
	}
	return &running, nil
}

// A releaser is the daemon's side of Release: it releases the tables once.
type releaser struct {
	disown func(context.Context) error

	mu    sync.Mutex
	owned bool
}

// release returns the answer to a request.
func (r *releaser) release(ctx context.Context) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.owned {
		return answerAlready
	}
	if err := r.disown(ctx); err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	r.owned = false
	return answerDone
}
