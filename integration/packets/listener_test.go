package packets

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// backlog is how many connections a TCP listener keeps without accepting any; more than
// all flows of a case open to one of them.
const backlog = 4096

// A listener stands on the node where a flow goes to the node itself, so that a refusal
// is the proxy's doing. TCP answers by itself; from the others the bench reads what arrived.
type listener struct {
	proto uint8
	addr  netip.AddrPort
	fd    int
}

// listen opens a listener in the current namespace. For SCTP it is a raw socket, which
// takes every packet to the address and keeps the kernel, which may not speak SCTP, quiet.
func listen(proto uint8, addr netip.AddrPort) (*listener, error) {
	kind := map[uint8]int{
		unix.IPPROTO_TCP:  unix.SOCK_STREAM,
		unix.IPPROTO_UDP:  unix.SOCK_DGRAM,
		unix.IPPROTO_SCTP: unix.SOCK_RAW,
	}[proto]
	fd, err := openSocket(kind, proto, addr)
	if err == nil && proto == unix.IPPROTO_TCP {
		err = unix.Listen(fd, backlog)
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s %s: %w", protocolName(proto), addr, err)
	}
	return &listener{proto: proto, addr: addr, fd: fd}, nil
}

// openSocket opens a socket that is bound to an address and never blocks.
func openSocket(kind int, proto uint8, addr netip.AddrPort) (int, error) {
	family := unix.AF_INET
	if addr.Addr().Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	if kind == unix.SOCK_RAW {
		addr = netip.AddrPortFrom(addr.Addr(), 0)
	}
	if err := unix.Bind(fd, sockaddr(addr)); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("bind", err)
	}
	return fd, nil
}

// sockaddr converts an address to the form that system calls take.
func sockaddr(addr netip.AddrPort) unix.Sockaddr {
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16()}
}

// addrPort is the inverse of sockaddr.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// arrivals returns the first packets that have arrived since it was called last. A TCP
// listener's answers are captured instead.
func (l *listener) arrivals() ([]packet, error) {
	if l.proto == unix.IPPROTO_TCP {
		return nil, nil
	}
	var packets []packet
	buf := make([]byte, longestPacket)
	for {
		n, from, err := unix.Recvfrom(l.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return packets, nil
		case err != nil:
			return packets, fmt.Errorf("read from listener %s %s: %w", protocolName(l.proto), l.addr, err)
		}
		p := packet{tuple: tuple{proto: l.proto, src: addrPort(from), dst: l.addr}, kind: opens}
		if l.proto == unix.IPPROTO_UDP || p.parseRaw(buf[:n]) && p.dst == l.addr {
			packets = append(packets, p)
		}
	}
}

// parseRaw reads the ports from what a raw socket received: the IPv4 header comes along,
// the IPv6 header does not.
func (p *packet) parseRaw(b []byte) bool {
	if p.src.Addr().Is4() {
		_, payload, ok := parseIP(b)
		return ok && p.parsePorts(payload)
	}
	return p.parsePorts(b)
}

// close ends the listener; connections that it has are reset.
func (l *listener) close() { unix.Close(l.fd) }

// sendRaw sends a transport packet, without its IP header, from one of the node's addresses.
func sendRaw(proto uint8, from, to netip.Addr, payload []byte) error {
	fd, err := openSocket(unix.SOCK_RAW, proto, netip.AddrPortFrom(from, 0))
	if err != nil {
		return fmt.Errorf("send from %s: %w", from, err)
	}
	defer unix.Close(fd)
	err = unix.Sendto(fd, payload, 0, sockaddr(netip.AddrPortFrom(to, 0)))
	return ignoreRefusal(os.NewSyscallError("sendto", err))
}

// ignoreRefusal returns nil for the errors with which a socket reports that a ruleset
// dropped or rejected its packet: what became of the packet shows elsewhere.
func ignoreRefusal(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EINPROGRESS) {
		return nil
	}
	return err
}

// connect sends the first packet of a connection from the node itself through a socket of
// its own, and returns the socket; -1 for SCTP, which needs none.
func connect(t tuple) (int, error) {
	switch t.proto {
	case unix.IPPROTO_SCTP:
		return -1, sendRaw(t.proto, t.src.Addr(), t.dst.Addr(), sctpOpening(t))
	case unix.IPPROTO_UDP:
		fd, err := openSocket(unix.SOCK_DGRAM, t.proto, t.src)
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", t, err)
		}
		err = unix.Sendto(fd, []byte("opening"), 0, sockaddr(t.dst))
		return fd, ignoreRefusal(os.NewSyscallError("sendto", err))
	}
	fd, err := openSocket(unix.SOCK_STREAM, t.proto, t.src)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", t, err)
	}
	err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	if err == nil {
		err = unix.Connect(fd, sockaddr(t.dst))
	}
	return fd, ignoreRefusal(os.NewSyscallError("connect", err))
}
