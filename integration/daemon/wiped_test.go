package daemon

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestWipedServer puts an API server with one Service in the place of one with 300, while kube-nft runs:
// the 300 stay, what the new one has is programmed, and what is deleted there goes at once. With the
// word to go on, all of them go.
func TestWipedServer(t *testing.T) {
	t.Parallel()
	const services = 300
	for _, forced := range []bool{false, true} {
		t.Run(fmt.Sprintf("forced %v", forced), func(t *testing.T) {
			lab.New(t)
			k, server := lab.Open(t, kernel.Open), apiserver.New()
			url, err := server.Start("127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			kubeconfig, err := server.Kubeconfig(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			server.Apply(lab.Node(lab.NodeName))
			for i := range services {
				name, ip := fmt.Sprintf("service-%d", i), lab.After(netip.MustParseAddr("10.96.1.0"), i)
				server.Apply(lab.Service("shop", name, ip), lab.Slice("shop", name, 0, corev1.IPv4Protocol,
					lab.Addresses(webPods, 2)))
			}
			takeover := "--takeover=auto"
			if forced {
				takeover = "--takeover=force"
			}
			p := lab.Start(t, lab.Program(t), "--hostname-override", lab.NodeName, "--kubeconfig", kubeconfig, takeover)
			count := func() int {
				tables, _, err := k.Read(t.Context())
				if err != nil || tables[nft.IP] == nil {
					return 0
				}
				return len(tables[nft.IP].Sets["services"].Map)
			}
			lab.Eventually(t, "the first commit", func() bool { return count() == services })

			server.Close()
			wiped := apiserver.New()
			t.Cleanup(wiped.Close)
			wiped.Apply(lab.Node(lab.NodeName), lab.Service("default", "kubernetes", firstWeb),
				lab.Slice("default", "kubernetes", 0, corev1.IPv4Protocol, lab.Addresses(webPods, 1)))
			if _, err := wiped.Start(strings.TrimPrefix(url, "http://")); err != nil {
				t.Fatal(err)
			}
			if forced {
				lab.Eventually(t, "what the new server has, alone", func() bool { return count() == 1 })
				return
			}
			lab.Eventually(t, "what the new server has, too", func() bool { return count() == services+1 })
			p.AwaitLog(t, "a new list of services lacks 300 of the 300 that kube-nft knows")
			p.AwaitLog(t, "a new list of endpointslices lacks 300 of the 300 that kube-nft knows")
			lab.Eventually(t, "the metric", func() bool {
				_, body, err := fetch("127.0.0.1:10249", "/metrics")
				return err == nil && strings.Contains(body, `kube_nft_safety_check{reason="list"} 1`)
			})
			wiped.Apply(lab.Service("shop", "new", secondWeb), lab.Slice("shop", "new", 0, corev1.IPv4Protocol,
				lab.Addresses(webPods, 1)))
			lab.Eventually(t, "a new Service", func() bool { return count() == services+2 })
			wiped.Delete("Service", "shop", "new")
			lab.Eventually(t, "the end of a Service", func() bool { return count() == services+1 })
			time.Sleep(time.Second) // what the list lacks might go now
			if n := count(); n != services+1 {
				t.Errorf("%d Services, want %d\n%s", n, services+1, p.Stderr())
			}
			if code, body, err := fetch("127.0.0.1:10256", "/readyz"); code != 200 {
				t.Errorf("/readyz: %d %s, %v", code, body, err)
			}
			status, err := lab.Execute(lab.Program(t), "status")
			if err != nil || !strings.Contains(status.Stdout, "lacks 300 of the 300 that kube-nft knows") {
				t.Errorf("status, exit code %d, %v:\n%s", status.Code, err, status.Stdout)
			}
			for i := range services { // the source has them again
				name, ip := fmt.Sprintf("service-%d", i), lab.After(netip.MustParseAddr("10.96.1.0"), i)
				wiped.Apply(lab.Service("shop", name, ip), lab.Slice("shop", name, 0, corev1.IPv4Protocol,
					lab.Addresses(webPods, 2)))
			}
			p.AwaitLog(t, `"safety check passed","reason":"list"`)
			for i := range services { // as when their namespace is deleted
				wiped.Delete("Service", "shop", fmt.Sprintf("service-%d", i))
			}
			lab.Eventually(t, "the end of all of them", func() bool { return count() == 1 })
		})
	}
}
