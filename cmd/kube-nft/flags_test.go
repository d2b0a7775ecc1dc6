package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// commandLine runs one and returns its exit code and output.
func commandLine(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = execute(t.Context(), newRoot(), args, &out, &err)
	return code, out.String(), err.String()
}

// TestSettingsOnTheCommandLine takes command lines of DaemonSets and test harnesses.
func TestSettingsOnTheCommandLine(t *testing.T) {
	for line, want := range map[string][]string{
		"--config=config/testdata/kubeadm.yaml --hostname-override=Node-1": {
			"hostnameOverride: Node-1", "clusterCIDR: 10.244.0.0/16", "kubeconfig: /var/lib/kube-proxy/kubeconfig.conf",
			"minSyncPeriod: 1ms",
		},
		"--kubeconfig /f --hostname-override n --cluster-cidr 10.0.0.0/8 --masquerade-all --nodeport-addresses " +
			"192.168.0.0/16 --min-sync-period 1s": {
			"kubeconfig: /f", "hostnameOverride: \"n\"", "clusterCIDR: 10.0.0.0/8", "masqueradeAll: true", "- 192.168.0.0/16",
			"minSyncPeriod: 1s",
		},
		"--config config/testdata/kubeadm.yaml --cluster_cidr=10.1.0.0/16 --v=2 --proxy-mode=iptables": {
			"clusterCIDR: 10.1.0.0/16", "mode: nftables",
		},
	} {
		code, stdout, stderr := commandLine(t, append(strings.Fields(line), "--show-config")...)
		if inVain := strings.Contains(line, "=iptables"); code != exitOK || (stderr != "") != inVain {
			t.Errorf("%s: exit code %d, %q", line, code, stderr)
		}
		for _, setting := range want {
			if !strings.Contains(stdout, setting+"\n") {
				t.Errorf("%s: no %q in\n%s", line, setting, stdout)
			}
		}
	}
}

// TestNoticesOnTheCommandLine: --show-config names settings without effect.
func TestNoticesOnTheCommandLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	for _, action := range []string{"--show-config", "--write-config-to=" + path} {
		code, _, stderr := commandLine(t, "--ipvs-scheduler=rr", "--config-sync-period=1h", action)
		const want = `"notice":"no effect in kube-nft: --ipvs-scheduler rr, --config-sync-period 1h"`
		if code != exitOK || strings.Count(stderr, want) != 1 {
			t.Errorf("%s: exit code %d, %s", action, code, stderr)
		}
	}
}

// TestVersionFlag is what scripts ask kube-proxy for.
func TestVersionFlag(t *testing.T) {
	_, want, _ := commandLine(t, "version")
	for _, flag := range []string{"--version", "--version=true"} {
		if code, stdout, stderr := commandLine(t, flag, "--cluster-cidr=x"); code != exitOK || stdout != want ||
			stderr != "" {
			t.Errorf("%s: exit code %d, %q, %q; want %q", flag, code, stdout, stderr, want)
		}
	}
}

// TestRawVersion is what tools read that ask each component of Kubernetes in the same way.
func TestRawVersion(t *testing.T) {
	code, stdout, stderr := commandLine(t, "--version=raw", "--cluster-cidr=x")
	if want := fmt.Sprintf("%#v\n", config.Build()); code != exitOK || stdout != want || stderr != "" ||
		!strings.Contains(stdout, `GoVersion:"go`) {
		t.Errorf("exit code %d, %q, %q; want %q", code, stdout, stderr, want)
	}
	if code, _, stderr := commandLine(t, "--version=v1.36.2"); code != exitUsage ||
		!strings.HasPrefix(stderr, "kube-nft: --version v1.36.2: expected true, false or raw") {
		t.Errorf("exit code %d, %q", code, stderr)
	}
}

// TestVersionDocument is what programs read of the version.
func TestVersionDocument(t *testing.T) {
	code, stdout, stderr := commandLine(t, "version", "-o", "json")
	var document struct {
		APIVersion, Kind, GoVersion, Platform string
		Modules                               map[string]string
	}
	if err := json.Unmarshal([]byte(stdout), &document); code != exitOK || err != nil {
		t.Fatalf("exit code %d, %v: %q, %q", code, err, stdout, stderr)
	}
	if document.APIVersion != config.APIVersion || document.Kind != "Version" || document.GoVersion != runtime.Version() ||
		document.Platform == "" {
		t.Errorf("it says %s", stdout)
	}
}

// TestCompletionOfValues asks for words as shells do.
func TestCompletionOfValues(t *testing.T) {
	for line, want := range map[string]string{
		"--takeover":                 "auto force never",
		"--detect-local-mode":        "ClusterCIDR NodeCIDR BridgeInterface InterfaceNamePrefix",
		"diff --log-format":          "auto json console",
		"version --output":           "text json yaml",
		"migrate plan -o":            "text json yaml",
		"get services --family":      "4 6",
		"explain 10.0.0.1 --from":    "pod node outside",
		"migrate apply --log-level":  "debug info warn error",
		"explain 10.0.0.1 10.0.0.2 ": "",
	} {
		args := append([]string{"__complete"}, strings.Fields(line)...)
		code, stdout, _ := commandLine(t, append(args, "")...)
		words, _, _ := strings.Cut(stdout, ":4\n")
		if code != exitOK || strings.Join(strings.Fields(words), " ") != want {
			t.Errorf("%s: exit code %d, %q", line, code, stdout)
		}
	}
}

// TestWriteConfig: what is written is what is shown, and starts the same settings.
func TestWriteConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.conf")
	if code, _, stderr := commandLine(t, "--cluster-cidr", "10.0.0.0/8", "--write-config-to", path); code != exitOK {
		t.Fatalf("exit code %d, %q", code, stderr)
	}
	written, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"--cluster-cidr", "10.0.0.0/8"}, {"--config", path}} {
		if _, shown, _ := commandLine(t, append(args, "--show-config")...); shown != string(written) {
			t.Errorf("%s shows\n%s\nwritten was\n%s", args, shown, written)
		}
	}
}

func TestExitCodes(t *testing.T) {
	directory := t.TempDir()
	wrong := filepath.Join(directory, "wrong.yaml")
	if err := os.WriteFile(wrong,
		[]byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\noomScoreAdj: low\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--cluster-cidr", "x"}, exitUsage,
			"kube-nft: --cluster-cidr x: expected a CIDR such as 10.244.0.0/16, or one of each family with a comma\n"},
		{[]string{"diff", "--masquerade-bit", "32"}, exitUsage,
			"kube-nft: --masquerade-bit 32: expected a bit of the packet mark, 0 to 31\n"},
		{[]string{"--no-such-flag"}, exitUsage, "kube-nft: unknown flag --no-such-flag; see kube-nft --help\n"},
		{[]string{"-x"}, exitUsage, "kube-nft: unknown shorthand flag: 'x' in -x; see kube-nft --help\n"},
		{[]string{"get", "services", "--no-such-flag"}, exitUsage,
			"kube-nft: unknown flag --no-such-flag; see kube-nft get services --help\n"},
		{[]string{"--hostname-overide=n"}, exitUsage,
			"kube-nft: unknown flag --hostname-overide, did you mean --hostname-override?; see kube-nft --help\n"},
		{[]string{"get", "services", "--namspace", "shop"}, exitUsage, "kube-nft: unknown flag --namspace, did you mean " +
			"--namespace?; see kube-nft get services --help\n"},
		// --mode is a flag of the daemon only.
		{[]string{"status", "--nope"}, exitUsage, "kube-nft: unknown flag --nope; see kube-nft status --help\n"},
		{[]string{"migrate"}, exitUsage,
			"kube-nft: migrate: expected plan, apply or rollback; see kube-nft migrate --help\n"},
		{[]string{"migrate", "aply"}, exitUsage,
			"kube-nft: unknown command \"aply\", did you mean apply?; see kube-nft migrate --help\n"},
		{[]string{"help", "statuss"}, exitUsage,
			"kube-nft: unknown command \"statuss\", did you mean status?; see kube-nft --help\n"},
		{[]string{"help", "get", "pods"}, exitUsage,
			"kube-nft: unknown command \"pods\"; see kube-nft --help\n"},
		{[]string{"version", "-o", "xml"}, exitUsage,
			"kube-nft: --output xml: expected text, json or yaml; see kube-nft version --help\n"},
		{[]string{"--dry-run"}, exitUsage, "kube-nft: not running in a Kubernetes cluster: pass --kubeconfig FILE, or " +
			"--manifests PATH to run without an API server\n"},
		{[]string{"migrate", "plan", "now"}, exitUsage,
			"kube-nft: unknown command \"now\"; see kube-nft migrate plan --help\n"},
		{[]string{"--config", wrong}, exitUsage,
			"kube-nft: " + wrong + ": oomScoreAdj low: expected a whole number from -2147483648 to 2147483647\n"},
		{[]string{"--config", directory}, exitFailed,
			"kube-nft: --config " + directory + ": is a directory; expected a file of kind KubeProxyConfiguration\n"},
		{[]string{"diff", "--config", directory}, exitTrouble,
			"kube-nft: --config " + directory + ": is a directory; expected a file of kind KubeProxyConfiguration\n"},
		{[]string{"explain", "10.0.0.1", "10.0.0.2:80/tcp", "--config", directory}, exitTrouble,
			"kube-nft: --config " + directory + ": is a directory; expected a file of kind KubeProxyConfiguration\n"},
		{[]string{"--write-config-to", directory}, exitFailed,
			"kube-nft: --write-config-to: open " + directory + ": is a directory\n"},
	} {
		if code, _, stderr := commandLine(t, tt.args...); code != tt.code || stderr != tt.want {
			t.Errorf("%s: exit code %d, %q; want %d, %q", tt.args, code, stderr, tt.code, tt.want)
		}
	}
}

// TestUnknownFields: all actions that read the file say which of its fields do not exist. They are processes, because
// the goroutines of a daemon in this one would run outside the test's network namespace.
func TestUnknownFields(t *testing.T) {
	program := lab.Program(t)
	lab.New(t)
	path := filepath.Join(t.TempDir(), "config.conf")
	if err := os.WriteFile(path, []byte("apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"+
		"hostnameOveride: node-a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"--dry-run", "--show-config", "--init-only", "diff", "explain 10.0.0.1 10.96.0.80:80/tcp --from-source",
		"migrate plan", "migrate apply",
	} {
		command := exec.Command(program, append(strings.Fields(line), "--config", path, "--manifests",
			"testdata/inspection/cluster.yaml", "--hostname-override", "node-1")...)
		output, _ := command.CombinedOutput() // some exit with 1, as there are differences
		if want := path + ": hostnameOveride: ignored, there is no such field"; !strings.Contains(string(output), want) {
			t.Errorf("%s: %q does not say %q", line, output, want)
		}
	}
}

// TestHelpHidesFlagsWithoutEffect: kube-nft accepts hidden flags, but --help does not list them.
func TestHelpHidesFlagsWithoutEffect(t *testing.T) {
	_, help, _ := commandLine(t, "--help")
	for _, flag := range []string{"--ipvs-scheduler", "--proxy-mode", "--iptables-sync-period", "--logtostderr"} {
		if strings.Contains(help, flag+" ") {
			t.Errorf("--help offers %s", flag)
		}
	}
}
