package peer

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// answersOf returns the answers of a daemon whose status waits for name.
func answersOf(name string) *Answers {
	return &Answers{
		Settings: func() (*config.Running, error) { return nil, errors.New("no \x1b[31msettings") },
		Status:   func() *Status { return &Status{Ready: true, WaitingFor: name} },
		Metrics:  http.NotFoundHandler(),
	}
}

// open opens the socket file of a role in a new network namespace.
func open(t *testing.T, role Role, name string) *Door {
	t.Helper()
	d, err := Open(role, answersOf(name), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// checkStatus asks the daemon of a role for its status and compares what it waits for; no name stands for no daemon.
func checkStatus(t *testing.T, role Role, name string) {
	t.Helper()
	status, err := ReadStatus(t.Context(), role)
	switch {
	case name == "" && !errors.Is(err, ErrNone):
		t.Errorf("%v: got %+v, %v, want no daemon", role, status, err)
	case name != "" && (err != nil || status.WaitingFor != name):
		t.Errorf("%v: got %+v, %v, want %s", role, status, err, name)
	}
}

func TestCommandsAskTheDaemon(t *testing.T) {
	lab.New(t)
	checkStatus(t, Programs, "")
	d := open(t, Programs, "first")
	checkStatus(t, Programs, "first")
	checkStatus(t, Waits, "")
	if _, err := Settings(t.Context()); err == nil || !strings.Contains(err.Error(), `the running kube-nft: no `) ||
		strings.Contains(err.Error(), "\x1b") {
		t.Errorf("settings: %v; want the daemon's error without control characters", err)
	}
	if mode := d.file.Mode().Perm(); mode != 0o600 {
		t.Errorf("the file has mode %o", mode)
	}
	if directory, err := os.Stat(filepath.Dir(d.path)); err != nil || directory.Mode().Perm() != 0o700 {
		t.Errorf("directory %v, %v", directory, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	checkStatus(t, Programs, "")
	if _, err := os.Stat(d.path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}

// TestCommandsReachTheLatestDaemon: of two daemons that wait, the one that was started last has the file, and the end
// of the other one does not remove it.
func TestCommandsReachTheLatestDaemon(t *testing.T) {
	lab.New(t)
	first := open(t, Waits, "first")
	open(t, Waits, "second")
	checkStatus(t, Waits, "second")
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	checkStatus(t, Waits, "second")
}

// TestFileOfKilledDaemon: the file that a killed daemon leaves is no daemon, and the next one replaces it.
func TestFileOfKilledDaemon(t *testing.T) {
	lab.New(t)
	killed := open(t, Programs, "killed")
	checkStatus(t, Programs, "killed")
	killed.server.Close() // as the end of a process closes its sockets
	if _, err := os.Stat(killed.path); err != nil {
		t.Fatal(err)
	}
	checkStatus(t, Programs, "")
	if Running(t.Context()) {
		t.Error("a file without a process counts as a daemon")
	}
	open(t, Programs, "next")
	checkStatus(t, Programs, "next")
}

// TestDirectoryThatCannotBeWritten: the file is in the directory of the user's session then, and a command finds it.
// Without such a directory the error names the first one.
func TestDirectoryThatCannotBeWritten(t *testing.T) {
	lab.New(t) // locks the thread, which ends with the test
	if err := errors.Join(
		os.MkdirAll(Directory, 0o700),
		unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS),
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
		unix.Mount("none", Directory, "tmpfs", unix.MS_RDONLY, ""),
	); err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	t.Setenv("XDG_RUNTIME_DIR", "")
	if _, err := Open(Programs, answersOf("none"), zap.NewNop()); !errors.Is(err, unix.EROFS) {
		t.Errorf("without a directory that can be written: %v", err)
	}
	session := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", session)
	d := open(t, Programs, "session")
	if !strings.HasPrefix(d.path, session+"/kube-nft/net-") {
		t.Errorf("the file is %s", d.path)
	}
	checkStatus(t, Programs, "session")
}

// TestWrongAnswers: a process of the same user that answers something else makes an error, and no answer makes one
// after a while.
func TestWrongAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer func(net.Conn)
		want   string
	}{
		"no HTTP": {func(c net.Conn) { io.WriteString(c, "hello\n") }, "malformed HTTP"},
		"closes":  {func(c net.Conn) {}, "EOF"},
		"no JSON": {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") },
			"invalid character"},
		"another shape": {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]") },
			"cannot unmarshal"},
		"cut": {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{") }, "EOF"},
		"an error": {func(c net.Conn) { io.WriteString(c, "HTTP/1.1 500 Oops\r\nContent-Length: 2\r\n\r\nno") },
			"the running kube-nft: no"},
		"too long": {func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n{\"waitingFor\":\"")
			io.WriteString(c, strings.Repeat("x", 2*maxAnswer))
		}, "longer than 4 MiB"},
		"nothing": {func(c net.Conn) { io.Copy(io.Discard, c) }, "does not answer within 3s"},
	} {
		t.Run(name, func(t *testing.T) {
			lab.New(t)
			d := open(t, Programs, "replaced")
			listener, err := d.listen()
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				for c, err := listener.Accept(); err == nil; c, err = listener.Accept() {
					_, _ = c.Read(make([]byte, 4096))
					tt.answer(c)
					c.Close()
				}
			}()
			if _, err := ReadStatus(t.Context(), Programs); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

// TestClientThatSendsNothing: commands get their answers beside connections on which nothing is sent, and the
// daemon ends.
func TestClientThatSendsNothing(t *testing.T) {
	lab.New(t)
	d := open(t, Programs, "busy")
	for range 200 {
		conn, err := Programs.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	checkStatus(t, Programs, "busy")
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(lab.Patience):
		t.Error("Close waits for the clients")
	}
}
