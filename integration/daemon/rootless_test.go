package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// rootless runs in namespaces of a user without privileges on the machine: it starts kube-nft, asks for its Services,
// and ends it. $1 is the program, $2 the objects.
const rootless = `ip link set lo up
"$1" --manifests "$2" --hostname-override node-a --takeover never --conntrack-max-per-core 0 &
daemon=$!
for i in $(seq 300); do "$1" status >"$HOME/status" 2>&1 && break; sleep 0.1; done
cat "$HOME/status"
"$1" get services
kill $daemon; wait $daemon`

// TestRootless follows docs/rootless.md: a user without any right on the machine programs the network namespace of
// his own user namespace.
func TestRootless(t *testing.T) {
	t.Parallel()
	lab.Require(t)
	lab.New(t)
	home := t.TempDir()
	objects := lab.NewDirectory(t)
	objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
	// The user reads the program and the objects, whose directories are root's.
	program := filepath.Join(home, "kube-nft")
	// If this process wrote the copy, a child that another test forks meanwhile would have it open, too: ETXTBSY.
	lab.Run(t, "", "cp", lab.Program(t), program)
	for _, dir := range []string{filepath.Dir(home), home, filepath.Dir(string(objects)), string(objects)} {
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	out := lab.Run(t, "", "env", "HOME="+home, "XDG_RUNTIME_DIR="+filepath.Join(home, "session"), "setpriv",
		"--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all",
		"unshare", "--user", "--map-root-user", "--net", "sh", "-c", rootless, "sh", program, string(objects))
	if !strings.Contains(out, "Daemon              healthy") || !strings.Contains(out, firstWeb.String()+":80/tcp") {
		t.Errorf("status and Services:\n%s", out)
	}
}
