package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A measured is a kube-nft under measurement.
type measured struct {
	*lab.Process
	started time.Time
	killed  bool // it ends by the signal alone, as kube-proxy does
}

// startDaemon starts the proxy in the space. It dies with the space's thread.
func (l *live) startDaemon() (*measured, error) {
	m := &measured{started: time.Now(), killed: l.plain}
	err := l.space.Do(func() (err error) {
		argv := []string{l.binary, "--kubeconfig", l.kubeconfig, "--hostname-override", lab.NodeName, "--cluster-cidr",
			podCIDR.String()}
		if !l.plain {
			argv = append(argv, "--log-level", "warn")
		}
		m.Process, err = lab.StartProcess(append(argv, l.flags...)...)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// stop ends the daemon.
func (m *measured) stop() error {
	if !m.killed {
		return m.Terminate()
	}
	children := m.children()
	_ = m.Signal(unix.SIGKILL)     // it may have ended
	for _, pid := range children { // one would commit when the next proxy is measured
		_ = unix.Kill(pid, unix.SIGKILL) // it may have ended
		for _, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil; time.Sleep(tick) {
			_, err = os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		}
	}
	m.Kill()
	return nil
}

// children are the programs that the daemon runs.
func (m *measured) children() (pids []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", m.PID())) // it fails for a bad pattern alone
	for _, file := range files {
		list, _ := os.ReadFile(file) // the thread may have ended
		for _, field := range strings.Fields(string(list)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// tick is the unit of CPU time in /proc: USER_HZ is 100 everywhere.
const tick = 10 * time.Millisecond

// cpu returns the CPU time that the daemon and the programs that it runs have used so far.
func (m *measured) cpu() (time.Duration, error) {
	used, err := cpuTime(m.PID())
	for _, pid := range m.children() {
		more, _ := cpuTime(pid) // it may have ended
		used += more
	}
	return used, err
}

// cpuTime is that of a process and of its children that have ended.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 15 {
		return 0, errors.New("/proc: stat is too short")
	}
	var ticks uint64
	for _, field := range fields[11:15] { // utime, stime, cutime and cstime, proc_pid_stat(5)
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
func (m *measured) memory(field string) (float64, error) { return memory(m.PID(), field) }

func memory(pid int, field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
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

// watchMemory looks at the memory of the daemon and of the programs that it runs until stop is called, which returns
// the highest sum.
func (m *measured) watchMemory() (stop func() float64) {
	const every = 50 * time.Millisecond
	end, highest := make(chan struct{}), make(chan float64)
	go func() {
		most := 0.0
		for {
			sum, _ := m.memory("VmRSS") // 0 if it has ended
			for _, pid := range m.children() {
				more, _ := memory(pid, "VmRSS")
				sum += more
			}
			most = max(most, sum)
			select {
			case <-end:
				own, _ := m.memory("VmHWM")
				highest <- max(most, own)
				return
			case <-time.After(every):
			}
		}
	}()
	return func() float64 {
		close(end)
		return <-highest
	}
}
