package migration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestMigrateInjectedKernel lets the system calls by which migrate apply reads and writes rules fail, one after the
// other. With -runs 60 all of them, else some, which differ from one run of the test to the next: few calls write, and
// between two of these all places are alike.
func TestMigrateInjectedKernel(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("strace"); err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	binary := lab.Program(t)
	for call, stride := range map[string]int{"setsockopt": 4, "sendto,sendmsg": 60} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			stride := max(1, stride / *migrationRuns)
			m := newMigration(t, binary, oldStates[0], shapesOf(30))
			n := 1 + rand.IntN(stride)
			for ; m.inject(t, call, fmt.Sprintf("error=ENOMEM:when=%d", n)); n += stride {
				t.Logf("refused at call %d of a thread", n)
				m.recover(t)
			}
			m.load.check(t)
		})
	}
}

// inject runs migrate apply with something done to its system calls, and reports whether it
// was: after the last call there is nothing to do it to.
func (m *migration) inject(t *testing.T, calls, what string) bool {
	t.Helper()
	log := filepath.Join(t.TempDir(), "trace")
	argv := []string{"strace", "-f", "-qq", "-o", log, "-e", "trace=" + calls, "-e", "inject=" + calls + ":" + what,
		m.binary, "migrate"}
	p := lab.Start(t, append(argv, m.applyArgs()...)...)
	<-p.Exited()
	trace, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(trace), "(INJECTED)")
}

// recover expects the load to go on and a rerun to complete; then it brings the old state
// back.
func (m *migration) recover(t *testing.T) {
	t.Helper()
	m.load.await(t, 5)
	journal := m.apply(t)
	m.load.await(t, 5)
	if left := proxys(m.state.save(t)); left != "" {
		t.Fatalf("run again, left of kube-proxy's:\n%s\n%s", left, journal)
	}
	m.program(t)
	m.migrate(t, "rollback", "--wait")
}
