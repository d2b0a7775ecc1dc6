package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A proxy is a kube-nft that runs on the node.
type proxy struct {
	cmd    *exec.Cmd
	log    logBuffer
	exited chan struct{} // closed when the process has ended
}

// flags are those that kube-nft and kube-nft diff are started with.
func flags(manifests string) []string {
	return []string{
		"--manifests", manifests,
		"--hostname-override", "node-a",
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/64",
	}
}

// startProxy starts kube-nft in the node's namespace. It is killed when the namespace's
// thread ends, however that comes about.
func startProxy(node *host, binary, manifests string) (*proxy, error) {
	p := &proxy{cmd: exec.Command(binary, flags(manifests)...), exited: make(chan struct{})}
	p.cmd.Stderr = &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := node.do(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start kube-nft: %w", err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended shows in ProcessState
		close(p.exited)
	}()
	return p, nil
}

// failure returns an error that shows the end of kube-nft's log.
func (p *proxy) failure(what string) error {
	return fmt.Errorf("%s; its log ends with:\n%s", what, p.log.tail(10))
}

// terminate sends SIGTERM and returns how long the process took to exit with 0.
func (p *proxy) terminate() (time.Duration, error) {
	started := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, p.failure("kube-nft has ended before SIGTERM")
	}
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		return 0, p.failure("kube-nft does not end on SIGTERM")
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return 0, p.failure(fmt.Sprintf("kube-nft exited with %d on SIGTERM", code))
	}
	return time.Since(started), nil
}

// kill ends the process if it still runs.
func (p *proxy) kill() {
	_ = p.cmd.Process.Kill() // fails if it has ended, which is as good
	<-p.exited
}

// diff runs kube-nft diff on the node and returns what it would change.
func diff(node *host, binary, manifests string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(binary, append([]string{"diff"}, flags(manifests)...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := node.do(cmd.Run)
	var exit *exec.ExitError
	if errors.As(err, &exit) && stdout.Len() > 0 {
		return stdout.String(), nil
	}
	if err != nil {
		return "", fmt.Errorf("kube-nft diff: %w\n%s", err, stderr.String())
	}
	return stdout.String(), nil
}

// A logBuffer is written by one goroutine while another reads it.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends p.
func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// tail returns the last lines.
func (b *logBuffer) tail(lines int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := strings.Split(strings.TrimSpace(b.buf.String()), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
