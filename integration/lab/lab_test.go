package lab

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
)

// netnsOf returns the identity of the network namespace that the calling thread is in.
func netnsOf(t *testing.T) string {
	t.Helper()
	id, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestNewIsEmptyAndOfItsOwn(t *testing.T) {
	before := netnsOf(t)
	New(t)
	if after := netnsOf(t); after == before {
		t.Fatal("still in the namespace of before")
	}
	links := Run(t, "", "ip", "-o", "link", "show", "up")
	if strings.Count(links, "\n") != 1 || !strings.Contains(links, "lo:") {
		t.Errorf("links that are up, want lo alone:\n%s", links)
	}
}

func TestRequireStaysInPlace(t *testing.T) {
	before := netnsOf(t)
	Require(t)
	if after := netnsOf(t); after != before {
		t.Errorf("Require moved the test from %s to %s", before, after)
	}
}

func TestRunFeedsAndReads(t *testing.T) {
	if got := Run(t, "one\ntwo\n", "cat"); got != "one\ntwo\n" {
		t.Errorf("cat printed %q", got)
	}
}

func TestSysctlStaysInTheNamespace(t *testing.T) {
	const forward = "/proc/sys/net/ipv4/ip_forward"
	New(t)
	for _, want := range []string{"1", "0"} {
		Sysctl(t, "net.ipv4.ip_forward", want)
		if got := strings.TrimSpace(Run(t, "", "cat", forward)); got != want {
			t.Errorf("a command in the namespace reads %s, want %s", got, want)
		}
	}
}

func TestStartSharesTheNamespace(t *testing.T) {
	New(t)
	p := Start(t, "sh", "-c", "readlink /proc/self/ns/net >&2; exit 3")
	<-p.Exited()
	if got, want := strings.TrimSpace(p.Stderr()), netnsOf(t); got != want {
		t.Errorf("the process runs in %q, the test in %q", got, want)
	}
	if p.ExitCode() != 3 {
		t.Errorf("exit code %d, want 3", p.ExitCode())
	}
}

func TestProcessDiesWithTheTest(t *testing.T) {
	Require(t)
	var p *Process
	t.Run("inner", func(t *testing.T) {
		New(t)
		p = Start(t, "sleep", "3600")
	})
	<-p.Exited()
	if err := p.Signal(syscall.Signal(0)); err == nil {
		t.Error("the process outlived the test that started it")
	}
}

func start(t *testing.T, script string) *Process {
	t.Helper()
	d, err := StartProcess("/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Kill)
	return d
}

func TestTerminate(t *testing.T) {
	d := start(t, "trap 'exit 0' TERM; echo ready >&2; while :; do sleep 0.01; done")
	d.AwaitLog(t, "ready")
	if err := d.Terminate(); err != nil {
		t.Error(err)
	}
	if err := d.Terminate(); err == nil {
		t.Error("it ended twice")
	}
	const want = "no answer; the daemon's log ends with:\nready\n"
	if got := d.Failure(errors.New("no answer")).Error(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestKill(t *testing.T) {
	d := start(t, "exec sleep 60")
	if err := d.Running(); err != nil {
		t.Error(err)
	}
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
	if _, err := StartProcess("/nonexistent"); err == nil || err.Error() != want {
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
	if got := log.String(); len(got) < tailLen || len(got) > 2*tailLen || !strings.HasSuffix(got, "xy") {
		t.Errorf("got %d bytes", len(got))
	}
	if log.size() != 3*tailLen {
		t.Errorf("%d bytes were written, want %d", log.size(), 3*tailLen)
	}
}

// TestTerminateIsSuccess: a program that SIGTERM kills has not ended well.
func TestTerminateIsSuccess(t *testing.T) {
	d := start(t, "exec sleep 60")
	if err := d.Terminate(); err == nil || !strings.HasPrefix(err.Error(), "on SIGTERM: signal: terminated; ") {
		t.Errorf("got %v", err)
	}
}

func TestNamespace(t *testing.T) {
	Require(t)
	node, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	pod, err := NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	defer node.Close()
	outer := netnsOf(t)
	err = node.Do(func() error {
		if inside := netnsOf(t); inside == outer {
			t.Error("Do runs outside")
		}
		return errors.Join(
			Connect("to-pod", pod, "eth0"),
			AddAddress("to-pod", netip.MustParsePrefix("10.0.0.1/32")),
			AddRoute("to-pod", netip.MustParsePrefix("10.0.0.2/32"), netip.Addr{}),
			AddRoute("to-pod", netip.MustParsePrefix("10.1.0.0/16"), netip.MustParseAddr("10.0.0.2")),
			AddSink("sink"),
			AddDeprecated("sink", netip.MustParsePrefix("2001:db8::1/128")),
			AddLocal(netip.MustParsePrefix("10.2.0.0/16")),
			RemoveAddress("to-pod", netip.MustParsePrefix("10.0.0.1/32")),
		)
	})
	if err != nil {
		t.Error(err)
	}
	const want = "address 10.0.0.1/32 of device to-pod: cannot assign requested address"
	err = node.Do(func() error { return RemoveAddress("to-pod", netip.MustParsePrefix("10.0.0.1/32")) })
	if err == nil || err.Error() != want {
		t.Errorf("an address that is not there: %v, want %s", err, want)
	}
}
