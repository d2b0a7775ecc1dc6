package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// instanceName is the address of the socket that the kube-nft which programs a network
// namespace listens on. An abstract address belongs to the network namespace, as our tables
// do, and is free as soon as the process has ended, in whatever way.
const instanceName = "@kube-nft"

// requestRelease is what kube-nft release writes to the socket. The answer is one line:
// answerDone, answerAlready, or why not.
const (
	requestRelease = "release"
	answerDone     = "done"
	answerAlready  = "already" // there was nothing to give up
)

// A holder is the process that has the instance socket.
type holder struct {
	conn *net.UnixConn
	unix.Ucred
}

// findHolder connects to the process that has the instance socket.
func findHolder() (*holder, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: instanceName, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ucred, err := peerOf(conn)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return &holder{conn, *ucred}, nil
}

// peerOf returns who is at the other end.
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

// trusted reports whether a process at the other end may speak for kube-nft: anybody can
// connect to an abstract address, or take it.
func trusted(peer *unix.Ucred) bool { return peer.Uid == 0 || int(peer.Uid) == os.Geteuid() }

// String names the process, as far as we can see it.
func (h *holder) String() string {
	name, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(int(h.Pid)), "comm"))
	if err != nil || h.Pid == 0 {
		return fmt.Sprintf("pid %d", h.Pid)
	}
	return fmt.Sprintf("%s, pid %d", strings.TrimSpace(string(name)), h.Pid)
}

// gone returns a channel that is closed when the process has given the socket up; never, once
// ctx has ended. That it ends the connection is not enough: it does so to whoever it does not
// trust.
func (h *holder) gone(ctx context.Context) <-chan struct{} {
	gone := make(chan struct{})
	go func() {
		for {
			_, _ = io.Copy(io.Discard, h.conn) // it ends in one way or another
			if !h.holds() {
				close(gone)
				return
			}
			if !pause(ctx, claimRetry) {
				return
			}
		}
	}()
	return gone
}

// holds reports whether the process has the instance socket still, as far as can be told.
func (h *holder) holds() bool {
	now, err := findHolder()
	if err != nil {
		return false
	}
	now.conn.Close()
	return now.Ucred == h.Ucred
}

// claim waits until no other kube-nft programs this network namespace, so that an old and a
// new one do not fight over the tables; false if ctx ended. The listener is nil if there can
// be no such agreement.
func (d *daemon) claim(ctx context.Context) (listener *net.UnixListener, ok bool) {
	for {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: instanceName, Net: "unix"})
		switch {
		case err == nil:
			return listener, true
		case !errors.Is(err, unix.EADDRINUSE):
			d.log.Warn("another kube-nft would not be noticed", zap.Error(err))
			return nil, true
		}
		other, err := findHolder()
		if err != nil { // it is about to end, or very busy
			if !pause(ctx, claimRetry) {
				return nil, false
			}
			continue
		}
		done := d.yield(ctx, other)
		other.conn.Close()
		if done {
			return nil, ctx.Err() == nil
		}
	}
}

// yield waits for another process to end; done says not to wait for this one any more.
func (d *daemon) yield(ctx context.Context, other *holder) (done bool) {
	if !trusted(&other.Ucred) {
		d.log.Warn("a process of another user poses as kube-nft: not waiting for it", zap.Stringer("process", other), zap.Uint32("uid", other.Uid))
		return true
	}
	d.log.Warn("another kube-nft programs this network namespace: waiting until it ends", zap.Stringer("process", other))
	if !d.wait(ctx, fmt.Sprintf("the other kube-nft (%s) to end", other), other.gone(ctx)) {
		return true
	}
	d.log.Info("the other kube-nft has ended: taking over")
	return false
}

// pause lets time pass; false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// How long it is until the instance socket is tried again, for want of an answer and of what
// it takes to accept a connection.
const (
	claimRetry  = 100 * time.Millisecond
	acceptRetry = time.Second
)

// answerPeers serves the instance socket until ctx ends. Other instances only wait for its
// end. Want of descriptors or memory passes, and Services do not depend on it.
func (d *daemon) answerPeers(ctx context.Context, listener *net.UnixListener, release func(context.Context) string) error {
	stop := context.AfterFunc(ctx, func() { listener.Close() })
	defer stop()
	for {
		conn, err := listener.AcceptUnix()
		switch {
		case err == nil:
			go answerPeer(ctx, conn, release)
		case ctx.Err() != nil:
			return nil
		default:
			d.log.Warn("instance socket", zap.Error(err), zap.Duration("retry_in", acceptRetry))
			pause(ctx, acceptRetry)
		}
	}
}

func answerPeer(ctx context.Context, conn *net.UnixConn, release func(context.Context) string) {
	defer conn.Close()
	if peer, err := peerOf(conn); err != nil || !trusted(peer) {
		return
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	request, err := bufio.NewReader(io.LimitReader(conn, 64)).ReadString('\n')
	if err != nil || strings.TrimSpace(request) != requestRelease {
		return
	}
	fmt.Fprintln(conn, release(ctx)) // who has gone does not want to know
}
