package migration

import (
	"strings"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestForeignProxyKernel: a kube-proxy that programs the node beside a running kube-nft is noticed,
// whatever --takeover says, by a daemon that has CAP_NET_ADMIN alone and sees no process of it; and so
// is its end.
func TestForeignProxyKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for i, state := range oldStates {
		takeover := []string{"--takeover=never", "--takeover=auto"}[i%2]
		t.Run(state.name+takeover, func(t *testing.T) {
			t.Parallel()
			newMigrationNet(t)
			m := &migration{state: state, shapes: shapesOf(30), binary: binary, source: lab.NewDirectory(t), wrap: asInit}
			m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
			daemon := m.startDaemon(t, takeover)
			daemon.AwaitLog(t, `"started"`)
			awaitMetric(t, "kube_nft_foreign_proxy 0")
			status := []string{binary, "status"}
			if text := lab.Run(t, "", status...); strings.Contains(text, "\nkube-proxy ") {
				t.Errorf("status without a kube-proxy:\n%s", text)
			}
			m.program(t)
			daemon.AwaitLog(t, "kube-proxy programs this node as well, in "+state.name+" ip")
			awaitMetric(t, "kube_nft_foreign_proxy 1")
			if text := lab.Run(t, "", status...); !strings.Contains(text,
				"\nkube-proxy          has rules on this node as well, in "+state.name+" ip") {
				t.Errorf("status beside a kube-proxy:\n%s", text)
			}
			m.apply(t)
			daemon.AwaitLog(t, "kube-proxy has no rules on this node any more")
			awaitMetric(t, "kube_nft_foreign_proxy 0")
			if n := strings.Count(daemon.Stderr(), "kube-proxy programs this node as well"); n != 1 {
				t.Errorf("the log says %d times that there is a kube-proxy:\n%s", n, daemon.Stderr())
			}
			daemon.Stop(t)
		})
	}
}

// TestForeignProxyExpectedKernel: a daemon that is to work beside kube-proxy does not complain of it, nor
// does status.
func TestForeignProxyExpectedKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[1], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.program(t)
	status := []string{m.binary, "status"}
	if out, err := lab.Execute(status...); err != nil || !strings.Contains(out.Stdout, "\nkube-proxy          has rules") {
		t.Errorf("status without a daemon: %v\n%s", err, out.Stdout)
	}
	daemon := m.startDaemon(t, "--service-proxy-name=kube-nft", "--takeover=never")
	daemon.AwaitLog(t, `"started"`)
	awaitMetric(t, "kube_nft_repairs_total 0")
	if text := scrape(); strings.Contains(text, "kube_nft_foreign_proxy") {
		t.Errorf("metrics:\n%s", text)
	}
	if text := lab.Run(t, "", status...); strings.Contains(text, "\nkube-proxy ") {
		t.Errorf("status:\n%s", text)
	}
	daemon.Stop(t)
}
