package migration

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// asInit are the words before a command that runs as in the init container of the overlay kubeadm:
// root, with CAP_NET_ADMIN alone.
var asInit = []string{"setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--"}

// asTenant are the words before a command that a tenant's pod runs.
var asTenant = []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all",
	"--inh-caps=-all", "--no-new-privs", "--"}

// startNamed starts a program that waits, as kube-proxy -f /dev/null -- ARGUMENT. before are the words
// before it.
func startNamed(t *testing.T, argument string, before ...string) *lab.Process {
	t.Helper()
	script := []string{"bash", "-c", `exec -a kube-proxy tail -f /dev/null -- "$0"`, argument}
	p := lab.Start(t, append(before, script...)...)
	p.AwaitLog(t, "cannot open") // there is no such file
	return p
}

// TestMigratePosersKernel: a takeover does not wait for processes that have no more than
// kube-proxy's name, and waits for one that can write its rules.
func TestMigratePosersKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[1], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.program(t)
	startNamed(t, "pod", slices.Concat([]string{"unshare", "--net"}, asTenant)...) // a pod
	startNamed(t, "privileged", "unshare", "--net")                                // a privileged pod
	startNamed(t, "host-network", asTenant...)                                     // a pod in the node's network
	// A user of the node has all capabilities in a user namespace of his own, none of them over our network.
	startNamed(t, "user-namespace", slices.Concat(asTenant, []string{"unshare", "--user", "--map-root-user"})...)
	for _, port := range []string{"10249", "10256"} { // it sees the node's processes, not their files
		lab.Start(t, slices.Concat(asTenant, []string{"socat", "TCP-LISTEN:" + port + ",fork", "PIPE"})...)
		lab.Eventually(t, "a tenant listens", func() bool {
			return strings.Contains(lab.Run(t, "", "ss", "-Hltn"), ":"+port+" ")
		})
	}
	argv := slices.Concat(asInit, []string{m.binary, "migrate"}, m.applyArgs())
	apply := func(want int, text string) {
		t.Helper()
		p := lab.Start(t, append(argv, "--timeout", "1m")...)
		<-p.Exited()
		if p.ExitCode() != want || !strings.Contains(p.Stderr(), text) {
			t.Errorf("exit code %d, want %d and %q:\n%s", p.ExitCode(), want, text, p.Stderr())
		}
	}
	proxy := startNamed(t, "--config=x")
	waiting := lab.Start(t, append(argv, "--timeout", "1m")...)
	waiting.AwaitLog(t, "kube-nft: kube-proxy runs, process ")
	_, log, _ := strings.Cut(waiting.Stderr(), "kube-nft: kube-proxy runs, ")
	if strings.Count(log, "process ") != 1 || !strings.Contains(log, "--config=x") {
		t.Errorf("it waits for others than the only kube-proxy:\n%s", log)
	}
	if left := proxys(m.state.save(t)); left == "" {
		t.Error("kube-proxy's rules went while it was alive")
	}
	proxy.Kill()
	<-waiting.Exited()
	if waiting.ExitCode() != 0 {
		t.Errorf("after kube-proxy's end: exit code %d\n%s", waiting.ExitCode(), waiting.Stderr())
	}
	if left := proxys(m.state.save(t)); left != "" {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
	apply(0, "nothing of kube-proxy's is left")
}

// TestMigrateEscapesKernel: escape sequences and line ends that other programs have put into arguments, names of chains
// and comments do not reach the terminal where migrate plan or apply runs.
func TestMigrateEscapesKernel(t *testing.T) {
	t.Parallel()
	const escapes = "\x1b]0;title\a\x1b[2J\u009b31m\x7f\u202e\nkube-nft: look again: done: forged"
	newMigrationNet(t)
	m := &migration{state: oldStates[1], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.program(t)
	lab.Run(t, "", "iptables-nft", "-t", "nat", "-N", "\x1b[31mred")
	lab.Run(t, "", "iptables-nft", "-t", "nat", "-A", "\x1b[31mred", "-m", "comment", "--comment", "\x1b[5mblink", "-j",
		"KUBE-MARK-MASQ")
	startNamed(t, escapes)
	plan := lab.Run(t, "", append([]string{m.binary, "migrate", "plan"}, m.applyArgs()[1:]...)...)
	document := lab.Run(t, "", append([]string{m.binary, "migrate", "plan", "-o", "json"}, m.applyArgs()[1:]...)...)
	apply := lab.Start(t, slices.Concat([]string{m.binary, "migrate"}, m.applyArgs(), []string{"--timeout", "5s"})...)
	<-apply.Exited()
	for what, text := range map[string]string{"plan": plan, "plan as JSON": document, "apply": apply.Stderr()} {
		if at := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !strconv.IsPrint(r) }); at >= 0 {
			t.Errorf("%s prints %q", what, text[at:min(len(text), at+20)])
		}
		if !strings.Contains(text, `\u001b]0;title`) || strings.Contains(text, "\nkube-nft: look again: done: forged") {
			t.Errorf("%s:\n%s", what, text)
		}
	}
	if !strings.Contains(plan, `\u001b[31mred`) || !json.Valid([]byte(document)) {
		t.Errorf("plan:\n%s", plan)
	}
}
