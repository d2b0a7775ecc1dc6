package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

const unit = "../../deploy/systemd/kube-nft.service"

// unitSettings returns the values of each setting of the unit, in their order.
func unitSettings(t *testing.T) map[string][]string {
	t.Helper()
	settings := make(map[string][]string)
	for line := range strings.Lines(string(readFile(t, unit))) {
		name, value, found := strings.Cut(strings.TrimSpace(line), "=")
		if found && !strings.HasPrefix(name, "#") {
			settings[name] = append(settings[name], value)
		}
	}
	return settings
}

// exposure matches what systemd-analyze says in the end: 0.0 is locked up, 10.0 is open.
var exposure = regexp.MustCompile(`Overall exposure level for \S+: (\d+\.\d+)`)

// TestUnitSecurity lets systemd itself judge the unit.
func TestUnitSecurity(t *testing.T) {
	if caps := unitSettings(t)["CapabilityBoundingSet"]; len(caps) != 1 || caps[0] != "CAP_NET_ADMIN" {
		t.Errorf("capabilities %v, want CAP_NET_ADMIN alone", caps)
	}
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Log("systemd-analyze is not here, so the test does not check the whole unit")
		return
	}
	out := lab.Run(t, "", "systemd-analyze", "security", "--offline=yes", "--no-pager", unit)
	match := exposure.FindStringSubmatch(out)
	if match == nil {
		t.Fatalf("systemd-analyze security says:\n%s", out)
	}
	if match[1] > "3.0" {
		t.Errorf("exposure %s, want at most 3.0:\n%s", match[1], out)
	}
}

// allowedCalls are the system calls that the unit's filters let through.
func allowedCalls(t *testing.T) map[string]bool {
	t.Helper()
	// members lists a set of systemd's with the sets that are in it.
	var members func(set string) []string
	members = func(set string) (calls []string) {
		for line := range strings.Lines(lab.Run(t, "", "systemd-analyze", "syscall-filter", "--no-pager", set)) {
			switch name := strings.TrimSpace(line); {
			case !strings.HasPrefix(line, " ") || strings.HasPrefix(name, "#"):
			case strings.HasPrefix(name, "@"):
				calls = append(calls, members(name)...)
			default:
				calls = append(calls, name)
			}
		}
		return calls
	}
	allowed := make(map[string]bool)
	for _, filter := range unitSettings(t)["SystemCallFilter"] {
		denied := strings.HasPrefix(filter, "~")
		for _, set := range strings.Fields(strings.TrimPrefix(filter, "~")) {
			for _, call := range members(set) {
				allowed[call] = !denied
			}
		}
	}
	return allowed
}

// traced matches a system call in strace's output with -f: a process, then the call.
var traced = regexp.MustCompile(`(?m)^\d+ +([a-z0-9_]+)\(`)

// TestUnitCallsKernel runs the daemon from its start over a change and a repair to its end: it makes no system
// call that the unit's filters refuse.
func TestUnitCallsKernel(t *testing.T) {
	for _, program := range []string{"systemd-analyze", "strace"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Logf("%s is not here, so that nothing can be compared", program)
			return
		}
	}
	lab.New(t)
	allowed := allowedCalls(t)
	if len(allowed) < 100 {
		t.Fatalf("the filters let %d calls through, which cannot be", len(allowed))
	}
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "calls")
	for _, name := range []string{"10-node.yaml", "20-web.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), readFile(t, "../../deploy/examples/"+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := lab.Start(t, "strace", "-f", "-qq", "-o", log, lab.Program(t),
		"--manifests", dir, "--hostname-override", "node-a", "--detect-local-mode", "NodeCIDR", "--takeover", "auto",
		"--log-level", "debug")
	p.AwaitLog(t, "kube-nft started")
	// strace keeps signals for itself; it ends when the program does.
	children := string(readFile(t, fmt.Sprintf("/proc/%d/task/%[1]d/children", p.PID())))
	child, err := strconv.Atoi(strings.TrimSpace(children))
	if err != nil {
		t.Fatalf("strace's children are %q", children)
	}
	t.Cleanup(func() { syscall.Kill(child, syscall.SIGKILL) })
	if err := os.WriteFile(filepath.Join(dir, "30-more.yaml"), readFile(t, "../../deploy/examples/30-more.yaml"),
		0o600); err != nil {
		t.Fatal(err)
	}
	p.AwaitLog(t, `shop/reports:http/tcp`)
	lab.Run(t, "", "nft", "flush", "ruleset")
	p.AwaitLog(t, `"repaired our tables"`)
	if err := syscall.Kill(child, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
	calls := make(map[string]bool)
	for _, match := range traced.FindAllStringSubmatch(string(readFile(t, log)), -1) {
		calls[match[1]] = true
	}
	if !calls["sendto"] && !calls["sendmsg"] {
		t.Fatalf("strace saw no message to the kernel, only %v", calls)
	}
	for call := range calls {
		if !allowed[call] {
			t.Errorf("the unit's filters refuse %s, which kube-nft calls", call)
		}
	}
}
