// Package lab makes network namespaces, processes and Kubernetes objects for tests and for the programs
// under integration. Call Require, then New for a network namespace that ends with the test. Code that
// ships does not import it.
package lab

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// requireKernel names an environment variable about tests that need a privilege, a program or a
// kernel feature. With 1 they fail if they lack it. With 0, tests that need a namespace are always
// skipped.
const requireKernel = "KUBE_NFT_REQUIRE_KERNEL"

// SkipOrFail ends a test that this machine cannot run: it skips it on a developer's
// machine and fails it where KUBE_NFT_REQUIRE_KERNEL is 1.
func SkipOrFail(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv(requireKernel) == "1" {
		t.Fatalf(format, args...)
	}
	t.Skipf(format, args...)
}

// Open returns what open opens, and closes it when the test ends.
func Open[T io.Closer](t testing.TB, open func() (T, error)) T {
	t.Helper()
	opened, err := open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
	return opened
}

// Patience bounds how long kube-nft takes to do what a test waits for. It takes milliseconds, unless
// the machine is busy: a bound that only passes when something is broken costs nothing.
const Patience = 2 * time.Minute

// Eventually waits until a condition holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, Patience)
		}
	}
}

// How often an unexpected listing is repeated, and the pause before each.
const (
	listings    = 50
	listingWait = 10 * time.Millisecond
)

// Listing returns what nft lists of the ruleset. If that differs from want, it lists again for a
// while: after many additions the kernel moves elements to a larger hash table, and a dump
// meanwhile lists some twice or not at all.
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

// Replace writes a file in one step, so that no program reads half of it. Until then the text is in a
// hidden file of the same directory.
func Replace(path, text string) error {
	fresh := filepath.Join(filepath.Dir(path), "."+filepath.Base(path))
	if err := os.WriteFile(fresh, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// Serve gives each connection to answer, on a goroutine of its own, and closes it then, until the listener is closed.
// It returns at once.
func Serve(listener net.Listener, answer func(net.Conn)) {
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				answer(conn)
			}()
		}
	}()
}
