package daemon

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, script string) *Daemon {
	t.Helper()
	d, err := Start("/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	return d
}

func TestTerminate(t *testing.T) {
	d := start(t, "echo ready >&2; exec sleep 60")
	for end := time.Now().Add(10 * time.Second); d.log.String() == ""; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no log")
		}
	}
	if err := d.Terminate(); err != nil {
		t.Error(err)
	}
	if status := d.State().Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGTERM {
		t.Errorf("ended with %v", d.State())
	}
	if err := d.Terminate(); err != nil {
		t.Errorf("a second time: %v", err)
	}
	const want = "no answer; the daemon's log ends with:\nready\n"
	if got := d.Failure(errors.New("no answer")).Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestKill(t *testing.T) {
	d := start(t, "exec sleep 60")
	d.Kill()
	select {
	case <-d.Exited():
	default:
		t.Error("it has not ended")
	}
	d.Kill() // ended already
}

func TestStartNothing(t *testing.T) {
	const want = "start /nonexistent: fork/exec /nonexistent: no such file or directory"
	if _, err := Start("/nonexistent"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestTail(t *testing.T) {
	var log tail
	for range 3 {
		if n, err := log.Write([]byte(strings.Repeat("x", tailLen-1) + "y")); n != tailLen || err != nil {
			t.Errorf("got %d, %v", n, err)
		}
	}
	if got := log.String(); len(got) != tailLen || !strings.HasSuffix(got, "xy") {
		t.Errorf("got %d bytes", len(got))
	}
}
