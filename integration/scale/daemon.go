package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A daemon is a kube-nft under measurement.
type daemon struct {
	cmd     *exec.Cmd
	started time.Time
	log     tail
	exited  chan struct{}
}

// startDaemon starts kube-nft in a space. It dies with the space's thread.
func startDaemon(s *space, binary, kubeconfig string) (*daemon, error) {
	d := &daemon{exited: make(chan struct{})}
	d.cmd = exec.Command(binary, "--kubeconfig", kubeconfig, "--hostname-override", nodeName,
		"--cluster-cidr", podCIDR.String(), "--log-level", "warn")
	d.cmd.Stderr = &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.started = time.Now()
	if err := s.do(d.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended shows in ProcessState
		close(d.exited)
	}()
	return d, nil
}

// stop ends the daemon and returns the CPU time that it used in its life.
func (d *daemon) stop() (cpu time.Duration, err error) {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended already
	select {
	case <-d.exited:
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.exited
		return 0, d.failure(errors.New("kube-nft does not end on SIGTERM"))
	}
	return d.cmd.ProcessState.SystemTime() + d.cmd.ProcessState.UserTime(), nil
}

// failure adds the end of the daemon's log to an error.
func (d *daemon) failure(err error) error {
	return fmt.Errorf("%w; the log of kube-nft ends with:\n%s", err, d.log.String())
}

// tick is the unit of CPU time in /proc: USER_HZ is 100 everywhere.
const tick = 10 * time.Millisecond

// cpu returns the CPU time that the daemon has used so far.
func (d *daemon) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, errors.New("/proc: stat is too short")
	}
	var ticks uint64
	for _, field := range fields[11:13] { // utime and stime, proc_pid_stat(5)
		n, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc: stat: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick, nil
}

// memory returns a field of /proc/PID/status in bytes: VmRSS, or VmHWM for the highest
// VmRSS so far.
func (d *daemon) memory(field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for _, line := range strings.Split(string(status), "\n") {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			kib, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 64)
			return kib * 1024, err
		}
	}
	return 0, fmt.Errorf("/proc: status has no %s", field)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

const tailLen = 4096

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	t.end = t.end[max(0, len(t.end)-tailLen):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.end)
}
