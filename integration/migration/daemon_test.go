package migration

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// metricsAddress is where the daemon under test serves metrics.
const metricsAddress = "127.0.0.1:10249"

// TestMigrateNextToDaemonKernel applies and rolls back while a daemon runs that is told not
// to take over: apply leaves the tables to it, rollback waits for its end.
func TestMigrateNextToDaemonKernel(t *testing.T) {
	t.Parallel()
	m := newMigration(t, lab.Program(t), oldStates[1], shapesOf(60))
	before := m.state.save(t)
	daemon := m.startDaemon(t, "--takeover=never")
	daemon.AwaitLog(t, "kube-nft started")
	if diff := cmp.Diff(before, m.state.save(t)); diff != "" {
		t.Errorf("with --takeover=never (-before +after):\n%s", diff)
	}
	if journal := m.apply(t); !strings.Contains(journal, "commit: done: left to the running daemon") {
		t.Errorf("journal:\n%s", journal)
	}
	if left := proxys(m.state.save(t)); left != "" {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
	// enough to find the daemon
	for _, command := range [][]string{{"migrate", "rollback", "--timeout", "3s"}, {"cleanup", "--timeout", "3s"}} {
		refused := lab.Start(t, append([]string{m.binary}, command...)...)
		<-refused.Exited()
		if refused.ExitCode() != 1 ||
			!strings.Contains(refused.Stderr(), "nothing was removed; stop it on this node and run this again") {
			t.Errorf("%v next to a daemon: exit code %d\n%s", command, refused.ExitCode(), refused.Stderr())
		}
	}
	m.program(t)
	daemon.Signal(syscall.SIGTERM)
	<-daemon.Exited()
	m.migrate(t, "rollback", "--wait")
	m.load.await(t, 50)
	m.load.check(t)
}

// asNobody are the words before a command that another user than root runs, with CAP_NET_ADMIN.
var asNobody = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
	"--bounding-set=-all,+net_admin", "--inh-caps=-all,+net_admin", "--ambient-caps=-all,+net_admin", "--"}

// TestMigrateUnverifiedKernel starts a daemon that is not root's where there is state in the legacy
// tables: it serves, and says what it could not do.
func TestMigrateUnverifiedKernel(t *testing.T) {
	t.Parallel()
	m := newMigration(t, lab.Program(t), oldStates[0], shapesOf(60))
	m.wrap = asNobody
	daemon := m.startDaemon(t)
	awaitMetric(t, `kube_nft_takeover{state="unverified"} 1`)
	daemon.AwaitLog(t, "run kube-nft migrate apply on this node with the privilege")
	m.wrap = nil
	m.apply(t)
	m.load.await(t, 50)
	m.load.check(t)
	if left := proxys(m.state.save(t)); left != "" {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
}

// startDaemon starts the daemon with the settings of migrate apply.
func (m *migration) startDaemon(t *testing.T, flags ...string) *lab.Process {
	t.Helper()
	argv := slices.Concat(m.wrap, []string{m.binary, "--takeover=auto", "--metrics-bind-address", metricsAddress},
		m.applyArgs()[1:], flags)
	daemon := lab.Start(t, argv...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon wrote:\n%s", daemon.Stderr())
		}
	})
	return daemon
}

// startFakeProxy starts a program that is called kube-proxy and does nothing.
func startFakeProxy(t *testing.T) *lab.Process {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	// A copy fails with ETXTBSY if another test forks while it is written: the child has the file open until its exec.
	path := filepath.Join(t.TempDir(), "kube-proxy")
	if err := os.Symlink(sleep, path); err != nil {
		t.Fatal(err)
	}
	return lab.Start(t, path, "3600")
}

// awaitMetric waits until a scrape has a text.
func awaitMetric(t *testing.T, text string) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(lab.Patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if last = scrape(); strings.Contains(last, text) {
			return
		}
	}
	t.Fatalf("no %s in the metrics:\n%s", text, last)
}

// scrape asks for the metrics.
func scrape() string { return answer(metricsAddress, "/metrics") }

// answer asks a server over a connection of this thread, which is the node's.
func answer(address, path string) string {
	conn, err := net.DialTimeout("tcp", address, time.Second)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.0\r\nHost: %s\r\n\r\n", path, address)
	text, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(text)
}
