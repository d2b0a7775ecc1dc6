package kernel

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A socket speaks netlink to nf_tables. Go's runtime does not poll it: the answer to a commit is
// there when the commit has been sent. Waking a thread that waits for events took 13 us on the
// measured machine, where all of a small commit takes 5. Sockets that really wait, such as the
// Monitor's, come from mdlayher/netlink.
type socket struct {
	fd   int
	port uint32 // its address, as the kernel shows it to others
}

// openSocket opens a socket in the calling thread's network namespace.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd}
	if err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil { // the kernel chooses the address
		return nil, errors.Join(os.NewSyscallError("bind", err), s.close())
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return nil, errors.Join(os.NewSyscallError("getsockname", err), s.close())
	}
	s.port = name.(*unix.SockaddrNetlink).Pid
	return s, nil
}

// close acts once: later the descriptor may belong to another socket.
func (s *socket) close() error {
	fd := s.fd
	s.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// setOption sets an option of netlink (SOL_NETLINK).
func (s *socket) setOption(option int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1))
}

// setBuffer sets the length of a buffer of a socket, beyond the system's limit if permitted.
func setBuffer(fd, force, normal, n int) error {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, n) == nil {
		return nil
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, normal, n))
}

// send sends messages in one system call. For a batch it returns when the kernel has worked on all
// of it.
func (s *socket) send(b []byte) error {
	return unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

// receive reads one datagram into b and returns the sender's port; the kernel's is 0. It returns
// EAGAIN if none comes within patience.
func (s *socket) receive(b []byte, patience time.Duration) (n int, from uint32, err error) {
	for began := time.Now(); ; {
		n, sender, err := unix.Recvfrom(s.fd, b, unix.MSG_DONTWAIT)
		switch left := patience - time.Since(began); {
		case err == nil:
			if sa, ok := sender.(*unix.SockaddrNetlink); ok {
				from = sa.Pid
			}
			return n, from, nil
		case err == unix.EINTR:
		case err != unix.EAGAIN || left <= 0:
			return 0, 0, err
		default:
			if err := s.wait(left); err != nil {
				return 0, 0, err
			}
		}
	}
}

// wait waits until there is something to receive, at most for patience or until a signal.
func (s *socket) wait(patience time.Duration) error {
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	milliseconds := int(patience/time.Millisecond) + 1
	if _, err := unix.Poll(fds, milliseconds); err != nil && err != unix.EINTR {
		return fmt.Errorf("wait for an answer: %w", err)
	}
	return nil
}
