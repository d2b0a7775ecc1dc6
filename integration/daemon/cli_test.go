package daemon

import (
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// examples are the manifests that come with kube-nft, and the name of their node.
var examples = []string{"--manifests", "../../deploy/examples", "--hostname-override", lab.NodeName}

// runProxy runs kube-nft to its end in the namespace of the calling test.
func runProxy(t testing.TB, args ...string) lab.Output {
	t.Helper()
	return execute(t, append([]string{lab.Program(t)}, args...)...)
}

// runUnprivileged is runProxy without any privilege: in a user namespace of its own, in
// which no user is known, the process has no capability in any network namespace.
func runUnprivileged(t testing.TB, args ...string) lab.Output {
	t.Helper()
	return execute(t, append([]string{"unshare", "--user", lab.Program(t)}, args...)...)
}

func execute(t testing.TB, argv ...string) lab.Output {
	t.Helper()
	out, err := lab.Execute(argv...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFailures holds what goes wrong at the start to one line on standard error that says
// what to do, and to its exit code.
func TestFailures(t *testing.T) {
	t.Parallel()
	lab.New(t)
	dir := lab.NewDirectory(t)
	dir.Write(t, "kubeconfig", "clusters: [\n")
	kubeconfig := filepath.Join(string(dir), "kubeconfig")
	for _, tt := range []struct {
		name, want string
		code       int
		args       []string
	}{
		{"unknown flag", "unknown flag --nonsense; see kube-nft --help", 2, []string{"--nonsense"}},
		{"unknown command", `unknown command "start"; see kube-nft --help`, 2, []string{"start"}},
		{
			"contradiction",
			"--manifests ../../deploy/examples: it replaces the API server, so it cannot be combined with a kubeconfig or a " +
				"master", 2, append(examples, "--kubeconfig", "x"),
		},
		{"value out of range", "--masquerade-bit 32: expected a bit of the packet mark, 0 to 31", 2,
			append(examples, "--masquerade-bit=32")},
		{
			"no kubeconfig",
			"kubeconfig /nowhere: no such file or directory; pass --kubeconfig FILE, or --manifests PATH to run without an " +
				"API server", 1, []string{"--kubeconfig", "/nowhere"},
		},
		{"bad kubeconfig",
			"kubeconfig " + kubeconfig +
				": yaml: line 1: did not find expected node content; pass --kubeconfig FILE, or --manifests PATH to run without " +
				"an API server", 1, []string{"--kubeconfig", kubeconfig}},
		{
			"no source",
			"not running in a Kubernetes cluster: pass --kubeconfig FILE, or --manifests PATH to run without an API server", 2,
			nil,
		},
		{"no manifests", "manifests /nowhere: no such file or directory", 1,
			[]string{"--manifests", "/nowhere", "--dry-run"}},
	} {
		want := lab.Output{Code: tt.code, Stderr: "kube-nft: " + tt.want + "\n"}
		if diff := cmp.Diff(want, runProxy(t, tt.args...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	if ruleset := lab.Run(t, "", "nft", "list", "ruleset"); ruleset != "" {
		t.Errorf("a start that failed left behind:\n%s", ruleset)
	}
}

// TestWithoutPrivilege starts kube-nft without CAP_NET_ADMIN.
func TestWithoutPrivilege(t *testing.T) {
	t.Parallel()
	lab.New(t)
	want := lab.Output{Code: 1,
		Stderr: "kube-nft: probe nf_tables: commit to nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing " +
			"was changed\n"}
	got := runUnprivileged(t, examples...)
	line, rest, _ := strings.Cut(got.Stderr, "\n") // the log begins with what starts
	if !strings.Contains(line, `"msg":"kube-nft starts"`) {
		t.Errorf("the log begins with %s", line)
	}
	got.Stderr = rest
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	want = lab.Output{Code: 2, Stderr: "kube-nft: read nf_tables: operation not permitted (needs CAP_NET_ADMIN)\n"}
	if diff := cmp.Diff(want, runUnprivileged(t, append([]string{"diff"}, examples...)...)); diff != "" {
		t.Errorf("diff (-want +got):\n%s", diff)
	}
	want = lab.Output{Code: 1,
		Stderr: "kube-nft: read the generation of nf_tables: operation not permitted (needs CAP_NET_ADMIN); nothing was " +
			"removed\n"}
	if diff := cmp.Diff(want, runUnprivileged(t, "cleanup")); diff != "" {
		t.Errorf("cleanup (-want +got):\n%s", diff)
	}
}

// TestDryRun holds kube-nft --dry-run to what it promises: the ruleset alone on standard
// output, the same bytes every time, no privilege, no change of the kernel.
func TestDryRun(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	before, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dry := append([]string{"--dry-run"}, examples...)
	first := runProxy(t, dry...)
	if first.Code != 0 || first.Stderr != "" || !strings.HasPrefix(first.Stdout, "table ip kube-nft {\n") {
		t.Fatalf("exit code %d, standard error %q, standard output:\n%s", first.Code, first.Stderr, first.Stdout)
	}
	for range 3 {
		if again := runUnprivileged(t, dry...); again != first {
			t.Errorf("without privilege, exit code %d, %s (-first +again):\n%s", again.Code, again.Stderr,
				cmp.Diff(first.Stdout, again.Stdout))
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
	lab.New(t)
	objects := lab.NewDirectory(t)
	if err := os.CopyFS(string(objects), os.DirFS("../../deploy/examples")); err != nil {
		t.Fatal(err)
	}
	dry := runProxy(t, "--dry-run", "--manifests", string(objects), "--hostname-override", lab.NodeName)
	lab.Run(t, dry.Stdout, "nft", "-f", "-")
	heard := lab.ListenToNotices(t)
	objects.Start(t)
	objects.Write(t, "99-more.yaml", lab.Web("more", netip.MustParseAddr("10.96.0.200"), lab.Addresses(webPods, 1)))
	want := map[string]int{
		"add element ip services": 1, "add element ip endpoints-tcp": 1, "add element ip cluster-ips": 1,
	}
	if diff := cmp.Diff(want, lab.Summary(heard.Next(t, lab.About("shop/more:http")))); diff != "" {
		t.Errorf("written after a start on the dry run (-want +got):\n%s", diff)
	}
}

// TestDiff follows kube-nft diff from an empty kernel to one that holds everything: what it
// prints is what nft needs to get there.
func TestDiff(t *testing.T) {
	t.Parallel()
	lab.New(t)
	diff := append([]string{"diff"}, examples...)
	first := runProxy(t, diff...)
	if first.Code != 1 || first.Stderr != "" || !strings.HasPrefix(first.Stdout, "add table ip kube-nft ") {
		t.Fatalf("empty kernel: exit code %d, standard error %q, standard output:\n%s", first.Code, first.Stderr,
			first.Stdout)
	}
	lab.Run(t, first.Stdout, "nft", "-f", "-")
	if same := runProxy(t, diff...); same != (lab.Output{}) {
		t.Errorf("nothing differs, but: %+v", same)
	}
	lab.Run(t, "", "nft", "add", "element", "ip", "kube-nft", "cluster-ips", "{ 10.96.0.77 }")
	want := lab.Output{Code: 1, Stdout: "delete element ip kube-nft cluster-ips { 10.96.0.77 }\n"}
	if got := runProxy(t, diff...); got != want {
		t.Errorf("a foreign element: %+v, want %+v", got, want)
	}
	missing := runProxy(t, "diff", "--manifests", "/nowhere")
	if want := (lab.Output{Code: 2,
		Stderr: "kube-nft: manifests /nowhere: no such file or directory\n"}); missing != want {
		t.Errorf("no manifests: %+v, want %+v", missing, want)
	}
}

// TestDiffWithNodePortCIDR: node ports are served at addresses of interfaces, also if the Node does not have them.
func TestDiffWithNodePortCIDR(t *testing.T) {
	t.Parallel()
	lab.New(t)
	if err := errors.Join(lab.AddSink("eth0"), lab.AddAddress("eth0",
		netip.MustParsePrefix("198.51.100.7/24"))); err != nil {
		t.Fatal(err)
	}
	k := lab.Open(t, kernel.Open)
	lab.Start(t, append([]string{lab.Program(t), "--nodeport-addresses=198.51.100.0/24", "--takeover=never"},
		examples...)...)
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, netip.MustParseAddr("10.96.0.80")) })
	if got := runProxy(t, "diff"); got != (lab.Output{}) {
		t.Errorf("diff: %+v", got)
	}
}

// TestBrokenManifest breaks a file while kube-nft runs: what it said last stays in force,
// the log says where the mistake is, and the next good version counts again.
func TestBrokenManifest(t *testing.T) {
	t.Parallel()
	lab.New(t)
	heard, k, objects := lab.ListenToNotices(t), lab.Open(t, kernel.Open), lab.NewDirectory(t)
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
	p := objects.Start(t)
	heard.Next(t, lab.About("shop/web:http"))
	before := read(t, k)
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, nil)+"---\nkind: [\n")
	lines := strings.Count(lab.Web("web", firstWeb, nil), "\n") + 2
	p.AwaitLog(t, filepath.Join(string(objects), "web.yaml")+":"+strconv.Itoa(lines)+
		": did not find expected node content")
	if repair := change.Diff(read(t, k), before); !repair.Empty() {
		t.Errorf("with a broken file %d operations are needed to bring back what was there", len(repair.Ops))
	}
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 4)))
	if got := lab.Summary(heard.Next(t, lab.Any)); got["add element ip endpoints-tcp"] != 1 {
		t.Errorf("after the file was mended: %v", got)
	}
}

// TestWithoutIPv6 runs kube-nft where IPv6 is switched off.
func TestWithoutIPv6(t *testing.T) {
	t.Parallel()
	lab.New(t)
	lab.Sysctl(t, "net.ipv6.conf.all.disable_ipv6", "1")
	lab.Sysctl(t, "net.ipv6.conf.default.disable_ipv6", "1")
	heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
	p := objects.Start(t, "--nodeport-addresses=0.0.0.0/0")
	heard.Next(t, lab.About("shop/web:http"))
	p.Stop(t)
}

// TestInitOnly sets the sysctls that a ConfigMap asks for, and programs nothing.
func TestInitOnly(t *testing.T) {
	t.Parallel()
	lab.New(t)
	const timeout = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"
	config := filepath.Join(t.TempDir(), "config.conf")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {maxPerCore: 0, " +
		"tcpEstablishedTimeout: 1h}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := runProxy(t, "--init-only", "--config", config); got.Code != 0 {
		t.Fatalf("exit code %d: %s", got.Code, got.Stderr)
	}
	if got := lab.Run(t, "", "cat", timeout); got != "3600\n" {
		t.Errorf("%s is %s", timeout, got)
	}
	if ruleset := lab.Run(t, "", "nft", "list", "ruleset"); ruleset != "" {
		t.Errorf("left behind:\n%s", ruleset)
	}
}

// TestSettingsOfTheDaemon: commands without a flag go by the settings of the kube-nft that runs.
func TestSettingsOfTheDaemon(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	daemon := lab.Start(t, append([]string{lab.Program(t), "--masquerade-all",
		"--cluster-cidr=10.244.0.0/16,fd00:10:244::/64", "--metrics-bind-address=127.0.0.1:10999", "--takeover=never"},
		examples...)...)
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, netip.MustParseAddr("10.96.0.80")) })
	if got := runProxy(t, "diff"); got != (lab.Output{}) {
		t.Errorf("diff: %+v", got)
	}
	if got := runProxy(t, "diff", "--masquerade-all=false"); got.Code != 1 ||
		!strings.Contains(got.Stdout, "10.244.0.0/16") {
		t.Errorf("diff with another setting: %+v", got)
	}
	if got := runProxy(t, "explain", "--from-source", "--from-kernel", "192.168.0.9",
		"10.96.0.80:80/tcp"); got.Code != 0 || !strings.Contains(got.Stdout, "of shop/web:http, masqueraded") {
		t.Errorf("explain: %+v", got)
	}
	status := runProxy(t, "status")
	for _, want := range []string{"\n  version           ", "\n  up                ", "--masquerade-all true\n",
		"--metrics-bind-address 127.0.0.1:10999\n", "\nSyncs  "} {
		if status.Code != 0 || !strings.Contains(status.Stdout, want) {
			t.Errorf("status: no %q in %+v", want, status)
		}
	}
	daemon.Stop(t)
	if got := runProxy(t, "diff", examples[0], examples[1], examples[2], examples[3]); got.Code != 1 {
		t.Errorf("diff without the daemon: %+v", got)
	}
}

// TestExplainThisNode: the name of this node stands for the address at which it serves node ports, also if the kernel
// lists that of a bridge of pods first.
func TestExplainThisNode(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	for _, link := range [][2]string{{"pods", "10.244.0.1/24"}, {"uplink", "192.168.0.2/24"}} {
		lab.Run(t, "", "ip", "link", "add", link[0], "type", "bridge")
		lab.Run(t, "", "ip", "address", "add", link[1], "dev", link[0])
		lab.Run(t, "", "ip", "link", "set", link[0], "up")
	}
	lab.Start(t, append([]string{lab.Program(t), "--takeover=never"}, examples...)...)
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, netip.MustParseAddr("10.96.0.80")) })
	check := func(source, destination, want string) {
		t.Helper()
		if got := runProxy(t, "explain", source, destination); got.Code != 0 || !strings.Contains(got.Stdout, want) {
			t.Errorf("explain %s %s: no %q in %+v", source, destination, want, got)
		}
	}
	check("192.168.0.9", lab.NodeName+":30080/tcp", "of shop/web:http")
	check(lab.NodeName, "10.96.0.80:80/tcp", "192.168.0.2 -> ")
}

// TestServicesOverTheQuota: commands name a Service that the quota of its namespace leaves out.
func TestServicesOverTheQuota(t *testing.T) {
	t.Parallel()
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	lab.Start(t, append([]string{lab.Program(t), "--namespace-quota=100", "--takeover=never"}, examples...)...)
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, netip.MustParseAddr("10.96.0.90")) })
	const want = "Service shop/web: the Service asks for 46 elements, but older Services of its namespace " +
		"use 83 of the 100"
	check := func(code int, args ...string) {
		t.Helper()
		got := runProxy(t, args...)
		text := strings.Join(strings.Fields(got.Stdout+got.Stderr), " ")
		if got.Code != code || !strings.Contains(text, want) {
			t.Errorf("%v: exit code %d, want %d\n%s%s", args, got.Code, code, got.Stdout, got.Stderr)
		}
	}
	check(0, "status")
	check(0, "get", "services")
	check(1, "get", "endpoints", "shop/web")
	check(0, "explain", "10.244.0.9", "10.96.0.80:80/tcp")
	if got := runProxy(t, "get", "services", "shop/game"); got.Code != 0 || got.Stderr != "" {
		t.Errorf("get of another Service: exit code %d\n%s", got.Code, got.Stderr)
	}
}

// TestStatusIgnoresOtherPrograms: a program that answers health checks as kube-proxy does, at the port of ours,
// is no daemon to status.
func TestStatusIgnoresOtherPrograms(t *testing.T) {
	t.Parallel()
	lab.New(t)
	listener, err := net.Listen("tcp", "127.0.0.1:10256")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w,
			`{"lastUpdated":"2026-01-02T03:04:05Z","currentTime":"2026-01-02T03:04:05Z","healthy":true,"nodeEligible":true}`)
	}))
	const want = "Daemon              not reached: no kube-nft programs this network namespace\n"
	if got := runProxy(t, "status"); got.Code != 1 || !strings.Contains(got.Stdout, want) {
		t.Errorf("exit code %d\n%s", got.Code, got.Stdout)
	}
}

// TestStatusExitCode: a script learns from the exit code whether the daemon works, and whether a
// Service is programmed.
func TestStatusExitCode(t *testing.T) {
	t.Parallel()
	_, _, daemon := startWeb(t)
	check := func(code int, args ...string) {
		t.Helper()
		if got := runProxy(t, args...); got.Code != code {
			t.Errorf("%v: exit code %d, want %d\n%s%s", args, got.Code, code, got.Stdout, got.Stderr)
		}
	}
	lab.Eventually(t, "a healthy daemon", func() bool { return runProxy(t, "status").Code == 0 })
	check(0, "get", "services", "shop/web")
	check(1, "get", "services", "shop/none")
	if got := runUnprivileged(t, "status"); got.Code != 2 {
		t.Errorf("status without privilege: exit code %d\n%s", got.Code, got.Stderr)
	}
	daemon.Stop(t)
	check(1, "status")
	check(0, "get", "services", "shop/web") // rules outlive the daemon
	check(2, "get", "services", "shop/web", "-o", "xml")
}
