package migration

import (
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestMigrateKilledKernel kills migrate apply at the beginning of each of its steps, and at its last line. Whatever
// had been done by then, no connection fails, and a rerun completes.
func TestMigrateKilledKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m := newMigration(t, binary, state, shapesOf(30))
			before := foreign(state.save(t))
			lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(m.apply(t)), "\n"), func(line string) bool {
				return !strings.HasPrefix(line, "kube-nft: ") // the daemon's log has the time
			})
			for i, line := range lines {
				if i < len(lines)-1 && !strings.HasSuffix(line, ": begins") {
					continue // the next step begins at once
				}
				m.program(t)
				m.migrate(t, "rollback", "--wait")
				m.applyUntil(t, line)
				m.load.await(t, 20)
				journal := m.apply(t)
				m.load.await(t, 20)
				after := state.save(t)
				if left := proxys(after); left != "" {
					t.Errorf("killed at %q and run again, left of kube-proxy's:\n%s\n%s", line, left, journal)
				}
				if diff := cmp.Diff(before, foreign(after)); diff != "" {
					t.Errorf("killed at %q and run again, foreign rules (-before +after):\n%s", line, diff)
				}
			}
			m.load.check(t)
		})
	}
}

// applyUntil runs migrate apply and kills it as soon as it has written a line.
func (m *migration) applyUntil(t *testing.T, line string) {
	t.Helper()
	p := lab.Start(t, append([]string{m.binary, "migrate"}, m.applyArgs()...)...)
	for ended := false; !ended && !strings.Contains(p.Stderr(), line); {
		select {
		case <-p.Exited():
			ended = true
		case <-time.After(100 * time.Microsecond): // a step takes some milliseconds
		}
	}
	p.Signal(syscall.SIGKILL) // fails if it has just exited, which is one of the places
	<-p.Exited()
	if !strings.Contains(p.Stderr(), line) {
		t.Fatalf("no line %q in the journal:\n%s", line, p.Stderr())
	}
}

// A refusal is something that makes a step of migrate apply fail.
type refusal struct {
	name   string
	states []string                // the kinds of old state for which the step exists
	wrap   []string                // what to put before the command
	hold   string                  // what an nft that stays holds on to
	fails  string                  // part of the error
	serves func(saved string) bool // whether old state is expected to be left
}

// refusals are of each kind of step: our commit, foreign messages in it, the legacy tables.
var refusals = []refusal{
	{
		name: "our commit", states: []string{"legacy", "nft-compat", "kube-proxy-nftables"},
		hold:   "add table ip kube-nft { flags owner; }\n",
		fails:  "operation not permitted",
		serves: func(saved string) bool { return proxys(saved) != "" },
	},
	{
		name: "foreign messages in our commit", states: []string{"nft-compat"},
		hold: "add table ip kube-proxy { flags owner; }\nadd chain ip kube-proxy filter-input { type filter hook input " +
			"priority 0; }\nadd rule ip kube-proxy filter-input counter\n",
		fails:  "operation not permitted",
		serves: func(saved string) bool { return true },
	},
	{
		name: "the legacy tables", states: []string{"legacy"},
		wrap:   asNobody,
		fails:  "needs CAP_NET_ADMIN, as root",
		serves: func(saved string) bool { return proxys(saved) != "" },
	},
}

// TestMigrateRefusedKernel has the kernel refuse each kind of step. No connection fails, the
// error says why, and a rerun completes once the reason is gone.
func TestMigrateRefusedKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, r := range refusals {
		for _, state := range oldStates {
			if !slices.Contains(r.states, state.name) {
				continue
			}
			t.Run(r.name+"/"+state.name, func(t *testing.T) {
				t.Parallel()
				refuse(t, binary, state, r)
			})
		}
	}
}

func refuse(t *testing.T, binary string, state oldState, r refusal) {
	m := newMigration(t, binary, state, shapesOf(60))
	release := holdTable(t, r.hold)
	p := lab.Start(t, append(append(r.wrap, m.binary, "migrate"), m.applyArgs()...)...)
	<-p.Exited()
	if p.ExitCode() != 1 || !strings.Contains(p.Stderr(), r.fails) {
		t.Errorf("exit code %d, want 1 and %q:\n%s", p.ExitCode(), r.fails, p.Stderr())
	}
	if saved := state.save(t); !r.serves(saved) {
		t.Errorf("the old state is gone:\n%s", p.Stderr())
	}
	m.load.await(t, 100)
	release()
	journal := m.apply(t)
	m.load.await(t, 100)
	if left := proxys(state.save(t)); left != "" {
		t.Errorf("run again, left of kube-proxy's:\n%s\n%s", left, journal)
	}
	m.load.check(t)
}

// lastWord returns what shows that all commands have been done.
func lastWord(commands string) string {
	words := strings.Fields(strings.Trim(commands, " ;}\n"))
	return words[len(words)-1]
}

// listed lists a table; nothing if it is not there.
func listed(table string) string {
	out, err := exec.Command("nft", "list", table).Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// holdTable has an nft make a table that no other program may write to until release is called.
func holdTable(t *testing.T, commands string) (release func()) {
	t.Helper()
	if commands == "" {
		return func() {}
	}
	cmd := exec.Command("nft", "-i")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("nft -i: %v", err)
	}
	if _, err := stdin.Write([]byte(commands)); err != nil {
		t.Fatal(err)
	}
	table := strings.Join(strings.Fields(commands)[1:4], " ")
	for last := lastWord(commands); !strings.Contains(listed(table), last); {
		time.Sleep(time.Millisecond)
	}
	return func() {
		stdin.Close()
		cmd.Wait() // at the end of its input it exits, and its table goes with it
	}
}
