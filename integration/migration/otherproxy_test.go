package migration

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestForeignProxyKernel: a kube-proxy that programs the node beside a running kube-nft is noticed,
// whatever --takeover says, by a daemon that has CAP_NET_ADMIN alone and sees no process of it; and so
// is its end. A health-check node port that such a kube-proxy had is open soon after it is free.
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
			m.source.Write(t, "balanced.yaml", balancedManifest("node-1"))
			taken, err := net.Listen("tcp", ":31000")
			if err != nil {
				t.Fatal(err)
			}
			daemon := m.startDaemon(t, takeover)
			daemon.AwaitLog(t, "kube-nft started")
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
			taken.Close()
			for free := time.Now(); probe("192.168.7.1:31000", "/") != 200; {
				if gap := time.Since(free); gap > 3*time.Second { // otherwise it is tried every 5 s
					t.Fatalf("no answer at the health-check node port for %v", gap)
				}
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
	daemon.AwaitLog(t, "kube-nft started")
	awaitMetric(t, "kube_nft_repairs_total 0")
	if text := scrape(); strings.Contains(text, "kube_nft_foreign_proxy") {
		t.Errorf("metrics:\n%s", text)
	}
	if text := lab.Run(t, "", status...); strings.Contains(text, "\nkube-proxy ") {
		t.Errorf("status:\n%s", text)
	}
	daemon.Stop(t)
}
