package web

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
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
	served    map[string][]string     // by network: the names that are going to be asked for; a network that is not there may have any
}

// NewSockets returns Sockets without any socket.
func NewSockets() *Sockets {
	return &Sockets{open: make(map[string]*net.TCPListener), inherited: make(map[string]net.Listener), served: make(map[string][]string)}
}

// Serve says which addresses of a network are going to be listened at, all of them. The process before this
// one may have had others: their sockets are closed, now or when they come, for they would keep their
// port, and connections to them would wait for nobody.
func (s *Sockets) Serve(network string, addresses ...string) {
	names := make([]string, 0, len(addresses))
	for _, address := range addresses {
		names = append(names, network+" "+address)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.served[network] = names
	for name, listener := range s.inherited {
		if !s.wants(name) {
			listener.Close()
			delete(s.inherited, name)
		}
	}
}

// wants reports whether somebody may ask for a socket.
func (s *Sockets) wants(name string) bool {
	network, _, _ := strings.Cut(name, " ")
	names, known := s.served[network]
	return !known || slices.Contains(names, name)
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

// Inherit takes a socket in that HandOver of another process has sent. It takes over fd, and refuses a
// socket that listens elsewhere than its name says: then nobody would answer at the address.
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
	if !listensAt(listener, name) {
		return errors.Join(fmt.Errorf("a socket of %s for %q", listener.Addr(), name), listener.Close())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wants(name) {
		return listener.Close()
	}
	if before := s.inherited[name]; before != nil {
		before.Close()
	}
	s.inherited[name] = listener
	return nil
}

// listensAt reports whether a listener of TCP belongs to a name, which is a network and an address.
func listensAt(listener net.Listener, name string) bool {
	_, address, _ := strings.Cut(name, " ")
	want, err := netip.ParseAddrPort(address)
	if err != nil {
		return false
	}
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	here, there := at.Addr().Unmap().WithZone(""), want.Addr().Unmap().WithZone("")
	return (want.Port() == at.Port() || want.Port() == 0) && (here == there || here.IsUnspecified() && there.IsUnspecified())
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
