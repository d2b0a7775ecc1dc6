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

// injections are what strace does to a system call that writes to the kernel's rules.
var injections = []struct{ name, inject, shows string }{
	{"refused", "error=ENOMEM", "(INJECTED)"},
	{"killed", "signal=SIGKILL", "killed by SIGKILL"},
}

// TestMigrateInjectedKernel lets the system calls by which migrate apply reads and writes rules fail, or kill it, one
// after the other. With -runs 120 all of them, else some, which differ from one run of the test to the next: few calls
// write, and between two of these all places are alike.
func TestMigrateInjectedKernel(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	binary := lab.Program(t)
	strides := map[string]int{"setsockopt": max(1, 8 / *migrationRuns), "sendto,sendmsg": max(1, 120 / *migrationRuns)}
	for _, injection := range injections {
		for call, stride := range strides {
			t.Run(injection.name+"/"+call, func(t *testing.T) {
				t.Parallel()
				m := newMigration(t, binary, oldStates[0], shapesOf(30))
				n := 1 + rand.IntN(stride)
				for ; m.inject(t, call, fmt.Sprintf("%s:when=%d", injection.inject, n), injection.shows); n += stride {
					t.Logf("%s at call %d of a thread", injection.name, n)
					m.recover(t)
				}
				m.load.check(t)
			})
		}
	}
}

// inject runs migrate apply with something done to its system calls, and reports whether it
// was: after the last call there is nothing to do it to.
func (m *migration) inject(t *testing.T, calls, what, shows string) bool {
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
	return strings.Contains(string(trace), shows)
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
