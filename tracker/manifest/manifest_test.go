package manifest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/trackertest"
)

// patience is how long a condition is awaited before a test fails.
const patience = time.Minute

var _ tracker.Sink = (*tracker.Tracker)(nil)

// A fixture is a Source that runs on a directory for as long as the test lasts.
type fixture struct {
	*trackertest.Sink
	t   *testing.T
	dir string

	mu       sync.Mutex
	problems []string
	notices  []string
}

// follow starts a Source on path, whose files are written relative to dir. The periodic
// scan is off: what the test awaits must come from inotify.
func follow(t *testing.T, dir, path string) *fixture {
	t.Helper()
	f := &fixture{Sink: trackertest.NewSink(), t: t, dir: dir}
	source := New(path, Options{
		Problem: func(err error) { f.note(&f.problems, err.Error()) },
		Notice:  func(text string) { f.note(&f.notices, text) },
	})
	source.rescan = time.Hour
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := source.Run(ctx, f); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	select {
	case <-source.Synced():
	case <-time.After(patience):
		t.Fatal("not synced")
	}
	return f
}

func (f *fixture) note(where *[]string, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*where = append(*where, strings.ReplaceAll(text, f.dir+"/", ""))
}

// await polls until condition holds.
func (f *fixture) await(what string, condition func() bool) {
	f.t.Helper()
	deadline := time.After(patience)
	for !condition() {
		select {
		case <-deadline:
			f.t.Fatalf("no %s; objects %v, problems %q, notices %q", what, f.Snapshot(), f.problems, f.notices)
		case <-time.After(time.Millisecond):
		}
	}
}

// holds awaits that the sink holds the Services web=mark, given in pairs.
func (f *fixture) holds(pairs ...string) {
	f.t.Helper()
	want := make(map[string]string)
	for pair := range slices.Chunk(pairs, 2) {
		want["Service default/"+pair[0]] = pair[1]
	}
	f.await(fmt.Sprint(want), func() bool { return cmp.Equal(f.Snapshot(), want) })
}

func (f *fixture) tells(where *[]string, text string) {
	f.t.Helper()
	f.await(text, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return slices.Contains(*where, text)
	})
}

// put renames a complete file into place.
func put(t *testing.T, path, content string) {
	t.Helper()
	temporary := filepath.Join(filepath.Dir(path), ".new")
	write(t, temporary, content)
	must(t, os.Rename(temporary, path))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// services returns Services as name and cluster IP, given in pairs.
func services(pairs ...string) string {
	var b strings.Builder
	for pair := range slices.Chunk(pairs, 2) {
		fmt.Fprintf(&b, "---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: %s}\n", pair[0], pair[1])
	}
	return b.String()
}

func TestFollowsDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", services("web", "10.0.0.1", "db", "10.0.0.2"))
	write(t, dir+"/.hidden.yaml", services("hidden", "10.0.0.9"))
	write(t, dir+"/a.yaml~", services("backup", "10.0.0.9"))
	must(t, os.Mkdir(dir+"/sub.yaml", 0o700))
	f := follow(t, dir, dir)
	f.holds("web", "10.0.0.1", "db", "10.0.0.2")

	before := f.Calls()
	put(t, dir+"/a.yaml", services("web", "10.0.0.7", "db", "10.0.0.2"))
	f.holds("web", "10.0.0.7", "db", "10.0.0.2")
	if calls := f.Calls() - before; calls != 1 {
		t.Errorf("one of two objects changed, the sink was called %d times", calls)
	}
	write(t, dir+"/b.yml", services("new", "10.0.0.3")) // in place
	f.holds("web", "10.0.0.7", "db", "10.0.0.2", "new", "10.0.0.3")
	must(t, os.Rename(dir+"/b.yml", dir+"/b.off"))
	f.holds("web", "10.0.0.7", "db", "10.0.0.2")
	must(t, os.Remove(dir+"/a.yaml"))
	f.holds()
}

func TestBadFileKeepsLastGoodState(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", services("web", "10.0.0.1"))
	write(t, dir+"/bad.yaml", "kind: [\n")
	f := follow(t, dir, dir)
	f.holds("web", "10.0.0.1")
	f.tells(&f.problems, "bad.yaml:1: did not find expected node content")

	put(t, dir+"/a.yaml", services("web", "10.0.0.2")+"---\nkind: {\n")
	f.tells(&f.problems, "a.yaml:7: did not find expected node content")
	f.holds("web", "10.0.0.1")
	put(t, dir+"/a.yaml", services("web", "10.0.0.3"))
	f.holds("web", "10.0.0.3")
	write(t, dir+"/a.yaml", "")
	f.tells(&f.problems, "a.yaml: file is empty; keeping its 1 objects (delete the file to remove them)")
	f.holds("web", "10.0.0.3")
	put(t, dir+"/a.yaml", "") // a complete file, which says that there is nothing
	f.holds()
}

func TestLaterFileWins(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", services("web", "10.0.0.1"))
	write(t, dir+"/b.yaml", services("web", "10.0.0.2"))
	f := follow(t, dir, dir)
	f.holds("web", "10.0.0.2")
	f.tells(&f.notices, "Service default/web is defined at a.yaml:2 and at b.yaml:2; the second one is used")
	must(t, os.Remove(dir+"/b.yaml"))
	f.holds("web", "10.0.0.1")
}

func TestFollowsFile(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/a.conf" // the name of a single file does not matter
	write(t, path, services("web", "10.0.0.1"))
	f := follow(t, dir, path)
	f.holds("web", "10.0.0.1")
	write(t, path, services("web", "10.0.0.2"))
	f.holds("web", "10.0.0.2")
	put(t, path, services("web", "10.0.0.3"))
	f.holds("web", "10.0.0.3")
	write(t, path, services("web", "10.0.0.4")) // the new inode is watched
	f.holds("web", "10.0.0.4")
	must(t, os.Remove(path))
	f.tells(&f.problems, "manifests a.conf: no such file or directory; its last valid content stays in force")
	f.holds("web", "10.0.0.4")
	write(t, path, services("web", "10.0.0.5"))
	f.holds("web", "10.0.0.5")
}

// TestFollowsMountedConfigMap flips links as the kubelet does.
func TestFollowsMountedConfigMap(t *testing.T) {
	for _, path := range []string{"", "/a.yaml"} {
		t.Run("path "+path, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Mkdir(dir+"/..1", 0o700))
			write(t, dir+"/..1/a.yaml", services("web", "10.0.0.1"))
			must(t, os.Symlink("..1", dir+"/..data"))
			must(t, os.Symlink("..data/a.yaml", dir+"/a.yaml"))
			f := follow(t, dir, dir+path)
			f.holds("web", "10.0.0.1")
			for i := 2; i < 5; i++ {
				version, address := fmt.Sprintf("..%d", i), fmt.Sprintf("10.0.0.%d", i)
				must(t, os.Mkdir(filepath.Join(dir, version), 0o700))
				write(t, filepath.Join(dir, version, "a.yaml"), services("web", address))
				must(t, os.Symlink(version, dir+"/..new"))
				must(t, os.Rename(dir+"/..new", dir+"/..data"))
				must(t, os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..%d", i-1))))
				f.holds("web", address)
			}
		})
	}
}

func TestDirectoryComesBack(t *testing.T) {
	parent := t.TempDir()
	dir := parent + "/manifests"
	must(t, os.Mkdir(dir, 0o700))
	write(t, dir+"/a.yaml", services("web", "10.0.0.1"))
	f := follow(t, parent, dir)
	must(t, os.Rename(dir, parent+"/old"))
	f.tells(&f.problems, "manifests manifests: no such file or directory; its last valid content stays in force")
	f.holds("web", "10.0.0.1")
	must(t, os.Mkdir(dir, 0o700))
	f.holds()
	put(t, dir+"/b.yaml", services("web", "10.0.0.2"))
	f.holds("web", "10.0.0.2")
	put(t, dir+"/b.yaml", services("web", "10.0.0.3"))
	f.holds("web", "10.0.0.3")
}

func TestRescanFindsUnannouncedChanges(t *testing.T) {
	dir, target := t.TempDir(), t.TempDir()+"/target"
	write(t, target, services("web", "10.0.0.1"))
	must(t, os.Symlink(target, dir+"/a.yaml"))
	sink := trackertest.NewSink()
	source := New(dir, Options{})
	source.rescan = 5 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = source.Run(ctx, sink) })
	t.Cleanup(func() { cancel(); running.Wait() })
	f := &fixture{Sink: sink, t: t}
	f.holds("web", "10.0.0.1")
	write(t, target, services("web", "10.0.0.2"))
	f.holds("web", "10.0.0.2")
}

func TestEmptyDirectoryIsNoticed(t *testing.T) {
	dir := t.TempDir()
	f := follow(t, filepath.Dir(dir), dir)
	f.holds()
	f.tells(&f.notices, "manifests "+filepath.Base(dir)+": no file is named *.yaml, *.yml or *.json")
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", services("web", "10.0.0.1"))
	sink := trackertest.NewSink()
	sink.Refusal = errors.New("refused")
	var refusals []string
	err := Load(dir, Options{Refused: func(err error) { refusals = append(refusals, err.Error()) }}, sink)
	if err != nil || sink.Snapshot()["Service default/web"] != "10.0.0.1" {
		t.Errorf("error %v, objects %v", err, sink.Snapshot())
	}
	if !slices.Equal(refusals, []string{"refused"}) {
		t.Errorf("refusals: %q", refusals)
	}
	write(t, dir+"/b.yaml", "x\n")
	want := dir + "/b.yaml:1: found a string, expected an object"
	if err := Load(dir, Options{}, trackertest.NewSink()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	want = "manifests " + dir + "/none: no such file or directory"
	if err := Load(dir+"/none", Options{}, trackertest.NewSink()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := New(dir+"/none", Options{}).Run(t.Context(), trackertest.NewSink()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestPipeIsRefused(t *testing.T) {
	path := t.TempDir() + "/a.yaml"
	must(t, mkfifo(path))
	want := path + ": not a regular file"
	if err := Load(path, Options{}, trackertest.NewSink()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

// BenchmarkEdit measures from renaming a file into place until the sink was called, in a
// directory that also holds 1,000 Services that do not change.
func BenchmarkEdit(b *testing.B) {
	dir := b.TempDir()
	if err := os.WriteFile(dir+"/big.yaml", manifestOf(1000), 0o600); err != nil {
		b.Fatal(err)
	}
	changed := make(chan struct{}, 1)
	source := New(dir, Options{Changed: func() { changed <- struct{}{} }})
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = source.Run(ctx, trackertest.NewSink()) })
	defer running.Wait()
	defer cancel()
	<-changed
	for i := 0; b.Loop(); i++ {
		if err := os.WriteFile(dir+"/.new", []byte(services("web", fmt.Sprintf("10.0.0.%d", i%250))), 0o600); err != nil {
			b.Fatal(err)
		}
		if err := os.Rename(dir+"/.new", dir+"/web.yaml"); err != nil {
			b.Fatal(err)
		}
		<-changed
	}
}
