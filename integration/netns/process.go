package netns

import (
	"bytes"
	"errors"
	"io/fs"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Run runs a command in the current namespace, with stdin as its standard input, and
// returns its standard output. The test fails with the command's standard error if the
// command fails, and is skipped if the program is not installed.
func Run(t testing.TB, stdin string, argv ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		SkipOrFail(t, "%v", err)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, stderr.String())
	}
	return stdout.String()
}

// A Process is a program that runs in a namespace beside the test.
type Process struct {
	cmd    *exec.Cmd
	stderr output
	exited chan struct{}
}

// Start starts a program in the current namespace, for a test that has called New. The
// program is killed when the test ends, and dies with the test's thread at the latest.
// Standard output goes nowhere.
func Start(t testing.TB, argv ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{})}
	p.cmd.Stderr = &p.stderr
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", strings.Join(argv, " "), err)
	}
	go func() {
		p.cmd.Wait() // how it ended shows in cmd.ProcessState
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.cmd.Process.Kill() // fails if it has exited already, which is as good
		<-p.exited
	})
	return p
}

// Signal sends a signal to the process. It fails once the process has been waited for.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// ExitCode returns the exit code of a process that has ended, -1 if a signal ended it. It
// must not be called before Exited is closed.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Stderr returns what the process has written to its standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// output is a buffer that one goroutine fills while another one reads it.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends p.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String returns everything written so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}
