package migration

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestMigrateAfterTrialKernel: a daemon that finds our tables in force, as a trial beside kube-proxy leaves
// them, serves at once, while kube-proxy still runs. Clients keep the endpoints that kube-proxy's session
// affinity knows, and the health-check node ports, which are kube-proxy's until it ends, are answered
// soon afterwards, without a complaint before.
func TestMigrateAfterTrialKernel(t *testing.T) {
	t.Parallel()
	binary := lab.Program(t)
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m := newAffinity(t, binary, state)
			m.source.Write(t, "balanced.yaml", balancedManifest("node-1"))
			trial := m.startDaemon(t, "--takeover=never", "--service-proxy-name=trial")
			trial.AwaitLog(t, "kube-nft started")
			trial.Signal(syscall.SIGTERM)
			<-trial.Exited()
			before := m.reached(t)
			proxy := startFakeProxy(t)
			var ports []net.Listener
			for _, address := range []string{":10256", ":31000"} {
				port, err := net.Listen("tcp", address)
				if err != nil {
					t.Fatal(err)
				}
				ports = append(ports, port)
			}
			began := time.Now()
			daemon := m.startDaemon(t)
			daemon.AwaitLog(t, "the takeover waits until kube-proxy on this node has ended")
			soon := gapAfter(time.Since(began))
			daemon.AwaitLog(t, fmt.Sprintf("session affinity: %d clients keep their endpoint", 2*affineClients))
			if diff := cmp.Diff(before, m.reached(t)); diff != "" {
				t.Errorf("endpoints that the clients reach (-kube-proxy +kube-nft):\n%s", diff)
			}
			time.Sleep(time.Second) // it tries to bind meanwhile
			for _, port := range ports {
				port.Close()
			}
			freed := time.Now()
			for _, check := range [][2]string{{"127.0.0.1:10256", "/healthz"}, {"192.168.7.1:31000", "/"}} {
				for probe(check[0], check[1]) != 200 {
					if time.Since(freed) > soon {
						t.Fatalf("no health check server answers at %s\n%s", check[0], daemon.Stderr())
					}
				}
			}
			proxy.Kill()
			awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
			if left := proxys(m.state.save(t)); left != "" {
				t.Errorf("left of kube-proxy's:\n%s", left)
			}
			if errors := slices.DeleteFunc(strings.Split(daemon.Stderr(), "\n"),
				func(line string) bool { return !strings.Contains(line, `"level":"error"`) }); len(errors) > 0 {
				t.Errorf("errors while kube-proxy rightly had the ports:\n%s", strings.Join(errors, "\n"))
			}
		})
	}
}
