package daemon

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// asNobody are the words before a command line that a user other than root runs, with the capability or without any.
func asNobody(capability string) []string {
	capabilities := "-all"
	if capability != "" {
		capabilities += ",+" + capability
	}
	return []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
		"--bounding-set=" + capabilities, "--inh-caps=" + capabilities, "--ambient-caps=" + capabilities, "--"}
}

// TestOtherUserWhileDaemonRuns runs commands as a user who may not open the daemon's socket file. Without
// CAP_NET_ADMIN they end at once; with it they wait, say so once, and leave the daemon's tables alone.
func TestOtherUserWhileDaemonRuns(t *testing.T) {
	t.Parallel()
	k, _, daemon := startWeb(t)
	for _, command := range []string{"cleanup", "migrate rollback"} {
		argv := slices.Concat(asNobody(""), []string{lab.Program(t)}, strings.Fields(command))
		want := lab.Output{Code: 1, Stderr: "kube-nft: read the generation of nf_tables: operation not permitted " +
			"(needs CAP_NET_ADMIN); nothing was removed\n"}
		if diff := cmp.Diff(want, execute(t, argv...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", command, diff)
		}
		argv = slices.Concat(asNobody("net_admin"), []string{lab.Program(t)}, strings.Fields(command),
			[]string{"--timeout", "3s"})
		got := execute(t, argv...)
		if got.Code != 1 || strings.Count(got.Stderr, "kube-nft: a daemon runs") != 1 ||
			strings.Count(got.Stderr, "\n") != 2 {
			t.Errorf("%s with CAP_NET_ADMIN: exit code %d, standard error:\n%s", command, got.Code, got.Stderr)
		}
		if !holds(t, k, firstWeb) {
			t.Errorf("%s has removed the daemon's Service", command)
		}
	}
	argv := slices.Concat(asNobody("net_admin"), []string{lab.Program(t), "cleanup"})
	cleanup := lab.Start(t, argv...)
	cleanup.AwaitLog(t, "a daemon runs")
	daemon.Stop(t)
	<-cleanup.Exited()
	if cleanup.ExitCode() != 0 || len(read(t, k)) > 0 {
		t.Errorf("cleanup after the daemon: exit code %d\n%s", cleanup.ExitCode(), cleanup.Stderr())
	}
}
