package web

import (
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestListenIsForOneUser: the next kube-nft listens at the address of this one, and a process of another user does not.
func TestListenIsForOneUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to become another user")
	}
	first, err := Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	next, err := Listen(t.Context(), "tcp", first.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	next.Close()
	const nobody = 65534
	runtime.LockOSThread() // for ever: the thread, which ends with the test, becomes another user
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); errno != 0 {
		t.Fatal(errno)
	}
	if other, err := Listen(t.Context(), "tcp", first.Addr().String()); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another user listens: %v, %v", other, err)
	}
}
