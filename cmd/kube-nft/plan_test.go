package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestPlanExitCodes: 0 if nothing stands in the way, 1 if something does, 2 if the plan could not look.
// The last line of the plan sums it up.
func TestPlanExitCodes(t *testing.T) {
	lab.New(t)
	dir := t.TempDir()
	for _, tt := range []struct {
		name, rules string
		args        []string
		code        int
		last        string
	}{
		{"a clean node", "", []string{"--manifests", dir}, exitOK,
			"apply would bring our tables up to date; nothing of kube-proxy's is left"},
		{"no source", "", []string{"--kubeconfig", filepath.Join(dir, "none")}, exitTrouble,
			"1 thing could not be looked at, "},
		{"an empty source", "add table ip kube-proxy\n", []string{"--manifests", dir}, exitFailed,
			"1 block: apply would refuse and change nothing"},
	} {
		lab.Run(t, tt.rules, "nft", "-f", "-")
		code, stdout, stderr := kubeNFT(t, append([]string{"migrate", "plan", "--hostname-override", "node-a"},
			tt.args...)...)
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if last := lines[len(lines)-1]; code != tt.code || !strings.Contains(last, tt.last) {
			t.Errorf("%s: exit code %d, last line %q, want %d and %q\n%s", tt.name, code, last, tt.code, tt.last, stderr)
		}
	}
}

// TestUnknownFieldIsTold: commands that read a configuration file warn of a field that does not exist, as the daemon
// does.
func TestUnknownFieldIsTold(t *testing.T) {
	lab.New(t)
	file := filepath.Join(t.TempDir(), "config")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.0.0.0/8\n" +
		"nonsense: 1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{
		"--dry-run", "diff", "migrate plan", "migrate apply", "explain node 192.0.2.1:80/tcp",
	} {
		_, _, stderr := kubeNFT(t, append(strings.Fields(command), "--config", file, "--manifests", t.TempDir())...)
		if !strings.Contains(stderr, "nonsense: ignored, there is no such field") {
			t.Errorf("%s: %s", command, stderr)
		}
	}
}
