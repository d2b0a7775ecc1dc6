package integration

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// A directory holds the manifests of a test.
type directory string

// newDirectory returns an empty directory that lives as long as the test.
func newDirectory(t testing.TB) directory { return directory(t.TempDir()) }

// write replaces a file in one step.
func (d directory) write(t testing.TB, name, text string) {
	t.Helper()
	draft := filepath.Join(string(d), "."+name)
	if err := os.WriteFile(draft, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(string(d), name)); err != nil {
		t.Fatal(err)
	}
}

// start starts kube-nft on the directory in the namespace of the calling test.
func (d directory) start(t testing.TB, flags ...string) *netns.Process {
	t.Helper()
	argv := []string{buildProxy(t), "--manifests", string(d), "--hostname-override", scenarioNode}
	return netns.Start(t, append(argv, flags...)...)
}

// stopTimeout bounds how long kube-nft takes to end; milliseconds, unless the machine is busy.
const stopTimeout = 5 * time.Second

// stop ends kube-nft as a service manager does. It must go at once and call that a success.
func stop(t testing.TB, p *netns.Process) {
	t.Helper()
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Exited():
	case <-time.After(stopTimeout):
		t.Fatalf("kube-nft is still there %s after SIGTERM:\n%s", stopTimeout, p.Stderr())
	}
	if p.ExitCode() != 0 {
		t.Errorf("exit code %d after SIGTERM, want 0:\n%s", p.ExitCode(), p.Stderr())
	}
}

// webObjects returns, in YAML, a Service of the namespace shop with port 80 and endpoints at
// port 8080, all of the family of the cluster IP. The lines of extra belong to its spec.
func webObjects(name string, clusterIP netip.Addr, endpoints []netip.Addr, extra ...string) string {
	return webService(name, clusterIP, extra...) + "---\n" + webSlice(name+"-1", name, familyName(clusterIP), endpoints)
}

func webService(name string, clusterIP netip.Addr, extra ...string) string {
	return serviceText(name, clusterIP, "protocol: TCP", extra...)
}

// serviceText is webService with further fields of the port.
func serviceText(name string, clusterIP netip.Addr, port string, extra ...string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {namespace: shop, name: %s}
spec:
  clusterIP: "%s"
  clusterIPs: ["%s"]
  ipFamilies: [%s]
  ports: [{name: http, port: 80, %s}]
%s`, name, clusterIP, clusterIP, familyName(clusterIP), port, specLines(extra))
}

// specLines indents lines as a Service's spec needs them.
func specLines(lines []string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString("  " + line + "\n")
	}
	return b.String()
}

// webSlice returns an EndpointSlice of a Service in YAML.
func webSlice(name, service, family string, endpoints []netip.Addr) string {
	list := make([]string, len(endpoints))
	for i, addr := range endpoints {
		list[i] = fmt.Sprintf("{addresses: [%q]}", addr)
	}
	return sliceText(name, service, family, "TCP", list)
}

// sliceText is webSlice of any protocol, with endpoints as they stand in YAML.
func sliceText(name, service, family, protocol string, endpoints []string) string {
	return fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: %s, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [{name: http, protocol: %s, port: 8080}]
endpoints: [%s]
`, name, service, family, protocol, strings.Join(endpoints, ", "))
}

// familyName returns the family of an address as the Kubernetes API spells it.
func familyName(addr netip.Addr) string {
	if addr.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// addressesFrom returns n consecutive addresses.
func addressesFrom(first netip.Addr, n int) []netip.Addr {
	addrs := make([]netip.Addr, n)
	for i := range addrs {
		addrs[i] = first
		first = first.Next()
	}
	return addrs
}
