package legacy

import (
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestLockOfPipe: a pipe in the place of the lock file does not block for ever.
func TestLockOfPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "xtables.lock")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		release, err := lock(t.Context(), path)
		if err == nil {
			release()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(lab.Patience):
		t.Error("it waits for a writer")
	}
}
