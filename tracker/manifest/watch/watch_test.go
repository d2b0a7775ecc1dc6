package watch

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// patience is more than any event takes to arrive.
const patience = time.Minute

func newWatch(t *testing.T, path string) *Watch {
	t.Helper()
	w, err := New(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func expectEvent(t *testing.T, w *Watch, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !w.Next(ctx, 20*time.Millisecond, time.Second, 2*patience) {
		t.Fatal("no event after " + what)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestWatchFile follows a file through everything that editors do to it.
func TestWatchFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	w := newWatch(t, path)
	must(t, os.WriteFile(path, []byte("1"), 0o600))
	expectEvent(t, w, "creation")
	must(t, os.WriteFile(path, []byte("2"), 0o600))
	expectEvent(t, w, "a write")
	must(t, os.WriteFile(path+".new", []byte("3"), 0o600))
	must(t, os.Rename(path+".new", path))
	expectEvent(t, w, "a rename over it")
	must(t, os.WriteFile(path, []byte("4"), 0o600))
	expectEvent(t, w, "a write to the new file")
	must(t, os.Remove(path))
	expectEvent(t, w, "removal")
}

// TestRelevant: of what happens in the parent directory, only the path's own name and those
// that mounted ConfigMaps exchange count.
func TestRelevant(t *testing.T) {
	w := &Watch{path: "/directory/file", self: 1}
	w.parent.Store(2)
	for _, tt := range []struct {
		name   string
		events []byte
		want   bool
	}{
		{"none", nil, false},
		{"the path itself", event(1, ""), true},
		{"its name in the parent", event(2, "file"), true},
		{"a neighbour", event(2, "other"), false},
		{"two neighbours", append(event(2, "other"), event(2, "another one")...), false},
		{"after a neighbour", append(event(2, "other"), event(2, "file")...), true},
		{"a ConfigMap", event(2, "..data"), true},
		{"cut short", event(2, "other")[:8], false},
	} {
		if got := w.relevant(tt.events); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// event encodes a struct inotify_event, with the name padded by NULs.
func event(descriptor int32, name string) []byte {
	size := len(name) + 16 - len(name)%16
	b := binary.NativeEndian.AppendUint32(nil, uint32(descriptor))
	b = binary.NativeEndian.AppendUint64(b, 0) // mask and cookie
	b = binary.NativeEndian.AppendUint32(b, uint32(size))
	return append(append(b, name...), make([]byte, size-len(name))...)
}

// TestNext ends when it is quiet after an event, when time is up, and with its context.
func TestNext(t *testing.T) {
	w := newWatch(t, t.TempDir())
	for _, tt := range []struct{ quiet, most, rescan time.Duration }{
		{time.Millisecond, time.Hour, time.Hour}, {time.Hour, time.Millisecond, time.Hour},
	} {
		w.wake <- struct{}{}
		if !w.Next(t.Context(), tt.quiet, tt.most, tt.rescan) {
			t.Errorf("%+v: it ends", tt)
		}
	}
	if !w.Next(t.Context(), time.Hour, time.Hour, time.Millisecond) {
		t.Error("it ends instead of a rescan")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w.Next(ctx, time.Hour, time.Hour, time.Hour) {
		t.Error("it goes on after its context")
	}
}

// TestWatchWithoutInotify: where inotify cannot be used, a nil Watch stands for the one that is missing.
func TestWatchWithoutInotify(t *testing.T) {
	var w *Watch
	if !w.Next(t.Context(), time.Hour, time.Hour, time.Millisecond) {
		t.Error("a nil Watch ends")
	}
	w.Close()
}
