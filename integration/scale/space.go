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

// A space is a network namespace without a name. It belongs to one OS thread, which runs
// what has to happen inside, and ends with it.
type space struct{ jobs chan func() }

// newSpace returns a space in which Service addresses and endpoints can be reached: cluster
// IPs lead to a device that swallows everything, and so do endpoints, unless answering:
// then they are addresses of the space itself.
func newSpace(answering bool) (*space, error) {
	s := &space{jobs: make(chan func())}
	ready := make(chan error)
	go s.run(ready)
	if err := <-ready; err != nil {
		return nil, fmt.Errorf("network namespace: %w", err)
	}
	if err := s.do(func() error { return connect(answering) }); err != nil {
		s.close()
		return nil, fmt.Errorf("set up network namespace: %w", err)
	}
	return s, nil
}

// run enters the namespace and executes jobs in it. The goroutine stays locked to its
// thread, so that the runtime ends the thread, and with it the namespace, when it returns.
func (s *space) run(ready chan<- error) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		ready <- fmt.Errorf("unshare: %w; run as root", err)
		return
	}
	ready <- nil
	for job := range s.jobs {
		job()
	}
}

// do runs job inside the namespace and waits for it. Sockets that job opens can be used
// from everywhere.
func (s *space) do(job func() error) error {
	done := make(chan error, 1)
	s.jobs <- func() { done <- job() }
	return <-done
}

func (s *space) close() { close(s.jobs) }

// connect sets up the devices and routes of the calling thread's namespace.
func connect(answering bool) error {
	// A device of this kind drops what is not redirected to it.
	sink := &netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: "sink", TxQLen: -1}}
	if err := netlink.LinkAdd(sink); err != nil {
		return err
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	addr, err := netlink.ParseAddr(clientAddress.String())
	if err != nil {
		return err
	}
	endpoints := &netlink.Route{LinkIndex: sink.Index, Dst: network(podCIDR.String()), Scope: netlink.SCOPE_LINK}
	if answering {
		endpoints = &netlink.Route{LinkIndex: loopback.Attrs().Index, Dst: endpoints.Dst, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST}
	}
	return errors.Join(
		netlink.LinkSetUp(loopback),
		netlink.LinkSetUp(sink),
		netlink.AddrAdd(sink, addr),
		netlink.RouteAdd(endpoints),
		netlink.RouteAdd(&netlink.Route{LinkIndex: sink.Index, Dst: network(serviceCIDR.String()), Scope: netlink.SCOPE_LINK}),
		setSysctl("net/ipv4/ip_forward", "1"),
	)
}

// setSysctl sets a kernel parameter of the calling thread's namespace.
func setSysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0o644)
}
