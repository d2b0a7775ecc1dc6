package daemon

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// rangedService is a load balancer of UDP for one client.
const rangedService = `apiVersion: v1
kind: Service
metadata: {name: ranged, namespace: shop}
spec:
  type: LoadBalancer
  clusterIPs: [10.96.0.90]
  loadBalancerSourceRanges: [192.168.0.20/32]
  ports: [{port: 90, protocol: UDP}]
status: {loadBalancer: {ingress: [{ip: 10.200.0.7}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ranged-1, namespace: shop, labels: {kubernetes.io/service-name: ranged}}
addressType: IPv4
endpoints: [{addresses: [10.244.0.11]}]
ports: [{port: 9090, protocol: UDP, name: ""}]
`

// TestSourceRangesOfFragments: a datagram in fragments, of which only the first has the ports, reaches a Service from a
// client of its source ranges and from no other.
func TestSourceRangesOfFragments(t *testing.T) {
	client, pods := forwardingNode(t, "10.244.0.0/16")
	manifest := filepath.Join(t.TempDir(), "ranged.yaml")
	if err := os.WriteFile(manifest, []byte(rangedService), 0o600); err != nil {
		t.Fatal(err)
	}
	lab.Run(t, lab.Run(t, "", lab.Program(t), "--manifests", manifest, "--hostname-override", "node-a",
		"--cluster-cidr", "10.244.0.0/16", "--dry-run"), "nft", "-f", "-")
	var pod net.PacketConn
	if err := pods.Do(func() (err error) {
		pod, err = net.ListenPacket("udp4", "10.244.0.11:9090")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	if err := client.Do(func() error {
		if err := lab.AddAddress("eth0", netip.MustParsePrefix("192.168.0.20/24")); err != nil {
			return err
		}
		for from, text := range map[string]string{"192.168.0.9": "refused", "192.168.0.20": "accepted"} {
			conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(from)},
				&net.UDPAddr{IP: net.IPv4(10, 200, 0, 7), Port: 90})
			if err != nil {
				return err
			}
			_, err = conn.Write(bytes.Repeat([]byte(text), 500)) // more than two packets
			conn.Close()
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	wait := lab.Patience
	for buffer := make([]byte, 8192); ; wait = 300 * time.Millisecond {
		if err := pod.SetReadDeadline(time.Now().Add(wait)); err != nil {
			t.Fatal(err)
		}
		n, _, err := pod.ReadFrom(buffer)
		switch {
		case err != nil && wait == lab.Patience:
			t.Fatalf("nothing has come from the client of the source ranges: %v", err)
		case err != nil:
			return
		case !bytes.Equal(buffer[:n], bytes.Repeat([]byte("accepted"), 500)):
			t.Fatalf("%d bytes have come, %q…", n, buffer[:min(n, 8)])
		}
	}
}
