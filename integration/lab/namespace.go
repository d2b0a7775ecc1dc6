package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// New moves the calling test into an empty network namespace of its own, with the
// loopback device up. Without the privilege to do so the test is skipped.
//
// A namespace belongs to an OS thread. New locks the calling goroutine to its thread and
// never unlocks it: when the test ends, the runtime discards the thread, and with it goes
// the last reference to the namespace and everything in it. A goroutine that the test
// starts, a subtest among them, runs on another thread, outside the namespace; sockets
// that the test opened work everywhere.
func New(t testing.TB) {
	t.Helper()
	skipIfUnwanted(t)
	if err := enter(); err != nil {
		SkipOrFail(t, "%v", err)
	}
	if err := SetUp("lo"); err != nil {
		t.Fatal(err)
	}
}

// Require skips the calling test if New would skip it, and leaves it in its namespace. A test calls
// it before costly preparations for a namespace.
func Require(t testing.TB) {
	t.Helper()
	skipIfUnwanted(t)
	result := make(chan error)
	go func() { result <- enter() }()
	if err := <-result; err != nil {
		SkipOrFail(t, "%v", err)
	}
}

// skipIfUnwanted skips a test that needs a namespace if such tests are switched off.
func skipIfUnwanted(t testing.TB) {
	t.Helper()
	if os.Getenv(requireKernel) == "0" {
		t.Skipf("%s=0", requireKernel)
	}
}

// enter moves the calling goroutine into a new network namespace and locks it to its thread.
func enter() error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare network namespace: %w; run as root or under unshare -rn", err)
	}
	return nil
}

// A Namespace is a network namespace without a name. It belongs to one OS thread, which runs
// what has to happen inside, and ends with it: even a killed process leaves nothing.
type Namespace struct {
	jobs chan func()
	file *os.File // the namespace, to move devices and threads into
}

// NewNamespace returns a namespace with its loopback device up.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{jobs: make(chan func())}
	ready := make(chan error)
	go func() {
		err := enter()
		if err == nil {
			n.file, err = os.Open("/proc/thread-self/ns/net")
		}
		ready <- err
		if err != nil {
			return
		}
		for job := range n.jobs {
			job()
		}
	}()
	if err := <-ready; err != nil {
		return nil, err
	}
	if err := n.Do(func() error { return SetUp("lo") }); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// Do runs a job inside the namespace and waits for it. Sockets that it opens can be used from
// everywhere, and programs that it starts run inside.
func (n *Namespace) Do(job func() error) error {
	done := make(chan error, 1)
	n.jobs <- func() { done <- job() }
	return <-done
}

// Join moves the calling goroutine into the namespace, and locks it to its thread.
func (n *Namespace) Join() error {
	runtime.LockOSThread()
	return os.NewSyscallError("setns", unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET))
}

// Close lets the namespace go. Programs that Do has started die.
func (n *Namespace) Close() error {
	close(n.jobs)
	return n.file.Close()
}

// The functions below work on the namespace of the calling thread.

// Sysctl sets a kernel parameter, as SetSysctl does.
func Sysctl(t testing.TB, name, value string) {
	t.Helper()
	if err := SetSysctl(name, value); err != nil {
		t.Fatal(err)
	}
}

// SetSysctl sets one kernel parameter, named as in "net.ipv4.ip_forward". Device names with a
// dot in them cannot be named.
func SetSysctl(name, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set %s to %s: %w", name, value, err)
	}
	return nil
}

// Forward makes the namespace route packets of others.
func Forward() error {
	return errors.Join(SetSysctl("net.ipv4.ip_forward", "1"), SetSysctl("net.ipv6.conf.all.forwarding", "1"))
}

// SetUp sets a device up.
func SetUp(device string) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.LinkSetUp(link)
	}
	return wrap(err, "set up device %s", device)
}

// SetDown sets a device down. Its routes go, its IPv4 addresses stay.
func SetDown(device string) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		err = netlink.LinkSetDown(link)
	}
	return wrap(err, "set down device %s", device)
}

// AddSink makes a device that drops every packet that is sent through it, and sets it up.
func AddSink(device string) error {
	err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{Name: device, TxQLen: -1}})
	if err != nil {
		return wrap(err, "add device %s", device)
	}
	return SetUp(device)
}

// Connect makes a pair of devices: one here, and its peer in another namespace. Both are up.
func Connect(device string, to *Namespace, peer string) error {
	veth := netlink.NewVeth(netlink.LinkAttrs{Name: device, TxQLen: -1})
	veth.PeerName, veth.PeerNamespace = peer, netlink.NsFd(to.file.Fd())
	if err := netlink.LinkAdd(veth); err != nil {
		return wrap(err, "add device %s", device)
	}
	return errors.Join(SetUp(device), to.Do(func() error { return SetUp(peer) }))
}

// forever is a time for which an address is valid.
const forever = 1<<32 - 1

// AddAddress gives a device an address with its prefix, usable at once.
func AddAddress(device string, prefix netip.Prefix) error {
	return changeAddress(device, prefix, netlink.AddrReplace, 0)
}

// AddDeprecated gives a device an address that IPv6 avoids as the source of connections.
func AddDeprecated(device string, prefix netip.Prefix) error {
	return changeAddress(device, prefix, netlink.AddrReplace, forever)
}

// RemoveAddress takes an address away from a device.
func RemoveAddress(device string, prefix netip.Prefix) error {
	return changeAddress(device, prefix, netlink.AddrDel, 0)
}

func changeAddress(device string, prefix netip.Prefix, change func(netlink.Link, *netlink.Addr) error,
	valid int) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		err = change(link, &netlink.Addr{IPNet: ipNet(prefix), Flags: unix.IFA_F_NODAD, ValidLft: valid})
	}
	return wrap(err, "address %s of device %s", prefix, device)
}

// AddRoute routes packets to a prefix through a device, by a gateway there unless that is the zero
// address.
func AddRoute(device string, to netip.Prefix, gateway netip.Addr) error {
	route := &netlink.Route{Dst: ipNet(to), Gw: gateway.AsSlice()}
	if !gateway.IsValid() {
		route.Scope = netlink.SCOPE_LINK
	}
	return addRoute(device, route)
}

// AddLocal makes all addresses of a prefix the namespace's own.
func AddLocal(to netip.Prefix) error {
	return addRoute("lo", &netlink.Route{Dst: ipNet(to), Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL,
		Scope: netlink.SCOPE_HOST})
}

func addRoute(device string, route *netlink.Route) error {
	link, err := netlink.LinkByName(device)
	if err == nil {
		route.LinkIndex = link.Attrs().Index
		err = netlink.RouteAdd(route)
	}
	return wrap(err, "route to %s through device %s", route.Dst, device)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// wrap says what an error is about; nil stays nil.
func wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
