package web

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Listen listens for TCP connections. The next kube-nft may listen at the same address before this
// one closes its socket; new connections then go to the next one alone, so that the old one can accept
// what it has and close without resetting a connection.
//
// The kernel shares an address only among sockets of the same user.
func Listen(ctx context.Context, network, address string) (net.Listener, error) {
	config := net.ListenConfig{Control: func(_, _ string, socket syscall.RawConn) error {
		return control(socket, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	config.SetMultipathTCP(false) // the kernel has no such programs there
	listener, err := config.Listen(ctx, network, address)
	if err != nil {
		return nil, err
	}
	socket, err := listener.(*net.TCPListener).SyscallConn()
	if err == nil { // not before: the kernel binds no socket with a program to an address in use
		err = control(socket, chooseNewest)
	}
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return listener, nil
}

// Network is the network of one address alone for package net: with "tcp", [::] stands for both families.
func Network(addr netip.Addr) string {
	if addr.Is4() {
		return "tcp4"
	}
	return "tcp6"
}

// control calls f with the number of a socket.
func control(socket syscall.RawConn, f func(fd int) error) error {
	var err error
	return errors.Join(socket.Control(func(fd uintptr) { err = f(int(fd)) }), err)
}

// newest is a program of the kernel's packet filter that chooses among the sockets of an address. It
// chooses number 1: of two sockets the younger one. Alone, a socket has number 0; the kernel then
// ignores the choice.
var newest = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}

// chooseNewest gives all sockets that share an address the program newest.
func chooseNewest(fd int) error {
	program := unix.SockFprog{Len: uint16(len(newest)), Filter: &newest[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program)
}
