package migration

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/legacy/legacytest"
)

// TestMigrateFlushedKernel: a firewall flushes the ruleset during a takeover, and takes our tables away.
// None of kube-proxy's rules go while ours are not there, and in the end ours serve.
func TestMigrateFlushedKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[0], shapes: shapesOf(60), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	for _, line := range []string{"verify: done", "remove from legacy ip filter: begins",
		"remove from legacy ip nat: begins"} {
		noticed := false
		for tries := 0; !noticed; tries++ {
			if tries == 20 { // a busy machine may let it end before it is stopped
				t.Fatalf("flushed after %q: not noticed in %d runs", line, tries)
			}
			noticed = m.flush(t, line)
		}
	}
}

// flush runs migrate apply, and flushes the ruleset when it has logged a line. It reports whether
// migrate apply noticed that; else the flush came when it had ended its work.
func (m *migration) flush(t *testing.T, line string) bool {
	m.program(t)
	p := lab.Start(t, append([]string{m.binary, "migrate"}, m.applyArgs()...)...)
	for ended := false; !ended && !strings.Contains(p.Stderr(), line); {
		select {
		case <-p.Exited():
			ended = true
		case <-time.After(100 * time.Microsecond): // a step takes some milliseconds
		}
	}
	_ = p.Signal(syscall.SIGSTOP) // it fails if the process has ended
	lab.Run(t, "", "nft", "flush", "ruleset")
	_ = p.Signal(syscall.SIGCONT)
	<-p.Exited()
	log, left := p.Stderr(), proxys(m.state.save(t))
	// The takeover finds our tables changed, unless the sync loop has repaired them before it looks.
	noticed := strings.Contains(log, "another program has changed our tables meanwhile") ||
		strings.Contains(log, `"repaired our tables"`)
	serves := strings.Contains(listed("map ip kube-nft services"), legacytest.Shape{}.ClusterIP(0).String())
	if p.ExitCode() != 0 || left != "" || noticed && !serves {
		t.Fatalf("flushed after %q: exit code %d, left of kube-proxy's %d bytes, our frontends served: %t\n%s", line,
			p.ExitCode(), len(left), serves, log)
	}
	lab.Run(t, "", m.binary, "cleanup")
	return noticed
}
