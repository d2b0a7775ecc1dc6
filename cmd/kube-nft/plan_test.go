package main

import (
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
