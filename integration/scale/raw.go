package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// A floor is a netlink socket without anything around it: what it takes to commit a batch
// is the kernel's part alone.
type floor struct {
	fd     int
	answer []byte
	room   int // the longest batch that the send buffer has been made for
}

// openFloor opens a socket in the calling thread's namespace.
func openFloor() (*floor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &floor{fd: fd, answer: make([]byte, 1<<16)}, nil
}

func (f *floor) close() { unix.Close(f.fd) }

// commit sends an encoded batch, of which the last operation asks for an acknowledgement,
// and returns how long the kernel took for it.
func (f *floor) commit(batch []byte) (time.Duration, error) {
	if err := f.reserve(len(batch)); err != nil {
		return 0, err
	}
	start := time.Now()
	if err := unix.Sendto(f.fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("send the raw batch: %w", err)
	}
	n, _, err := unix.Recvfrom(f.fd, f.answer, 0)
	took := time.Since(start)
	if err != nil {
		return 0, fmt.Errorf("receive the acknowledgement: %w", err)
	}
	return took, acknowledged(f.answer[:n])
}

func (f *floor) reserve(n int) error {
	if n <= f.room {
		return nil
	}
	f.room = n
	return unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n)
}

// acknowledged returns the error that an answer carries.
func acknowledged(answer []byte) error {
	if len(answer) < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("the kernel's answer is no acknowledgement")
	}
	if errno := -int32(binary.NativeEndian.Uint32(answer[16:])); errno != 0 {
		return fmt.Errorf("the kernel refused the raw batch: %w", unix.Errno(errno))
	}
	return nil
}
