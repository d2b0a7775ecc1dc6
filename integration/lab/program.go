package lab

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// NodeName is the name of the node that kube-nft runs on, unless a test says otherwise.
const NodeName = "node-a"

// programFlag is a flag of all tests that run kube-nft.
var programFlag = new(string)

// init defines the flag in tests alone: the programs under integration have flags of their own.
func init() {
	if testing.Testing() {
		flag.StringVar(programFlag, "proxy", "", "program to test instead of building kube-nft")
	}
}

// Program returns the path of a kube-nft, which is built if it is not up to date.
func Program(t testing.TB) string {
	t.Helper()
	if *programFlag != "" {
		return *programFlag
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// build builds kube-nft into bin/test of the repository, which is not under version control. Tests
// of several packages run at a time: they take turns, and all but the first find it up to date.
var build = sync.OnceValues(func() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", os.NewSyscallError("flock", err)
	}
	path := filepath.Join(dir, "kube-nft")
	cmd := exec.Command("go", "build", "-o", path, "./cmd/kube-nft")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, out)
	}
	return path, nil
})

// Root returns the directory of the repository, at or above the working directory.
func Root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, statErr := os.Stat(filepath.Join(dir, "cmd", "kube-nft")); statErr == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			err = errors.New("not within the repository of kube-nft")
		}
		dir = filepath.Dir(dir)
	}
	return "", err
}

// Path returns the path of a file of the repository.
func Path(t testing.TB, name string) string {
	t.Helper()
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, name)
}

// A Directory holds the manifests that a kube-nft follows.
type Directory string

// NewDirectory returns an empty directory that lives as long as the test.
func NewDirectory(t testing.TB) Directory { return Directory(t.TempDir()) }

// Write replaces a file in one step.
func (d Directory) Write(t testing.TB, name, text string) {
	t.Helper()
	if err := Replace(filepath.Join(string(d), name), text); err != nil {
		t.Fatal(err)
	}
}

// Flags make kube-nft follow the directory.
func (d Directory) Flags() []string { return []string{"--manifests", string(d)} }

// Start starts kube-nft on the directory, in the namespace of the calling test.
func (d Directory) Start(t testing.TB, flags ...string) *Process {
	t.Helper()
	argv := append([]string{Program(t), "--hostname-override", NodeName}, d.Flags()...)
	return Start(t, append(argv, flags...)...)
}
