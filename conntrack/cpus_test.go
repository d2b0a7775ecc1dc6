package conntrack

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

func TestOnlineCPUs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stat")
	text := "cpu  8 0 3 9\ncpu0 4 0 1 5\ncpu3 4 0 2 4\nintr 17 0 0\nctxt 5\nprocesses 9\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := OnlineCPUs(path); n != 2 || err != nil {
		t.Errorf("got %d, %v, want 2", n, err)
	}
	if n, err := OnlineCPUs("/proc/stat"); n < runtime.NumCPU() || err != nil {
		t.Errorf("got %d, %v of this machine, want at least %d", n, err, runtime.NumCPU())
	}
	want := "count online CPUs: open " + path + "x: no such file or directory"
	if _, err := OnlineCPUs(path + "x"); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
