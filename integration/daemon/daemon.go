// Package daemon runs a kube-nft beside a program that tests or measures it.
package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// A Daemon is a program that was started.
type Daemon struct {
	cmd    *exec.Cmd
	log    tail
	exited chan struct{}
}

// Start starts a program, in the network namespace of the calling thread. It is killed when
// that thread ends: the goroutine that calls should be locked to a thread that lasts. Standard
// output goes nowhere, the end of standard error is kept.
func Start(argv ...string) (*Daemon, error) {
	d := &Daemon{cmd: exec.Command(argv[0], argv[1:]...), exited: make(chan struct{})}
	d.cmd.Stderr = &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended shows in State
		close(d.exited)
	}()
	return d, nil
}

// PID is the number of the process.
func (d *Daemon) PID() int { return d.cmd.Process.Pid }

// Exited returns a channel that is closed when the program has ended.
func (d *Daemon) Exited() <-chan struct{} { return d.exited }

// State says how the program ended and what it used. It must not be called before Exited is
// closed.
func (d *Daemon) State() *os.ProcessState { return d.cmd.ProcessState }

// Kill ends the program without giving it a chance to do anything, and returns when it has
// ended. It may have ended before.
func (d *Daemon) Kill() {
	_ = d.cmd.Process.Kill() // fails if it has ended, which is as good
	<-d.exited
}

// farewell bounds how long a program takes to end on SIGTERM.
const farewell = 10 * time.Second

// Terminate ends the program as a service manager does, and returns when it has ended. It
// may have ended before. The error is that it had to be killed.
func (d *Daemon) Terminate() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended, which is as good
	select {
	case <-d.exited:
		return nil
	case <-time.After(farewell):
		d.Kill()
		return d.Failure(errors.New("it does not end on SIGTERM"))
	}
}

// Failure adds the end of the program's log to an error.
func (d *Daemon) Failure(err error) error {
	return fmt.Errorf("%w; the daemon's log ends with:\n%s", err, d.log.String())
}

// A tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

// tailLen is how many bytes a tail keeps.
const tailLen = 4096

// Write appends p.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-tailLen):]
	return len(p), nil
}

// String returns what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
