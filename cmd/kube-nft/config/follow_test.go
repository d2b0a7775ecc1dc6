package config

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A follower runs Follow.
type follower struct {
	changed  chan bool
	problems chan string
}

func follow(t *testing.T, r *Reader) *follower {
	t.Helper()
	have, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{make(chan bool, 1), make(chan string, 10)}
	go func() { f.changed <- r.Follow(t.Context(), have, func(err error) { f.problems <- err.Error() }) }()
	return f
}

const patience = time.Minute // more than rescan: only a fault takes that long

func receive[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("did not happen: " + what)
		panic("unreachable")
	}
}

func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestFollow: what cannot be used and what means the same is no change.
func TestFollow(t *testing.T) {
	const head = "apiVersion: " + proxyVersion + "\nkind: " + proxyKind + "\n"
	file := writeFile(t, head)
	f := follow(t, newReader(t, "--config", file, "--cluster-cidr", "10.0.0.0/8"))

	replaceFile(t, file, head+"mode: nft\n")
	if got, want := receive(t, "a problem", f.problems), file+": mode nft: expected nftables or shadow"; got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, "a problem", f.problems); !strings.Contains(got, "no such file") {
		t.Errorf("problem %q after removal", got)
	}
	replaceFile(t, file, head+"# says the same, as a flag wins:\nclusterCIDR: 11.0.0.0/8\n")
	replaceFile(t, file, head+"mode: nftables\nunknown: 1\n")
	if got, want := receive(t, "a problem", f.problems), file+": unknown: ignored, there is no such field"; got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	select {
	case <-f.changed:
		t.Fatal("Follow returned although the settings are the same")
	default:
	}
	replaceFile(t, file, head+"oomScoreAdj: 0\n")
	if !receive(t, "the change", f.changed) {
		t.Error("Follow returned false after a change")
	}
}

// TestFollowConfigMap changes a file as the kubelet does: by exchanging a link to the
// directory.
func TestFollowConfigMap(t *testing.T) {
	volume := t.TempDir()
	write := func(version, text string) {
		if err := os.Mkdir(filepath.Join(volume, version), 0o700); err != nil {
			t.Fatal(err)
		}
		replaceFile(t, filepath.Join(volume, version, "config.conf"),
			"apiVersion: "+proxyVersion+"\nkind: "+proxyKind+"\n"+text)
		if err := os.Symlink(version, filepath.Join(volume, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(volume, "..data_tmp"), filepath.Join(volume, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	write("..1", "")
	file := filepath.Join(volume, "config.conf")
	if err := os.Symlink("..data/config.conf", file); err != nil {
		t.Fatal(err)
	}
	f := follow(t, newReader(t, "--config", file))
	started := time.Now()
	write("..2", "clusterCIDR: 10.0.0.0/8\n")
	if !receive(t, "the change", f.changed) {
		t.Error("Follow returned false after a change")
	}
	if took := time.Since(started); took >= rescan {
		t.Errorf("the change was noticed after %s, by the periodic look", took)
	}
}

// TestFollowNothing: without a file, Follow waits for its context.
func TestFollowNothing(t *testing.T) {
	r := newReader(t)
	have, err := r.Read()
	if err != nil {
		t.Fatal(err)
	}
	if r.Follow(canceled(t), have, func(err error) { t.Error(err) }) {
		t.Error("Follow returned true without a file")
	}
	f := newReader(t, "--config", proxyFile(t, ""))
	if have, err = f.Read(); err != nil {
		t.Fatal(err)
	}
	if f.Follow(canceled(t), have, func(err error) { t.Error(err) }) {
		t.Error("Follow returned true after its context ended")
	}
}

func canceled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
