package daemon

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

const localhostObjects = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.1}, {type: InternalIP, address: "2001:db8::1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: registry, namespace: infra}
spec:
  type: NodePort
  clusterIP: 10.96.0.80
  clusterIPs: [10.96.0.80, "fd00:96::80"]
  ipFamilies: [IPv4, IPv6]
  ports: [{name: http, protocol: TCP, port: 80, targetPort: 8080, nodePort: 30500}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: registry-4, namespace: infra, labels: {kubernetes.io/service-name: registry}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints: [{addresses: [10.244.1.11], nodeName: node-b}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: registry-6, namespace: infra, labels: {kubernetes.io/service-name: registry}}
addressType: IPv6
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints: [{addresses: ["fd00:244:1::11"], nodeName: node-b}]
`

// greet answers every connection to an address with a text, from the calling thread's namespace, and closes it when
// the client does. No client has a loopback address.
func greet(t *testing.T, address, text string) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	lab.Serve(listener, func(conn net.Conn) {
		if conn.RemoteAddr().(*net.TCPAddr).IP.IsLoopback() {
			t.Errorf("the client of %s is %s", address, conn.RemoteAddr())
		}
		io.WriteString(conn, text)
		io.Copy(io.Discard, conn)
	})
}

// hear connects to an address and returns what is said there.
func hear(address string) string {
	conn, err := net.DialTimeout("tcp", address, 10*time.Second)
	if err != nil {
		return err.Error()
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(10 * time.Second))
	conn.(*net.TCPConn).CloseWrite()
	text, err := io.ReadAll(conn)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// TestLocalhostNodePortsWithoutSysctl runs the file that kube-proxy's users have: node ports are served at localhost in
// both families, the kernel goes on refusing to route loopback addresses, and explain says who serves. Endpoints see an
// address of this node, and connections end with the daemon.
func TestLocalhostNodePortsWithoutSysctl(t *testing.T) {
	t.Parallel()
	lab.Require(t)
	binary := lab.Program(t)
	lab.New(t)
	for _, addr := range []string{"192.0.2.1/32", "2001:db8::1/128", "10.244.1.11/32", "fd00:244:1::11/128"} {
		lab.Run(t, "", "ip", "address", "add", addr, "dev", "lo", "nodad")
	}
	greet(t, "10.244.1.11:8080", "four")
	greet(t, "[fd00:244:1::11]:8080", "six")
	dir := t.TempDir()
	objects, file := filepath.Join(dir, "objects.yaml"), filepath.Join(dir, "config.conf")
	for path, text := range map[string]string{objects: localhostObjects,
		file: `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
nodePortAddresses: [primary, localhost]
featureGates: {KubeProxyNFTablesLocalhostNodePorts: true}
`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := []string{"--hostname-override=node-a", "--manifests", objects, "--config", file}
	proxy := lab.Start(t, append([]string{binary}, settings...)...)
	awaitCode(t, proxy, "127.0.0.1:10256", "/readyz", 200)
	for address, want := range map[string]string{
		"127.0.0.1:30500": "four", "[::1]:30500": "six", "192.0.2.1:30500": "four", "[2001:db8::1]:30500": "six",
	} {
		got := hear(address)
		for deadline := time.Now().Add(lab.Patience); got != want && time.Now().Before(deadline); got = hear(address) {
			time.Sleep(time.Millisecond)
		}
		if got != want {
			t.Errorf("%s says %q, want %q\n%s", address, got, want, proxy.Stderr())
		}
	}
	lasting, err := net.Dial("tcp", "127.0.0.1:30500")
	if err != nil {
		t.Fatal(err)
	}
	defer lasting.Close()
	lasting.SetDeadline(time.Now().Add(lab.Patience))
	if _, err := io.ReadFull(lasting, make([]byte, len("four"))); err != nil {
		t.Fatal(err)
	}
	if value := lab.Run(t, "", "sysctl", "-n", "net.ipv4.conf.all.route_localnet"); strings.TrimSpace(value) != "0" {
		t.Errorf("route_localnet is %s", value)
	}
	if log := proxy.Stderr(); strings.Contains(log, "no effect") {
		t.Errorf("the log says %s", log)
	}
	for _, address := range []string{"127.0.0.1", "[::1]"} {
		text := lab.Run(t, "", binary, "explain", "node", fmt.Sprintf("%s:30500/tcp", address))
		if !strings.Contains(text, "served by the kube-nft daemon") {
			t.Errorf("explain says of %s: %s", address, text)
		}
	}
	proxy.Stop(t)
	if n, err := lasting.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the daemon's end a connection goes on: %d bytes, %v", n, err)
	}
}

// TestLocalhostIsClosedToOthers: with --localhost-nodeports the node routes packets to 127.0.0.1, and a host of its
// network reaches what listens there only if our rules do not keep it out.
func TestLocalhostIsClosedToOthers(t *testing.T) {
	client, _ := forwardingNode(t, "10.244.0.0/16")
	lab.Run(t, "", "sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1")
	inside, err := net.ListenPacket("udp4", "127.0.0.1:7777")
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if err := client.Do(func() error {
		lab.Run(t, "", "sh", "-ec", "sysctl -qw net.ipv4.conf.all.route_localnet=1; ip route flush table local dev lo; "+
			"ip route add 127.0.0.1/32 via 192.168.0.2 src 192.168.0.9")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	reached := func(wait time.Duration) bool { // by a flow of its own
		if err := client.Do(func() error {
			conn, err := net.Dial("udp4", "127.0.0.1:7777")
			if err != nil {
				return err
			}
			defer conn.Close()
			_, err = conn.Write([]byte("hello"))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if err := inside.SetReadDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		_, _, err := inside.ReadFrom(make([]byte, 16))
		return err == nil
	}
	if !reached(lab.Patience) {
		t.Fatal("without the flag: the client does not reach 127.0.0.1, so that the test shows nothing")
	}
	lab.Run(t, lab.Run(t, "", append([]string{lab.Program(t), "--localhost-nodeports", "--hostname-override", "node-a",
		"--cluster-cidr", "10.244.0.0/16", "--dry-run"}, examples...)...), "nft", "-f", "-")
	if reached(300 * time.Millisecond) {
		t.Error("with the flag: the client reaches 127.0.0.1")
	}
}
