package web

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Sockets are the listening sockets of a process. The next process takes them over before this one
// lets go: it is the same socket in the kernel, so that connections which nobody has accepted yet
// wait for it. Its methods may be called from any goroutine; nil opens sockets and hands on none.
type Sockets struct {
	mu        sync.Mutex
	open      map[string]*net.TCPListener
	inherited map[string]net.Listener // nobody has asked for them yet
}

// NewSockets returns Sockets without any socket.
func NewSockets() *Sockets {
	return &Sockets{open: make(map[string]*net.TCPListener), inherited: make(map[string]net.Listener)}
}

// Listen returns the inherited socket of this network and address, or opens one.
func (s *Sockets) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	if s == nil {
		return new(net.ListenConfig).Listen(ctx, network, address)
	}
	name := network + " " + address
	s.mu.Lock()
	defer s.mu.Unlock()
	listener := s.inherited[name]
	if listener == nil {
		var err error
		if listener, err = new(net.ListenConfig).Listen(ctx, network, address); err != nil {
			return nil, err
		}
	}
	delete(s.inherited, name)
	s.open[name] = listener.(*net.TCPListener)
	return &socket{listener, s, name}, nil
}

// A socket is forgotten when it is closed.
type socket struct {
	net.Listener
	sockets *Sockets
	name    string
}

// Close closes the socket here; it stays open where it has been handed to.
func (s *socket) Close() error {
	s.sockets.mu.Lock()
	defer s.sockets.mu.Unlock()
	if s.sockets.open[s.name] == s.Listener {
		delete(s.sockets.open, s.name)
	}
	return s.Listener.Close()
}

// HandOver passes each open socket to send, by its name and descriptor, which stays open during
// the call. It ends with the first error.
func (s *Sockets) HandOver(send func(name string, fd int) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, listener := range s.open {
		raw, err := listener.SyscallConn()
		if err != nil {
			return err
		}
		var sendErr error
		if err := raw.Control(func(fd uintptr) { sendErr = send(name, int(fd)) }); err != nil || sendErr != nil {
			return errors.Join(err, sendErr)
		}
	}
	return nil
}

// Inherit takes a socket in that HandOver of another process has sent. It takes over fd.
func (s *Sockets) Inherit(name string, fd int) error {
	file := os.NewFile(uintptr(fd), name)
	if file == nil {
		return syscall.EBADF
	}
	defer file.Close()
	listener, err := net.FileListener(file)
	if err != nil {
		return err
	}
	if _, ok := listener.(*net.TCPListener); !ok {
		return errors.Join(syscall.ENOTSOCK, listener.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.inherited[name]; before != nil {
		before.Close()
	}
	s.inherited[name] = listener
	return nil
}

// Settle closes the inherited sockets that nobody has asked for, except those of these networks.
func (s *Sockets) Settle(networks ...string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, listener := range s.inherited {
		if network, _, _ := strings.Cut(name, " "); !slices.Contains(networks, network) {
			listener.Close()
			delete(s.inherited, name)
		}
	}
}
