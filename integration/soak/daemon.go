package main

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// A daemon is the kube-nft under test.
type daemon struct {
	cmd    *exec.Cmd
	log    tail
	exited chan struct{} // closed when it has ended
}

// flags are those of kube-nft and of kube-nft diff.
func flags(kubeconfig string) []string {
	return []string{"--kubeconfig", kubeconfig, "--hostname-override", nodeName, "--cluster-cidr", podCIDR.String(), "--nodeport-addresses", nodeNetwork.String()}
}

// startDaemon starts kube-nft. It dies with us.
func startDaemon(binary, kubeconfig string) (*daemon, error) {
	d := &daemon{cmd: exec.Command(binary, flags(kubeconfig)...), exited: make(chan struct{})}
	d.cmd.Stderr = &d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	go func() {
		_ = d.cmd.Wait() // how it ended shows in ProcessState
		close(d.exited)
	}()
	return d, nil
}

// alive returns an error with the end of the log if kube-nft has ended.
func (d *daemon) alive() error {
	select {
	case <-d.exited:
		return d.failure("kube-nft has ended: " + d.cmd.ProcessState.String())
	default:
		return nil
	}
}

// failure is an error that shows the end of kube-nft's log.
func (d *daemon) failure(text string) error {
	return fmt.Errorf("%s; its log ends with:\n%s", text, d.log.String())
}

// kill ends kube-nft without giving it a chance to do anything.
func (d *daemon) kill() {
	_ = d.cmd.Process.Kill() // fails if it has ended, which is as good
	<-d.exited
}

// terminate ends kube-nft as a service manager does. It has to exit with 0.
func (d *daemon) terminate() error {
	if err := d.alive(); err != nil {
		return err
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(10 * time.Second):
		d.kill()
		return d.failure("kube-nft does not end on SIGTERM")
	}
	if d.cmd.ProcessState.ExitCode() != 0 {
		return d.failure("on SIGTERM: " + d.cmd.ProcessState.String())
	}
	return nil
}

// diff returns what kube-nft would change in the kernel: nothing, if that holds what a fresh
// start would program.
func diff(binary, kubeconfig string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(binary, append([]string{"diff"}, flags(kubeconfig)...)...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 && stdout.Len() > 0 {
		return stdout.String(), nil
	}
	if err != nil {
		return "", fmt.Errorf("kube-nft diff: %w\n%s", err, stderr.String())
	}
	return "", nil
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
