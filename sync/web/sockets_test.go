package web

import (
	"context"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// TestInherit: a socket is taken over by its name, and one that listens elsewhere is refused.
func TestInherit(t *testing.T) {
	for _, tt := range []struct {
		network, address, name string // empty: its own
		fails                  bool
	}{
		{network: "tcp", address: "127.0.0.1:0"},
		{network: "tcp", address: "0.0.0.0:0"},
		{network: "tcp4", address: "0.0.0.0:0"},
		{network: "tcp6", address: "[::]:0"},
		{network: "tcp", address: "[::1]:0"},
		{network: "tcp", address: "127.0.0.1:0", name: "tcp 0.0.0.0:0", fails: true},
		{network: "tcp", address: "127.0.0.1:0", name: "tcp 127.0.0.1:10256", fails: true},
		{network: "tcp", address: "127.0.0.1:0", name: "tcp", fails: true},
		{network: "tcp", address: "127.0.0.1:0", name: "tcp localhost:http", fails: true},
	} {
		last, next := NewSockets(), NewSockets()
		listener, err := last.Listen(t.Context(), tt.network, tt.address)
		if err != nil {
			t.Fatal(err)
		}
		err = last.HandOver(func(name string, fd int) error {
			if tt.name != "" {
				name = tt.name
			}
			return next.Inherit(name, dup(t, fd))
		})
		if (err != nil) != tt.fails || (len(next.inherited) == 0) != tt.fails {
			t.Errorf("%+v: %v, %v", tt, err, next.inherited)
		}
		listener.Close()
		if tt.fails {
			continue
		}
		heir, err := next.Listen(context.Background(), tt.network, tt.address)
		if err != nil || heir.Addr().(*net.TCPAddr).Port != listener.Addr().(*net.TCPAddr).Port {
			t.Errorf("%+v: %v", tt, err)
		}
		heir.Close()
	}
}

func dup(t *testing.T, fd int) int {
	t.Helper()
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
