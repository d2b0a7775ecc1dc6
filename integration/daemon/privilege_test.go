package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// confine runs the command that follows it as a container runtime runs a pod that may do
// next to nothing: / and /proc/sys are read-only, which it checks, CAP_NET_ADMIN is the only
// capability there is and can be, and no program gives more. $1 is the user.
const confine = `set -e
mount --bind /proc/sys /proc/sys
mount -o remount,bind,ro /proc/sys
mount -o remount,bind,ro /
if touch / 2>/dev/null; then echo / can be written to >&2; exit 1; fi
user=$1; shift
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs \
  --bounding-set=-all,+net_admin --inh-caps=-all,+net_admin --ambient-caps=-all,+net_admin -- "$@"`

// refusedPrivileges is what kube-nft says about each thing that it may not do there.
var refusedPrivileges = []string{
	"sysctl net.netfilter.nf_conntrack_tcp_timeout_established: want 86400, have 432000: read-only file system; set it " +
		"on the node",
	"sysctl net.netfilter.nf_conntrack_tcp_timeout_close_wait: want 3600, have 60: read-only file system; set it on the " +
		"node",
	"write /proc/self/oom_score_adj: permission denied",
}

// TestLeastPrivilege runs kube-nft with nothing but CAP_NET_ADMIN, as root and as the user nobody: it
// programs Services, follows a change, repairs, removes, and ends with success.
func TestLeastPrivilege(t *testing.T) {
	lab.Require(t)
	for user, name := range map[string]string{"0": "root", "65534": "nobody"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lab.New(t)
			k, objects := lab.Open(t, kernel.Open), lab.NewDirectory(t)
			if err := os.Chmod(filepath.Dir(string(objects)), 0o755); err != nil {
				t.Fatal(err)
			}
			objects.Write(t, "web.yaml", lab.Web("web", firstWeb, lab.Addresses(webPods, 3)))
			p := lab.Start(t, "unshare", "--mount", "--propagation=private", "sh", "-c", confine, "sh", user,
				lab.Program(t), "--manifests", string(objects), "--hostname-override", lab.NodeName, "--takeover=never")
			lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
			objects.Write(t, "more.yaml", lab.Web("more", secondWeb, lab.Addresses(webPods, 3)))
			lab.Eventually(t, "a Service that was added", func() bool { return holds(t, k, secondWeb) })
			lab.Run(t, "", "nft", "flush", "ruleset")
			lab.Eventually(t, "both Services after a flush", func() bool {
				return holds(t, k, firstWeb) && holds(t, k, secondWeb)
			})
			objects.Write(t, "web.yaml", "")
			lab.Eventually(t, "a Service that was removed", func() bool { return !holds(t, k, firstWeb) })
			p.Stop(t)
			checkRefusals(t, p.Stderr())
		})
	}
}

// checkRefusals holds a log to one warning for each thing that was refused.
func checkRefusals(t *testing.T, log string) {
	t.Helper()
	for _, want := range refusedPrivileges {
		if strings.Count(log, want) != 1 {
			t.Errorf("the log says %d times, want once: %s", strings.Count(log, want), want)
		}
	}
	if strings.Contains(log, `"level":"error"`) {
		t.Errorf("there are errors in the log:\n%s", log)
	}
}
