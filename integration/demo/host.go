package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A host is a network namespace without a name. It belongs to one OS thread, which runs
// what has to happen inside, and ends with it: even a killed process leaves nothing.
type host struct {
	name  string
	jobs  chan func()
	netns *os.File        // the namespace, to move devices into
	links *netlink.Handle // a socket of the namespace, usable from everywhere
}

// newHost returns a host with its loopback device up.
func newHost(name string) (*host, error) {
	h := &host{name: name, jobs: make(chan func())}
	ready := make(chan error)
	go h.run(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("network namespace of %s: %w", name, err)
	}
	return h, nil
}

// run enters the namespace and executes jobs in it. The goroutine stays locked to its
// thread, so that the runtime ends the thread, and with it the namespace, when it returns.
func (h *host) run(ready chan<- error) {
	runtime.LockOSThread()
	err := h.enter()
	ready <- err
	if err != nil {
		return
	}
	for job := range h.jobs {
		job()
	}
}

func (h *host) enter() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w; run as root", err)
	}
	if h.netns, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return err
	}
	if h.links, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	return errors.Join(
		// Addresses are used at once: nobody else can have them.
		setSysctl("net/ipv6/conf/all/disable_ipv6", "0"),
		setSysctl("net/ipv6/conf/default/disable_ipv6", "0"),
		setSysctl("net/ipv6/conf/all/accept_dad", "0"),
		setSysctl("net/ipv6/conf/default/accept_dad", "0"),
		h.up("lo"),
	)
}

// do runs job inside the namespace and waits for it.
func (h *host) do(job func() error) error {
	done := make(chan error, 1)
	h.jobs <- func() { done <- job() }
	return <-done
}

// forward makes the host route packets of others.
func (h *host) forward() error {
	return h.do(func() error {
		return errors.Join(
			setSysctl("net/ipv4/ip_forward", "1"),
			setSysctl("net/ipv6/conf/all/forwarding", "1"),
		)
	})
}

// close lets the namespace go.
func (h *host) close() error {
	close(h.jobs)
	h.links.Close()
	return h.netns.Close()
}

// setSysctl sets a kernel parameter of the calling thread's namespace.
func setSysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644)
}
