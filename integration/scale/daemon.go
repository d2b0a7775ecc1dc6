package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

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
	if m.killed {
		m.Kill()
		return nil
	}
	return m.Terminate()
}

// tick is the unit of CPU time in /proc: USER_HZ is 100 everywhere.
const tick = 10 * time.Millisecond

// cpu returns the CPU time that the daemon has used so far.
func (m *measured) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", m.PID()))
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
func (m *measured) memory(field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", m.PID()))
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
