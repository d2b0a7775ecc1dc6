package migration

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// probe sends a request from the calling thread; 0 stands for no answer.
func probe(address, path string) int {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return 0
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(lab.Patience))
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: lb\r\n\r\n", path)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	return response.StatusCode
}

// balancedManifest is a Service with the health-check node port 31000 and its endpoint on a node.
func balancedManifest(node string) string {
	service := lab.Service("shop", "balanced", lab.After(podRanges[0].Addr(), 1<<20))
	local := corev1.ServiceExternalTrafficPolicyLocal
	service.Spec.Type, service.Spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, local
	service.Spec.HealthCheckNodePort = 31000
	slice := lab.Slice("shop", "balanced", 1, corev1.IPv4Protocol, lab.Addresses(lab.After(podRanges[0].Addr(), 1), 1))
	slice.Endpoints[0].NodeName = &node
	return lab.Manifest(service, slice)
}

// TestMigrateHealthKernel: a daemon that waits for kube-proxy to end takes its ports as soon as they
// are free, with what the source says, and answers from then on at each moment of the takeover, though
// bindAddressHardFail is set. It does not complain about ports that kube-proxy has rightly.
func TestMigrateHealthKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[1], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	write := func(port int32, node string) {
		name := fmt.Sprintf("balanced-%d", port)
		service := lab.Service("shop", name, lab.After(podRanges[0].Addr(), 1<<20+int(port)))
		service.Spec.Type = corev1.ServiceTypeLoadBalancer
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		service.Spec.HealthCheckNodePort = port
		slice := lab.Slice("shop", name, 1, corev1.IPv4Protocol, lab.Addresses(lab.After(podRanges[0].Addr(), 1), 1))
		slice.Endpoints[0].NodeName = &node
		m.source.Write(t, name+".yaml", lab.Manifest(service, slice))
	}
	write(31000, "node-1")
	m.program(t)
	proxy := startFakeProxy(t)
	var ports []net.Listener
	for _, address := range []string{":10256", "127.0.0.1:10249", ":31000", ":31001"} {
		port, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		ports = append(ports, port)
	}
	daemon := m.startDaemon(t, "--takeover=auto", "--bind-address-hard-fail")
	daemon.AwaitLog(t, "the takeover waits until kube-proxy")
	write(31001, "node-1")  // while it waits
	time.Sleep(time.Second) // it tries to bind meanwhile
	for _, port := range ports {
		port.Close()
	}
	checks := [][2]string{{"127.0.0.1:10256", "/healthz"}, {"192.168.7.1:31000", "/"}, {"192.168.7.1:31001", "/"},
		{"127.0.0.1:10249", "/healthz"}}
	for _, check := range checks {
		for deadline := time.Now().Add(lab.Patience); probe(check[0], check[1]) != 200; {
			if time.Now().After(deadline) {
				t.Fatalf("no health check server answers at %s\n%s", check[0], daemon.Stderr())
			}
		}
	}
	write(31001, "node-2")
	for deadline := time.Now().Add(lab.Patience); probe("192.168.7.1:31001", "/") != 503; {
		if time.Now().After(deadline) {
			t.Fatalf("the answer does not follow the endpoints\n%s", daemon.Stderr())
		}
	}
	if probe("127.0.0.1:10256", "/readyz") != 503 {
		t.Error("ready before the takeover")
	}
	proxy.Kill()
	asked, end := 0, time.Now().Add(lab.Patience)
	for until := end; time.Now().Before(until); asked++ {
		for i, want := range []int{200, 200, 503, 200} {
			if code := probe(checks[i][0], checks[i][1]); code != want {
				t.Fatalf("after %d requests: %s answers %d, want %d\n%s", asked, checks[i][0], code, want, daemon.Stderr())
			}
		}
		if until == end && strings.Contains(daemon.Stderr(), "nothing of kube-proxy's is left") {
			until = time.Now().Add(time.Second)
		}
	}
	log := daemon.Stderr()
	if !strings.Contains(log, "nothing of kube-proxy's is left") || probe("127.0.0.1:10256", "/readyz") != 200 {
		t.Errorf("no takeover:\n%s", log)
	}
	if strings.Contains(log, `"level":"error"`) {
		t.Errorf("an error while kube-proxy rightly had the ports:\n%s", log)
	}
}

// TestMigrateNextToHiddenDaemonKernel runs migrate apply as the init container of a new pod beside the
// daemon of the old one, which the container does not see: it does not take the daemon's ports for
// kube-proxy's, and ends.
func TestMigrateNextToHiddenDaemonKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[1], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	daemon := m.startDaemon(t, "--takeover=never")
	daemon.AwaitLog(t, "kube-nft started")
	apply := lab.Start(t, slices.Concat([]string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child", m.binary,
		"migrate"}, m.applyArgs(), []string{"--timeout", "1m"})...)
	<-apply.Exited()
	if apply.ExitCode() != 0 || !strings.Contains(apply.Stderr(), "commit: done: left to the running daemon") {
		t.Errorf("exit code %d\n%s", apply.ExitCode(), apply.Stderr())
	}
	if code := probe("127.0.0.1:10256", "/healthz"); code != 200 {
		t.Errorf("the daemon answers %d", code)
	}
}
