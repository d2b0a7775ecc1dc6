package kernel_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestLockInKernel: one holder at a time, in each network namespace, and none without CAP_NET_ADMIN.
func TestLockInKernel(t *testing.T) {
	lab.New(t)
	first, err := kernel.AcquireLock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.AcquireLock(); !errors.Is(err, kernel.ErrLocked) || !kernel.Locked() || kernel.Unlocked() {
		t.Errorf("a second holder: %v, locked %v, unlocked %v", err, kernel.Locked(), kernel.Unlocked())
	}
	elsewhere := lab.Open(t, lab.NewNamespace)
	if err := elsewhere.Do(func() error {
		if kernel.Locked() {
			t.Error("another namespace is locked, too")
		}
		other, err := kernel.AcquireLock()
		if err != nil {
			return err
		}
		return other.Release()
	}); err != nil {
		t.Error(err)
	}
	if err := first.Release(); err != nil {
		t.Error(err)
	}
	if kernel.Locked() || !kernel.Unlocked() {
		t.Error("locked after the release")
	}
	// This thread, which ends with the test, gives up its capabilities.
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&header, &none[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := kernel.AcquireLock(); err == nil {
		t.Error("it can be taken without a capability")
	}
	if kernel.Locked() || kernel.Unlocked() {
		t.Error("locked or not, says a process that cannot know")
	}
}
