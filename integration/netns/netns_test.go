package netns

import (
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
