package main

import (
	"path/filepath"
	"testing"
)

// TestSourceIsCheckedFirst: the daemon says one line and ends before it writes sysctls or opens
// ports, each of which it would log.
func TestSourceIsCheckedFirst(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for flag, want := range map[string]string{
		"--manifests":  "kube-nft: manifests " + missing + ": no such file or directory; --manifests takes a file or directory of YAML or JSON\n",
		"--kubeconfig": "kube-nft: kubeconfig " + missing + ": no such file or directory; pass --kubeconfig FILE, or --manifests PATH to run without an API server\n",
	} {
		code, stdout, stderr := commandLine(t, flag, missing)
		if code != exitFailed || stdout != "" || stderr != want {
			t.Errorf("%s: exit %d, %q on stdout, on stderr\n%swant\n%s", flag, code, stdout, stderr, want)
		}
	}
}
