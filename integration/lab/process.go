package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Output is the result of a program.
type Output struct {
	Code           int // exit code
	Stdout, Stderr string
}

// Execute runs a program to its end in the namespace of the calling thread. A non-zero exit code is
// no error. The program is killed if the thread ends.
func Execute(argv ...string) (Output, error) {
	return execute(exec.Command(argv[0], argv[1:]...))
}

func execute(cmd *exec.Cmd) (Output, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = nil
	}
	if err != nil {
		return Output{}, err
	}
	return Output{Code: cmd.ProcessState.ExitCode(), Stdout: stdout.String(), Stderr: stderr.String()}, nil
}

// Run runs a command in the current namespace, with stdin as its standard input, and
// returns its standard output. The test fails with the command's standard error if the
// command fails, and is skipped if the program is not installed.
func Run(t testing.TB, stdin string, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := execute(cmd)
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		SkipOrFail(t, "%v", err)
	case err != nil:
		t.Fatal(err)
	case out.Code != 0:
		t.Fatalf("%s: %s\n%s", strings.Join(argv, " "), cmd.ProcessState, out.Stderr)
	}
	return out.Stdout
}

// A Process is a program that was started.
type Process struct {
	cmd    *exec.Cmd
	log    tail
	exited chan struct{}
}

// StartProcess starts a program in the network namespace of the calling thread. The program is
// killed when that thread ends, so the caller should be locked to a lasting thread. Standard output
// is dropped, the end of standard error is kept.
func StartProcess(argv ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{})}
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended shows in State
		close(p.exited)
	}()
	return p, nil
}

// Start starts a program as StartProcess does, for a test that has called New. It is killed
// when the test ends.
func Start(t testing.TB, argv ...string) *Process {
	t.Helper()
	p, err := StartProcess(argv...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// PID is the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal to the process. It fails once the process has been waited for. After SIGSTOP it waits until all
// threads have stopped: on a busy machine, the others run on until the thread that gets the signal has its turn.
func (p *Process) Signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	for s == syscall.SIGSTOP && err == nil {
		err = unix.Waitid(unix.P_PID, p.PID(), nil, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if err == nil || !errors.Is(err, unix.EINTR) {
			return err
		}
		err = nil
	}
	return err
}

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// State says how the process ended and what it used. It must not be called before Exited is
// closed.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// LogSize returns how many bytes the process has written to its standard error so far.
func (p *Process) LogSize() int64 { return p.log.size() }

// ExitCode returns the exit code of a process that has ended, -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.State().ExitCode() }

// Stderr returns the end of what the process has written to its standard error so far.
func (p *Process) Stderr() string { return p.log.String() }

// Kill ends the process without giving it a chance to act, and returns when it has ended. It may
// have ended before.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // fails if it has ended, which is as good
	<-p.exited
}

// farewell bounds how long a program takes to end on SIGTERM, a third of what the kubelet grants.
const farewell = 10 * time.Second

// Terminate ends the process as a service manager does, and returns when it has ended. It has
// to exit with 0, and must not have ended before.
func (p *Process) Terminate() error {
	if err := p.Running(); err != nil {
		return err
	}
	_ = p.Signal(syscall.SIGTERM) // fails if it has just ended, which shows in its exit code
	select {
	case <-p.exited:
	case <-time.After(farewell):
		p.Kill()
		return p.Failure(errors.New("it does not end on SIGTERM"))
	}
	if p.ExitCode() != 0 {
		return p.Failure(fmt.Errorf("on SIGTERM: %s", p.State()))
	}
	return nil
}

// Stop is Terminate for tests.
func (p *Process) Stop(t testing.TB) {
	t.Helper()
	if err := p.Terminate(); err != nil {
		t.Fatal(err)
	}
}

// Running returns an error if the process has ended.
func (p *Process) Running() error {
	select {
	case <-p.exited:
		return p.Failure(fmt.Errorf("kube-nft has ended: %s", p.State()))
	default:
		return nil
	}
}

// AwaitLog waits until the process has written a text to its standard error.
func (p *Process) AwaitLog(t testing.TB, text string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !strings.Contains(p.Stderr(), text); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not write %q within %s but:\n%s", text, Patience, p.Stderr())
		}
	}
}

// failureLen is how much of a log a Failure shows.
const failureLen = 4096

// Failure adds the end of the process's log to an error.
func (p *Process) Failure(err error) error {
	log := p.Stderr()
	return fmt.Errorf("%w; the daemon's log ends with:\n%s", err, log[max(0, len(log)-failureLen):])
}

// A tail keeps the end of what is written to it: enough for every test, and for a soak of any
// length.
type tail struct {
	mu      sync.Mutex
	end     []byte
	written int64
}

// tailLen is how many bytes a tail keeps, at least.
const tailLen = 1 << 20

// Write appends p.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.written += int64(len(p))
	t.end = append(t.end, p...)
	if n := len(t.end); n > 2*tailLen {
		t.end = append(t.end[:0], t.end[n-tailLen:]...)
	}
	return len(p), nil
}

// size returns how many bytes were written.
func (t *tail) size() int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written
}

// String returns what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
