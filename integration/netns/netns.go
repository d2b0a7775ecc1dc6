// Package netns gives tests throwaway network namespaces. Only _test files import it.
//
// A namespace belongs to an OS thread. New locks the calling goroutine to its thread and
// never unlocks it: when the test ends, the runtime discards the thread, and with it goes
// the last reference to the namespace and everything in it. A goroutine that the test
// starts, a subtest among them, runs on another thread, outside the namespace; sockets
// that the test opened work everywhere.
package netns

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// requireKernel names the environment variable that, set to 1, turns a skip for want of
// privilege or of a kernel feature into a failure.
const requireKernel = "KUBE_NFT_REQUIRE_KERNEL"

// New moves the calling test into an empty network namespace of its own, with the
// loopback device up. Without the privilege to do so the test is skipped.
func New(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		SkipOrFail(t, "unshare network namespace: %v; run as root or under unshare -rn", err)
	}
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		t.Fatalf("set up loopback device: %v", err)
	}
}

// Require skips the calling test if New would skip it, and leaves it where it is. It saves
// a test the preparations that only a namespace makes use of.
func Require(t testing.TB) {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		result <- unix.Unshare(unix.CLONE_NEWNET)
	}()
	if err := <-result; err != nil {
		SkipOrFail(t, "unshare network namespace: %v; run as root or under unshare -rn", err)
	}
}

// SkipOrFail ends a test that this machine cannot run: it skips it on a developer's
// machine and fails it where KUBE_NFT_REQUIRE_KERNEL is 1.
func SkipOrFail(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv(requireKernel) == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Sysctl sets one kernel parameter of the current namespace, named as in
// "net.ipv4.ip_forward". Device names with a dot in them cannot be named.
func Sysctl(t testing.TB, name, value string) {
	t.Helper()
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		t.Fatalf("set %s to %s: %v", name, value, err)
	}
}

// How often a listing that is not as wanted is made again, and how long after the last one.
const (
	listings    = 50
	listingWait = 10 * time.Millisecond
)

// Listing returns what nft lists of the ruleset. If that is not as wanted it lists again for
// a while: after many elements were added the kernel moves their hash table to a larger one,
// and a dump meanwhile has some of them twice or not at all.
func Listing(t testing.TB, want string) (got string) {
	t.Helper()
	for range listings {
		if got = Run(t, "", "nft", "list", "ruleset"); got == want {
			break
		}
		time.Sleep(listingWait)
	}
	return got
}
