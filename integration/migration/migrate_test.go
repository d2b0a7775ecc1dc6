package migration

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// migrationRuns is a flag.
var migrationRuns = flag.Int("runs", 1, "how often to move each kind of old state to kube-nft and back under load")

// A migration is a node with old state under load.
type migration struct {
	net    *migrationNet
	state  oldState
	shapes []legacytest.Shape
	binary string
	wrap   []string // a command to start the daemon with
	source lab.Directory
	load   *load
}

// newMigration makes a node on which kube-proxy has been until now, and puts it under a light load. The load is most of
// what these tests cost; newMigrationUnder chooses another one.
func newMigration(t *testing.T, binary string, state oldState, shapes []legacytest.Shape) *migration {
	t.Helper()
	return newMigrationUnder(t, binary, state, shapes, 1, 100*time.Millisecond)
}

// newMigrationUnder is newMigration with the load of startLoad.
func newMigrationUnder(t *testing.T, binary string, state oldState, shapes []legacytest.Shape, streams int,
	pace time.Duration) *migration {
	t.Helper()
	m := &migration{net: newMigrationNet(t), state: state, shapes: shapes, binary: binary, source: lab.NewDirectory(t)}
	if err := os.Chmod(filepath.Dir(string(m.source)), 0o755); err != nil { // for the user nobody
		t.Fatal(err)
	}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.program(t)
	targets, pods := migrationTargets(m.shapes)
	m.net.serve(t, pods)
	m.load = startLoad(t, m.net, targets, streams, pace)
	m.load.await(t, 50)
	return m
}

// program is kube-proxy's part: it loads its rules.
func (m *migration) program(t *testing.T) {
	t.Helper()
	for _, s := range m.shapes {
		m.state.load(t, s)
	}
}

// migrate runs kube-nft migrate with a command and returns the journal.
func (m *migration) migrate(t *testing.T, args ...string) string {
	t.Helper()
	p := lab.Start(t, append([]string{m.binary, "migrate"}, args...)...)
	<-p.Exited()
	if p.ExitCode() != 0 {
		t.Fatalf("kube-nft migrate %v: exit code %d\n%s", args, p.ExitCode(), p.Stderr())
	}
	return p.Stderr()
}

// apply is migrate apply.
func (m *migration) apply(t *testing.T) string {
	t.Helper()
	return m.migrate(t, m.applyArgs()...)
}

// applyArgs are the words after migrate.
func (m *migration) applyArgs() []string {
	args := []string{"apply", "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48"}
	return append(args, m.source.Flags()...)
}

// TestMigrateKernel moves a node with each kind of old state to kube-nft and back, under load: no
// connection may fail, and everything foreign stays as it was.
func TestMigrateKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, state := range oldStates {
		for range *migrationRuns {
			t.Run(state.name, func(t *testing.T) {
				t.Parallel()
				moveThereAndBack(t, binary, state)
			})
		}
	}
}

func moveThereAndBack(t *testing.T, binary string, state oldState) {
	m := newMigrationUnder(t, binary, state, shapesOf(300), 4, 20*time.Millisecond)
	before := state.save(t)
	journal := m.applyAfterProxy(t)
	m.load.await(t, 200)
	after := state.save(t)
	if left := proxys(after); left != "" {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
	if diff := cmp.Diff(foreign(before), foreign(after)); diff != "" {
		t.Errorf("foreign rules (-before +after):\n%s", diff)
	}
	again := m.apply(t)
	if !strings.Contains(again, "commit: done: nothing to change") {
		t.Errorf("a second apply:\n%s", again)
	}
	if got := state.save(t); got != after {
		t.Errorf("a second apply changed something:\n%s", cmp.Diff(after, got))
	}
	m.startBesideProxy(t)
	m.program(t)
	m.load.await(t, 200)
	rollback := m.migrate(t, "rollback", "--wait")
	m.load.await(t, 200)
	m.load.check(t)
	if diff := cmp.Diff(before, state.save(t)); diff != "" {
		t.Errorf("after the rollback (-before +after):\n%s", diff)
	}
	if t.Failed() {
		t.Logf("apply:\n%s\nagain:\n%s\nrollback:\n%s", journal, again, rollback)
	}
}

// applyAfterProxy runs migrate apply beside a live kube-proxy: it waits, commits nothing, and takes over
// when kube-proxy has ended. It returns the journal.
func (m *migration) applyAfterProxy(t *testing.T) string {
	t.Helper()
	proxy := startFakeProxy(t)
	apply := lab.Start(t, append([]string{m.binary, "migrate"}, m.applyArgs()...)...)
	apply.AwaitLog(t, "kube-nft: kube-proxy runs, process ")
	if tables := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(tables, "kube-nft") {
		t.Errorf("it has committed beside a live kube-proxy:\n%s", tables)
	}
	awaitMetric(t, `kube_nft_takeover{state="waiting"} 1`)
	proxy.Signal(syscall.SIGTERM)
	<-apply.Exited()
	if apply.ExitCode() != 0 {
		t.Fatalf("exit code %d\n%s", apply.ExitCode(), apply.Stderr())
	}
	return apply.Stderr()
}

// startBesideProxy starts the daemon while our tables are in force and a kube-proxy runs that should
// not. The daemon keeps the tables up to date at once, and removes kube-proxy's rules when it has ended.
func (m *migration) startBesideProxy(t *testing.T) {
	t.Helper()
	proxy := startFakeProxy(t)
	m.program(t)
	daemon := m.startDaemon(t)
	daemon.AwaitLog(t, "the takeover waits until kube-proxy on this node has ended")
	awaitMetric(t, `kubeproxy_sync_proxy_rules_last_timestamp_seconds`)
	m.load.await(t, 50)
	proxy.Signal(syscall.SIGTERM)
	awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
	if left := proxys(m.state.save(t)); left != "" {
		t.Errorf("left of kube-proxy's:\n%s\n%s", left, daemon.Stderr())
	}
	daemon.Stop(t)
}
