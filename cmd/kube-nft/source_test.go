package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSourceIsCheckedFirst: the daemon says one line and ends before it writes sysctls or opens
// ports, each of which it would log.
func TestSourceIsCheckedFirst(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for flag, want := range map[string]string{
		"--manifests": "kube-nft: manifests " + missing +
			": no such file or directory; --manifests takes a file or directory of YAML or JSON\n",
		"--kubeconfig": "kube-nft: kubeconfig " + missing +
			": no such file or directory; pass --kubeconfig FILE, or --manifests PATH to run without an API server\n",
	} {
		code, stdout, stderr := commandLine(t, flag, missing)
		if code != exitFailed || stdout != "" || stderr != want {
			t.Errorf("%s: exit %d, %q on stdout, on stderr\n%swant\n%s", flag, code, stdout, stderr, want)
		}
	}
}

// TestServerUnreachable: commands that read once name the server and where it is set.
func TestServerUnreachable(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := "{clusters: [{name: c, cluster: {server: \"" + server.URL +
		"\"}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}"
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for setting, args := range map[string][]string{
		"--master":                 {"--master", server.URL},
		"kubeconfig " + kubeconfig: {"--kubeconfig", kubeconfig},
	} {
		code, stdout, stderr := commandLine(t, append(args, "--dry-run")...)
		want := "kube-nft: API server " + server.URL + ": dial tcp " + address + ": connect: connection refused; check " +
			setting + ", or pass --manifests PATH to do without it\n"
		if code != exitFailed || stdout != "" || stderr != want {
			t.Errorf("exit %d, %q, %q; want %q", code, stdout, stderr, want)
		}
	}
}

// TestDryRunWithoutNode: stderr names the wrong host name.
func TestDryRunWithoutNode(t *testing.T) {
	_, _, stderr := commandLine(t, "--dry-run", "--manifests", "testdata/inspection/cluster.yaml", "--hostname-override",
		"node-77")
	var line struct{ Level, Msg, Node string }
	if err := json.Unmarshal([]byte(stderr), &line); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	if line.Level != "warn" || line.Node != "node-77" ||
		!strings.HasPrefix(line.Msg,
			"no such Node: node ports keep the primary addresses that the tables have already, ") {
		t.Errorf("got %s", stderr)
	}
}
