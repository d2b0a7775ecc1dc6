package daemon

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// pod starts kube-nft with a file system of its own, as a container has it. $1 is its root, $2 the program.
const pod = `mount --make-rprivate /
mkdir -p "$1/proc" "$1/run/kube-nft" && mount --bind /proc "$1/proc" && mount --bind /run/kube-nft "$1/run/kube-nft" &&
touch "$1/kube-nft" && mount --bind "$2" "$1/kube-nft" &&
exec chroot "$1" /kube-nft --manifests /objects --hostname-override ` + lab.NodeName + ` --cluster-cidr 10.244.0.0/16 \
  --host-proc /host/proc`

// TestCommandsBesideAPod: commands on the node itself use the settings of a daemon in a pod, and find its files.
func TestCommandsBesideAPod(t *testing.T) {
	t.Parallel()
	lab.New(t)
	root := t.TempDir()
	objects := filepath.Join(root, "objects")
	if err := os.Mkdir(objects, 0o755); err != nil {
		t.Fatal(err)
	}
	lab.Directory(objects).Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3))+
		"---\n"+lab.Manifest(lab.Node(lab.NodeName, netip.MustParseAddr("192.168.0.2"))))
	daemon := lab.Start(t, "unshare", "--mount", "sh", "-c", pod, "sh", root, lab.Program(t))
	lab.Eventually(t, "the daemon in the pod works", func() bool { return runProxy(t, "status").Code == 0 })
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"diff"}, ""},
		{[]string{"explain", "10.244.0.9", firstWeb.String() + ":80/tcp", "--from-source"}, "web"},
		{[]string{"migrate", "plan"}, "1 Service ports to serve"},
		{[]string{"migrate", "apply"}, "left to the running daemon"},
	} {
		if out := runProxy(t, tt.args...); out.Code != 0 || !strings.Contains(out.Stdout+out.Stderr, tt.want) {
			t.Errorf("%v: exit code %d, want 0 and %q\n%s%s", tt.args, out.Code, tt.want, out.Stdout, out.Stderr)
		}
	}
	// A flag names a file of this process, as always.
	out := runProxy(t, "diff", "--manifests", "/objects")
	if !strings.Contains(out.Stderr, "manifests /objects: no such") {
		t.Errorf("--manifests: exit code %d, %s", out.Code, out.Stderr)
	}
	daemon.Stop(t)
}
