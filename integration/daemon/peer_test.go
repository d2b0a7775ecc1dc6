package daemon

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// asNobody are the words before a command line that a user other than root runs, with the
// capability or without any.
func asNobody(capability string) []string {
	capabilities := "-all"
	if capability != "" {
		capabilities += ",+" + capability
	}
	return []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"--bounding-set=" + capabilities, "--inh-caps=" + capabilities, "--ambient-caps=" + capabilities, "--"}
}

// TestOtherUserWhileDaemonRuns runs commands while there is a daemon that does not talk to their user.
// Without the privilege they end at once; with it they wait, and say so once.
func TestOtherUserWhileDaemonRuns(t *testing.T) {
	t.Parallel()
	k, _, daemon := startWeb(t)
	for _, command := range []string{"cleanup", "migrate rollback"} {
		argv := slices.Concat(asNobody(""), []string{lab.Program(t)}, strings.Fields(command))
		want := lab.Output{Code: 1, Stderr: "kube-nft: read the generation of nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was removed\n"}
		if diff := cmp.Diff(want, execute(t, argv...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", command, diff)
		}
		argv = slices.Concat(asNobody("net_admin"), []string{lab.Program(t)}, strings.Fields(command), []string{"--timeout", "3s"})
		got := execute(t, argv...)
		if got.Code != 1 || strings.Count(got.Stderr, "kube-nft: a daemon runs, kube-nft, pid ") != 1 || strings.Count(got.Stderr, "\n") != 2 {
			t.Errorf("%s with CAP_NET_ADMIN: exit code %d, standard error:\n%s", command, got.Code, got.Stderr)
		}
	}
	argv := slices.Concat(asNobody("net_admin"), []string{lab.Program(t), "cleanup"})
	cleanup := lab.Start(t, argv...)
	cleanup.AwaitLog(t, "a daemon runs")
	daemon.Stop(t)
	<-cleanup.Exited()
	if cleanup.ExitCode() != 0 || len(read(t, k)) > 0 {
		t.Errorf("cleanup after the daemon: exit code %d\n%s", cleanup.ExitCode(), cleanup.Stderr())
	}
}

// squat takes the address of kube-nft's socket, in a way in which nobody can say who has it. The
// function that it returns gives the address back.
func squat(t *testing.T, backlogFull bool) (leave func()) {
	t.Helper()
	open := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	address := &unix.SockaddrUnix{Name: "@kube-nft"}
	fds := []int{open()}
	if err := unix.Bind(fds[0], address); err != nil {
		t.Fatal(err)
	}
	if backlogFull {
		if err := unix.Listen(fds[0], 0); err != nil {
			t.Fatal(err)
		}
		for err := error(nil); err == nil; {
			fds = append(fds, open())
			err = unix.Connect(fds[len(fds)-1], address)
		}
	}
	return sync.OnceFunc(func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	})
}

// TestSquattedAddress: whoever has the address of the socket and does not answer, kube-nft starts
// and says so; two of them still take turns, and commands still see that one runs.
func TestSquattedAddress(t *testing.T) {
	for name, backlogFull := range map[string]bool{"bound": false, "full": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.New(t)
			leave := squat(t, backlogFull)
			defer leave()
			k, objects, newer := lab.Open(t, kernel.Open), lab.NewDirectory(t), lab.NewDirectory(t)
			objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
			first := objects.Start(t)
			lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
			const posed = "a process has the address @kube-nft and does not answer: not waiting for it"
			first.AwaitLog(t, posed)
			if log := first.Stderr(); strings.Count(log, posed) != 1 {
				t.Errorf("the log does not say once why it did not wait:\n%s", log)
			}
			newer.Write(t, "web.yaml", lab.Web("web", secondWeb, lab.Addresses(webPods, 3)))
			second := newer.Start(t, "--healthz-bind-address", "127.0.0.1:10356", "--metrics-bind-address", "127.0.0.1:10349")
			second.AwaitLog(t, "another kube-nft programs this network namespace: waiting until it ends")
			if got := runProxy(t, "cleanup", "--timeout", "3s"); got.Code != 1 || !strings.Contains(got.Stderr, "a daemon runs, kube-nft, hidden behind another process that has the address @kube-nft") {
				t.Errorf("cleanup: %+v", got)
			}
			if got := runProxy(t, "release"); got.Code != 1 || !strings.Contains(got.Stderr, "another process has the address @kube-nft: ss -xap shows which one") {
				t.Errorf("release: %+v", got)
			}
			if got := runProxy(t, append([]string{"migrate", "apply"}, examples...)...); got.Code != 0 || !strings.Contains(got.Stderr, "commit: done: left to the running daemon") {
				t.Errorf("migrate apply: %+v", got)
			}
			if !holds(t, k, firstWeb) || holds(t, k, secondWeb) {
				t.Error("the second instance did not wait")
			}
			first.Stop(t)
			lab.Eventually(t, "the second instance's commit", func() bool { return holds(t, k, secondWeb) && !holds(t, k, firstWeb) })
			leave()
			lab.Eventually(t, "the address, once it is free", func() bool { return runProxy(t, "release").Code == 0 })
			second.Stop(t)
			if got := runProxy(t, "release"); !strings.Contains(got.Stderr, "no kube-nft programs this network namespace") {
				t.Errorf("release without a daemon: %+v", got)
			}
		})
	}
}

// asContainer are the words before a command that a container of anybody's in the node's network
// runs: root, without any capability.
var asContainer = []string{"setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"}

// TestPosingRoot: root without capabilities in the node's network has the socket's address, and keeps
// neither the daemon nor a command waiting.
func TestPosingRoot(t *testing.T) {
	for name, does := range map[string]string{"silent": "sleep 1000", "flood": "yes", "end": "true"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.New(t)
			k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
			objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
			lab.Start(t, slices.Concat(asContainer, []string{"socat", "ABSTRACT-LISTEN:kube-nft,fork", "EXEC:" + does})...)
			lab.Eventually(t, "the poser", func() bool { return strings.Contains(lab.Run(t, "", "ss", "-Hxl"), "@kube-nft") })
			if got := runProxy(t, append([]string{"migrate", "apply", "--timeout", "1m"}, objects.Flags()...)...); got.Code != 0 || !holds(t, k, firstWeb) {
				t.Errorf("migrate apply: %+v", got)
			}
			if got := runProxy(t, "cleanup", "--timeout", "1m"); got.Code != 0 {
				t.Errorf("cleanup: %+v", got)
			}
			p := objects.Start(t)
			lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
			p.AwaitLog(t, "a process that does not program this network namespace has the address @kube-nft")
			cleanup := lab.Start(t, lab.Program(t), "cleanup", "--timeout", "1m")
			cleanup.AwaitLog(t, "a daemon runs, ")
			p.Stop(t)
			if <-cleanup.Exited(); cleanup.ExitCode() != 0 {
				t.Errorf("cleanup after the daemon's end: exit code %d\n%s", cleanup.ExitCode(), cleanup.Stderr())
			}
		})
	}
}

// TestReleaseEscapes: the name of a process that poses as kube-nft does not reach the terminal.
func TestReleaseEscapes(t *testing.T) {
	t.Parallel()
	lab.New(t)
	socat, err := exec.LookPath("socat")
	if err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	program, err := os.ReadFile(socat)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "\x1b[2J\n\x9bok")
	if err := errors.Join(os.WriteFile(path, program, 0o755), os.Chmod(filepath.Dir(path), 0o755), os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755)); err != nil {
		t.Fatal(err)
	}
	lab.Start(t, append(asNobody(""), path, "ABSTRACT-LISTEN:kube-nft,fork", "PIPE")...)
	var got lab.Output
	lab.Eventually(t, "the poser", func() bool {
		got = runProxy(t, "release")
		return strings.Contains(got.Stderr, "a process of user 65534 poses as kube-nft")
	})
	if want := `(\u001b[2J\n\x9bok, pid `; got.Code != 1 || !strings.Contains(got.Stderr, want) || strings.Count(got.Stderr, "\n") != 1 {
		t.Errorf("exit code %d, %q, want %q", got.Code, got.Stderr, want)
	}
}
