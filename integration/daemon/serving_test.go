package daemon

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// servedObjects are a Node and a Service with a health-check node port. Ready is what the
// endpoint on the node says of itself.
const servedObjects = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, creationTimestamp: "2026-01-01T00:00:00Z"}
spec:
  type: LoadBalancer
  externalTrafficPolicy: Local
  healthCheckNodePort: 31000
  clusterIP: 10.96.0.80
  clusterIPs: [10.96.0.80]
  ipFamilies: [IPv4]
  ports: [{name: http, protocol: TCP, port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
- {addresses: [10.244.0.11], nodeName: node-a, conditions: {ready: %v}}
- {addresses: [10.244.1.11], nodeName: node-b}
`

// fetch sends a GET request from the calling thread, which http.Client does not.
func fetch(address, path string) (code int, body string, err error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0, "", err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n", path)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0, "", err
	}
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// awaitCode asks again until the answer has that code; 0 stands for no connection.
func awaitCode(t *testing.T, proxy *lab.Process, address, path string, want int) {
	t.Helper()
	var code int
	var err error
	for deadline := time.Now().Add(lab.Patience); time.Now().Before(deadline); {
		if code, _, err = fetch(address, path); code == want {
			return
		}
	}
	t.Fatalf("%s%s: %d, %v, want %d\n%s", address, path, code, err, want, proxy.Stderr())
}

// TestServingInKernel watches a daemon as load balancers, the kubelet and Prometheus do.
func TestServingInKernel(t *testing.T) {
	lab.Require(t)
	binary := lab.Program(t)
	lab.New(t)
	lab.Run(t, "", "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	write := func(ready bool) {
		if err := os.WriteFile(objects+".new", fmt.Appendf(nil, servedObjects, ready), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(objects+".new", objects); err != nil {
			t.Fatal(err)
		}
	}
	write(true)
	argv := []string{binary, "--hostname-override=node-a", "--manifests", objects}
	proxy := lab.Start(t, argv...)
	awaitCode(t, proxy, "127.0.0.1:10256", "/readyz", 200)
	awaitCode(t, proxy, "127.0.0.1:10256", "/healthz", 200)
	awaitCode(t, proxy, "127.0.0.1:10256", "/livez", 200)
	awaitCode(t, proxy, "192.0.2.1:31000", "/", 200)
	if _, _, err := fetch("127.0.0.1:31000", "/"); err == nil {
		t.Error("the health-check node port is open at an address that is not for node ports")
	}
	checkScrape(t, `kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 0`,
		`kube_nft_elements{ip_family="IPv4",set="services"} 1`, `kube_nft_batches_total 1`,
		`kube_nft_scrape_failures_total 0`)

	write(false) // the policy's chain is made in a batch of its own first, and the endpoint removed in one of its own last
	awaitCode(t, proxy, "192.0.2.1:31000", "/", 503)
	checkScrape(t, `kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family="IPv4",traffic_policy="external"} 1`,
		`kubeproxy_sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"} 1`, `kube_nft_batches_total 4`)

	if err := proxy.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-proxy.Exited()
	if proxy.ExitCode() != 0 {
		t.Errorf("exit code %d\n%s", proxy.ExitCode(), proxy.Stderr())
	}
	checkPortsTaken(t, argv)
}

// TestNodeDeletedInKernel deletes the Node object: node ports, health checks and their answers stay,
// and node ports also when kube-nft is started again before the object is back.
func TestNodeDeletedInKernel(t *testing.T) {
	lab.Require(t)
	binary := lab.Program(t)
	lab.New(t)
	lab.Run(t, "", "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
	lab.Run(t, "", "ip", "address", "add", "192.0.2.2/32", "dev", "lo")
	objects := lab.NewDirectory(t)
	node, rest, _ := strings.Cut(fmt.Sprintf(servedObjects, true), "---\n")
	objects.Write(t, "rest.yaml", rest)
	objects.Write(t, "node.yaml", node)
	argv := []string{binary, "--hostname-override=node-a", "--manifests", string(objects)}
	proxy := lab.Start(t, argv...)
	awaitCode(t, proxy, "192.0.2.1:31000", "/", 200)
	reached := func() string {
		return lab.Run(t, "", "nft", "list", "set", "ip", "kube-nft", "node-port-addresses")
	}
	before := reached()
	if !strings.Contains(before, "192.0.2.1") {
		t.Fatalf("node ports are reached at\n%s", before)
	}
	check := func(when, missing string) {
		t.Helper()
		if now := reached(); now != before {
			t.Errorf("%s: node ports are reached at\n%s", when, now)
		}
		awaitCode(t, proxy, "192.0.2.1:31000", "/", 200)
		awaitCode(t, proxy, "127.0.0.1:10256", "/healthz", 200)
		checkScrape(t, "kube_nft_node_missing "+missing)
	}
	check("there is a Node", "0")

	if err := os.Remove(filepath.Join(string(objects), "node.yaml")); err != nil {
		t.Fatal(err)
	}
	proxy.AwaitLog(t, "the Node was deleted: kube-nft uses its last addresses, zone and labels")
	check("deleted", "1")

	proxy.Stop(t)
	proxy = lab.Start(t, argv...)
	awaitCode(t, proxy, "127.0.0.1:10256", "/readyz", 200)
	check("started without it", "1")
	if out, err := lab.Execute(binary, "diff", "--hostname-override=node-a", "--manifests", string(objects)); err != nil ||
		out.Code != 0 {
		t.Errorf("diff: %v, %+v", err, out)
	}

	objects.Write(t, "node.yaml", strings.ReplaceAll(node, "192.0.2.1", "192.0.2.2"))
	awaitCode(t, proxy, "192.0.2.2:31000", "/", 200)
	awaitCode(t, proxy, "192.0.2.1:31000", "/", 0)
	checkScrape(t, "kube_nft_node_missing 0")
}

// TestHostileConnectionsInKernel holds many connections to a daemon that may open few files: it goes on
// to answer all other clients, and to follow its source.
func TestHostileConnectionsInKernel(t *testing.T) {
	lab.Require(t)
	binary := lab.Program(t)
	lab.New(t)
	lab.Run(t, "", "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
	objects := lab.NewDirectory(t)
	objects.Write(t, "objects.yaml", fmt.Sprintf(servedObjects, true))
	proxy := lab.Start(t, "prlimit", "--nofile=700:700", binary, "--hostname-override=node-a", "--manifests",
		string(objects))
	addresses := []string{"192.0.2.1:10256", "192.0.2.1:31000", "127.0.0.1:10249"}
	awaitCode(t, proxy, addresses[1], "/", 200)
	for i := range 900 {
		conn, err := net.Dial("tcp", addresses[i%3])
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		defer conn.Close()
	}
	for i, path := range []string{"/healthz", "/", "/metrics"} {
		if code, _, err := fetch(addresses[i], path); code != 200 {
			t.Errorf("%s%s: %d, %v", addresses[i], path, code, err)
		}
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", proxy.PID())) // prlimit has become kube-nft
	if err != nil || len(files) > 128+128+256+50 {
		t.Errorf("%d files are open: %v", len(files), err)
	}
	objects.Write(t, "objects.yaml", fmt.Sprintf(servedObjects, false))
	awaitCode(t, proxy, addresses[1], "/", 503)
}

// checkScrape looks for series in a scrape.
func checkScrape(t *testing.T, series ...string) {
	t.Helper()
	// Metrics know of a commit a moment after the kernel does.
	for end := time.Now().Add(lab.Patience); ; time.Sleep(20 * time.Millisecond) {
		_, body, err := fetch("127.0.0.1:10249", "/metrics")
		missing := slices.DeleteFunc(slices.Clone(series), func(line string) bool {
			return strings.Contains(body, line+"\n")
		})
		if len(missing) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("no %s in\n%s, %v", strings.Join(missing, ", "), body, err)
			return
		}
	}
}

// checkPortsTaken starts a daemon that is told to insist on its ports, beside another program.
func checkPortsTaken(t *testing.T, argv []string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "config.yaml")
	text := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nbindAddressHardFail: true\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	other, err := net.Listen("tcp", ":10256")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	second := lab.Start(t, append(argv, "--config", config)...)
	<-second.Exited()
	if second.ExitCode() != 1 ||
		!strings.Contains(second.Stderr(),
			"address already in use; another process has this port, perhaps kube-proxy or another kube-nft: stop it or set --") {
		t.Errorf("exit code %d\n%s", second.ExitCode(), second.Stderr())
	}
}
