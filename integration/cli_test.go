package integration

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// examples are the manifests that come with kube-nft, and the name of their node.
var examples = []string{"--manifests", "../deploy/examples", "--hostname-override", scenarioNode}

// A commandRun is a command line of kube-nft that has ended.
type commandRun struct {
	code           int
	stdout, stderr string
}

// runProxy runs kube-nft to its end in the namespace of the calling test.
func runProxy(t testing.TB, args ...string) commandRun {
	t.Helper()
	return runCommand(t, exec.Command(buildProxy(t), args...))
}

// runUnprivileged is runProxy without any privilege: in a user namespace of its own, in
// which no user is known, the process has no capability in any network namespace.
func runUnprivileged(t testing.TB, args ...string) commandRun {
	t.Helper()
	cmd := exec.Command(buildProxy(t), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}
	return runCommand(t, cmd)
}

func runCommand(t testing.TB, cmd *exec.Cmd) commandRun {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if failure := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failure) {
		t.Fatal(err)
	}
	return commandRun{code: cmd.ProcessState.ExitCode(), stdout: stdout.String(), stderr: stderr.String()}
}

// TestFailures holds what goes wrong at the start to one line on standard error that says
// what to do, and to its exit code.
func TestFailures(t *testing.T) {
	t.Parallel()
	netns.New(t)
	dir := newDirectory(t)
	dir.write(t, "kubeconfig", "clusters: [\n")
	kubeconfig := filepath.Join(string(dir), "kubeconfig")
	for _, tt := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{"unknown flag", "unknown flag: --nonsense; kube-nft --help lists the flags", 2, []string{"--nonsense"}},
		{"unknown command", `unknown command "start"; kube-nft --help lists the flags`, 2, []string{"start"}},
		{"contradiction", "--manifests ../deploy/examples: it replaces the API server, so it cannot be combined with a kubeconfig or a master", 2, append(examples, "--kubeconfig", "x")},
		{"value out of range", "--masquerade-bit 32: expected a bit of the packet mark, 0 to 31", 2, append(examples, "--masquerade-bit=32")},
		{"no kubeconfig", "kubeconfig /nowhere: no such file or directory; pass --kubeconfig FILE, or --manifests PATH to run without an API server", 1, []string{"--kubeconfig", "/nowhere"}},
		{"bad kubeconfig", "kubeconfig " + kubeconfig + ": yaml: line 1: did not find expected node content; pass --kubeconfig FILE, or --manifests PATH to run without an API server", 1, []string{"--kubeconfig", kubeconfig}},
		{"no source", "not running in a Kubernetes cluster: pass --kubeconfig FILE, or --manifests PATH to run without an API server", 1, nil},
		{"no manifests", "manifests /nowhere: no such file or directory", 1, []string{"--manifests", "/nowhere", "--dry-run"}},
	} {
		want := commandRun{code: tt.code, stderr: "kube-nft: " + tt.want + "\n"}
		if diff := cmp.Diff(want, runProxy(t, tt.args...), cmp.AllowUnexported(commandRun{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if ruleset := netns.Run(t, "", "nft", "list", "ruleset"); ruleset != "" {
		t.Errorf("a start that failed left behind:\n%s", ruleset)
	}
}

// TestWithoutPrivilege starts kube-nft without CAP_NET_ADMIN.
func TestWithoutPrivilege(t *testing.T) {
	t.Parallel()
	netns.New(t)
	want := commandRun{code: 1, stderr: "kube-nft: probe nf_tables: commit to nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was changed\n"}
	if diff := cmp.Diff(want, runUnprivileged(t, examples...), cmp.AllowUnexported(commandRun{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = commandRun{code: 2, stderr: "kube-nft: read nf_tables: operation not permitted (needs CAP_NET_ADMIN)\n"}
	if diff := cmp.Diff(want, runUnprivileged(t, append([]string{"diff"}, examples...)...), cmp.AllowUnexported(commandRun{})); diff != "" {
		t.Errorf("diff (-want +got):\n%s", diff)
	}
	want = commandRun{code: 1, stderr: "kube-nft: read the generation of nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was removed\n"}
	if diff := cmp.Diff(want, runUnprivileged(t, "cleanup"), cmp.AllowUnexported(commandRun{})); diff != "" {
		t.Errorf("cleanup (-want +got):\n%s", diff)
	}
}

// TestDryRun holds kube-nft --dry-run to what it promises: the ruleset alone on standard
// output, the same bytes every time, no privilege, no change of the kernel.
func TestDryRun(t *testing.T) {
	t.Parallel()
	netns.New(t)
	k := openKernel(t)
	before, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dry := append([]string{"--dry-run"}, examples...)
	first := runProxy(t, dry...)
	if first.code != 0 || first.stderr != "" || !strings.HasPrefix(first.stdout, "table ip kube-nft {\n") {
		t.Fatalf("exit code %d, standard error %q, standard output:\n%s", first.code, first.stderr, first.stdout)
	}
	for range 3 {
		if again := runUnprivileged(t, dry...); again != first {
			t.Errorf("without privilege, exit code %d, %s (-first +again):\n%s", again.code, again.stderr, cmp.Diff(first.stdout, again.stdout))
		}
	}
	if after, err := k.Generation(t.Context()); err != nil || after != before {
		t.Errorf("the generation of nf_tables went from %d to %d, %v", before, after, err)
	}
}

// TestDryRunProgramsTheSame loads the dry run with nft, and then starts kube-nft on the same
// objects: it has nothing to write but the Service that appears afterwards.
func TestDryRunProgramsTheSame(t *testing.T) {
	t.Parallel()
	netns.New(t)
	objects := newDirectory(t)
	if err := os.CopyFS(string(objects), os.DirFS("../deploy/examples")); err != nil {
		t.Fatal(err)
	}
	dry := runProxy(t, "--dry-run", "--manifests", string(objects), "--hostname-override", scenarioNode)
	netns.Run(t, dry.stdout, "nft", "-f", "-")
	heard := listenToNotices(t)
	objects.start(t)
	objects.write(t, "99-more.yaml", webObjects("more", netip.MustParseAddr("10.96.0.200"), addressesFrom(firstPod, 1)))
	want := map[string]int{"add element ip services": 1, "add element ip endpoints": 1, "add element ip cluster-ips": 1}
	if diff := cmp.Diff(want, summary(heard.next(t, about("shop/more:http")))); diff != "" {
		t.Errorf("written after a start on the dry run (-want +got):\n%s", diff)
	}
}

// TestDiff follows kube-nft diff from an empty kernel to one that holds everything: what it
// prints is what nft needs to get there.
func TestDiff(t *testing.T) {
	t.Parallel()
	netns.New(t)
	diff := append([]string{"diff"}, examples...)
	first := runProxy(t, diff...)
	if first.code != 1 || first.stderr != "" || !strings.HasPrefix(first.stdout, "add table ip kube-nft ") {
		t.Fatalf("empty kernel: exit code %d, standard error %q, standard output:\n%s", first.code, first.stderr, first.stdout)
	}
	netns.Run(t, first.stdout, "nft", "-f", "-")
	if same := runProxy(t, diff...); same != (commandRun{}) {
		t.Errorf("nothing differs, but: %+v", same)
	}
	netns.Run(t, "", "nft", "add", "element", "ip", "kube-nft", "cluster-ips", "{ 10.96.0.77 }")
	want := commandRun{code: 1, stdout: "delete element ip kube-nft cluster-ips { 10.96.0.77 }\n"}
	if got := runProxy(t, diff...); got != want {
		t.Errorf("a foreign element: %+v, want %+v", got, want)
	}
	missing := runProxy(t, "diff", "--manifests", "/nowhere")
	if want := (commandRun{code: 2, stderr: "kube-nft: manifests /nowhere: no such file or directory\n"}); missing != want {
		t.Errorf("no manifests: %+v, want %+v", missing, want)
	}
}

// TestBrokenManifest breaks a file while kube-nft runs: what it said last stays in force,
// the log says where the mistake is, and the next good version counts again.
func TestBrokenManifest(t *testing.T) {
	t.Parallel()
	netns.New(t)
	heard, k, objects := listenToNotices(t), openKernel(t), newDirectory(t)
	objects.write(t, "web.yaml", webObjects("web", webIP, addressesFrom(firstPod, 3)))
	p := objects.start(t)
	heard.next(t, about("shop/web:http"))
	before := read(t, k)
	objects.write(t, "web.yaml", webObjects("web", webIP, nil)+"---\nkind: [\n")
	lines := strings.Count(webObjects("web", webIP, nil), "\n") + 2
	awaitLog(t, p, filepath.Join(string(objects), "web.yaml")+":"+strconv.Itoa(lines)+": did not find expected node content")
	checkHeld(t, k, "with a broken file", before)
	objects.write(t, "web.yaml", webObjects("web", webIP, addressesFrom(firstPod, 4)))
	if got := summary(heard.next(t, anyNotice)); got["add element ip endpoints"] != 1 {
		t.Errorf("after the file was mended: %v", got)
	}
}

// TestWithoutIPv6 runs kube-nft where IPv6 is switched off.
func TestWithoutIPv6(t *testing.T) {
	t.Parallel()
	netns.New(t)
	netns.Sysctl(t, "net.ipv6.conf.all.disable_ipv6", "1")
	netns.Sysctl(t, "net.ipv6.conf.default.disable_ipv6", "1")
	heard, objects := listenToNotices(t), newDirectory(t)
	objects.write(t, "web.yaml", webObjects("web", webIP, addressesFrom(firstPod, 3)))
	p := objects.start(t, "--nodeport-addresses=0.0.0.0/0")
	heard.next(t, about("shop/web:http"))
	stop(t, p)
}

// awaitLog returns when kube-nft has written a text to its standard error.
func awaitLog(t testing.TB, p *netns.Process, text string) {
	t.Helper()
	for deadline := time.Now().Add(syncTimeout); !strings.Contains(p.Stderr(), text); {
		if time.Now().After(deadline) {
			t.Fatalf("kube-nft did not write %q but:\n%s", text, p.Stderr())
		}
		time.Sleep(probeInterval)
	}
}
