package migration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// kubeProxyConfig is the file of a kube-proxy that runs on a node.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: 10.244.0.0/16,fd00:10:244::/48
clientConnection: {kubeconfig: %s}
`

// serveAPI starts an API server that has the objects, and writes the configuration of a kube-proxy that
// uses it.
func (m *migration) serveAPI(t *testing.T, dir string) (server *apiserver.Server, config string) {
	t.Helper()
	server = apiserver.New()
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	for _, object := range migrationObjects(m.shapes) {
		switch object := object.(type) {
		case *corev1.Node:
			server.Apply(object)
		case *corev1.Service:
			server.Apply(object)
		case *discoveryv1.EndpointSlice:
			server.Apply(object)
		}
	}
	kubeconfig, err := server.Kubeconfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	config = filepath.Join(dir, "config.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, kubeProxyConfig, kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	return server, config
}

// TestMigrateWrongNameKernel: a daemon with the name of no Node, and no word about the takeover, leaves a
// node as it is, answers the kubelet that it lives and is not ready, and records an event.
func TestMigrateWrongNameKernel(t *testing.T) {
	t.Parallel()
	m := newMigration(t, lab.Program(t), oldStates[1], shapesOf(60))
	server, config := m.serveAPI(t, t.TempDir())
	before := m.state.save(t)
	daemon := lab.Start(t, m.binary, "--config", config, "--hostname-override", "node-x")
	awaitMetric(t, `kube_nft_safety_check{reason="takeover"} 1`)
	lab.Eventually(t, "an event", func() bool {
		for _, event := range server.Events() {
			if event.Reason == "SafetyCheck" && strings.Contains(event.Note, "no Node is called node-x") {
				return true
			}
		}
		return false
	})
	m.load.await(t, 100)
	for path, want := range map[string]string{"/livez": " 200 ", "/readyz": " 503 "} {
		if got := answer("127.0.0.1:10256", path); !strings.Contains(got, want) {
			t.Errorf("%s: %s", path, got)
		}
	}
	daemon.Stop(t)
	if diff := cmp.Diff(before, m.state.save(t)); diff != "" {
		t.Errorf("the rules have changed (-before +after):\n%s", diff)
	}
	m.load.await(t, 50)
	m.load.check(t)
}

// TestPageSingleNodeKernel goes the migration page's way for a single node, by its commands, from a live
// kube-proxy to kube-nft and back, under load.
func TestPageSingleNodeKernel(t *testing.T) {
	t.Parallel()
	root, err := lab.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs/migration.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := newMigration(t, lab.Program(t), oldStates[0], shapesOf(60))
	dir := t.TempDir()
	_, config := m.serveAPI(t, dir)
	// command finds a command of the page and starts it, with names and paths of this node.
	command := func(line string) *lab.Process {
		t.Helper()
		if !strings.Contains(string(page), line) {
			t.Fatalf("the page has no %q", line)
		}
		for from, to := range map[string]string{
			"/var/lib/kube-proxy/config.conf": config, "/etc/kube-nft/config.yaml": filepath.Join(dir, "kube-nft.yaml"),
			"worker-1": "node-1",
		} {
			line = strings.ReplaceAll(line, from, to)
		}
		return lab.Start(t, append([]string{m.binary}, strings.Fields(line)[1:]...)...)
	}
	succeeds := func(line string) {
		t.Helper()
		p := command(line)
		<-p.Exited()
		if p.ExitCode() != 0 {
			t.Fatalf("%s: exit code %d\n%s", line, p.ExitCode(), p.Stderr())
		}
	}
	proxy := startFakeProxy(t)
	succeeds("kube-nft --config /var/lib/kube-proxy/config.conf --hostname-override worker-1 --write-config-to " +
		"/etc/kube-nft/config.yaml")
	succeeds("kube-nft migrate plan --config /etc/kube-nft/config.yaml")
	proxy.Signal(syscall.SIGTERM)
	<-proxy.Exited()
	succeeds("kube-nft migrate apply --config /etc/kube-nft/config.yaml")
	if left := proxys(m.state.save(t)); left != "" {
		t.Errorf("left of kube-proxy's:\n%s", left)
	}
	daemon := command("kube-nft --config /etc/kube-nft/config.yaml")
	daemon.AwaitLog(t, "kube-nft started: the kernel had all Services already")
	awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
	succeeds("kube-nft migrate plan --config /etc/kube-nft/config.yaml")
	m.load.await(t, 100)

	daemon.Signal(syscall.SIGTERM)
	<-daemon.Exited()
	m.program(t)
	succeeds("kube-nft migrate rollback --wait")
	m.load.await(t, 100)
	m.load.check(t)
	if tables := lab.Run(t, "", "nft", "list", "tables"); strings.Contains(tables, "kube-nft") {
		t.Errorf("left of ours:\n%s", tables)
	}
}
