package migration

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

var (
	kubeProxy = flag.String("kube-proxy", "", "a program of kube-proxy, for TestShadowBesideKubeProxy")
	churnTime = flag.Duration("churn", time.Minute, "how long the cluster changes, of TestShadowBesideKubeProxy")
)

// TestShadowBesideKubeProxy runs the shadow mode beside a real kube-proxy, in each of its modes, while Services and
// endpoints change five times a second: no difference may last. Then ten frontends are deleted from kube-proxy's maps,
// or from ip_vs, and each has to be named.
func TestShadowBesideKubeProxy(t *testing.T) {
	if *kubeProxy == "" {
		t.Skip("it needs -kube-proxy PROGRAM")
	}
	for _, mode := range []string{"nftables", "iptables", "ipvs"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			count := 100
			if mode == "ipvs" {
				requireIPVS(t)
				count = 16 // the processor may be emulated
			}
			newMigrationNet(t)
			m := &migration{shapes: shapesOf(count), binary: lab.Program(t)}
			server, _ := m.serveAPI(t, t.TempDir())
			kubeconfig, err := server.Kubeconfig(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			node := []string{"--kubeconfig", kubeconfig, "--hostname-override", "node-1", "--cluster-cidr",
				"10.244.0.0/16,fd00:10:244::/48"}
			argv := []string{*kubeProxy, "--proxy-mode=" + mode, "--conntrack-max-per-core=0"}
			proxy := lab.Start(t, append(argv, node...)...)
			shadow := lab.Start(t, slices.Concat(asInit, []string{m.binary, "--mode=shadow"}, node)...)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the shadow wrote:\n%s\nkube-proxy wrote:\n%s", shadow.Stderr(), proxy.Stderr())
				}
			})
			m.awaitDifferences(t)
			first := m.shadowStatus(t)
			changes, looks, last := 0, 0, ""
			for end := time.Now().Add(*churnTime); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				m.change(server)
				if changes++; changes%4 != 0 {
					continue // what a comparison finds stands for a second, or longer
				}
				for line := range strings.Lines(answer(shadowMetrics, "/metrics")) { // costs less than a command
					switch {
					case strings.HasPrefix(line, "kube_nft_shadow_last_comparison_timestamp_seconds ") && line != last:
						last = line
						looks++
					case strings.HasPrefix(line, "kube_nft_shadow_differences{") && !strings.HasSuffix(line, " 0\n"):
						t.Errorf("after %d changes: %s%v", changes, line, m.shadowStatus(t).First)
					}
				}
			}
			if looks == 0 {
				t.Error("no comparison while the cluster changed")
			}
			m.awaitDifferences(t)
			t.Logf("%d changes, %d comparisons, %d frontends at first, %.3f s each; %s", changes, looks, first.Frontends,
				first.Seconds, proxySyncs())
			if mode != "iptables" {
				m.plant(t, server, mode)
			}
		})
	}
}

// proxySyncs says how long kube-proxy's syncs took.
func proxySyncs() string {
	const name = "kubeproxy_sync_proxy_rules_duration_seconds_"
	sums := make(map[string]float64)
	for line := range strings.Lines(answer(metricsAddress, "/metrics")) {
		if rest, found := strings.CutPrefix(line, name); found {
			what, _, _ := strings.Cut(rest, "{")
			value, _ := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			sums[what] += value
		}
	}
	return fmt.Sprintf("%.0f syncs of kube-proxy, %.1f s each", sums["count"], sums["sum"]/sums["count"])
}

// change changes the cluster: a Service gets other endpoints, goes or comes.
func (m *migration) change(server *apiserver.Server) {
	objects := migrationObjects(m.shapes)
	i := 1 + 2*rand.IntN((len(objects)-1)/2) // the first is the Node
	service, slice := objects[i].(*corev1.Service), objects[i+1].(*discoveryv1.EndpointSlice)
	switch rand.IntN(8) {
	case 0:
		server.Delete("Service", service.Namespace, service.Name)
		server.Delete("EndpointSlice", slice.Namespace, slice.Name)
		return
	case 1:
		slice.Endpoints = nil
	case 2:
		for j := range slice.Endpoints {
			slice.Endpoints[j].Conditions.Ready = new(rand.IntN(2) == 0)
		}
	default:
		slice.Endpoints = slice.Endpoints[:rand.IntN(len(slice.Endpoints)+1)]
	}
	server.Apply(service, slice)
}

// plant restores the cluster, and deletes frontends of ten Services from what kube-proxy has in the kernel.
func (m *migration) plant(t *testing.T, server *apiserver.Server, mode string) {
	t.Helper()
	for _, object := range migrationObjects(m.shapes)[1:] {
		switch object := object.(type) {
		case *corev1.Service:
			server.Apply(object)
		case *discoveryv1.EndpointSlice:
			server.Apply(object)
		}
	}
	m.awaitComparisons(t, 10) // kube-proxy writes once a second; what is deleted before it is done comes back
	var commands, want []string
	for i := range m.shapes[0].Services {
		if s := &m.shapes[0]; !s.Refused(i) && !s.Affine(i) && len(want) < 10 {
			at := netip.AddrPortFrom(s.ClusterIP(i), 80)
			switch {
			case mode == "nftables":
				commands = append(commands,
					fmt.Sprintf("delete element ip kube-proxy service-ips { %s . %s . 80 }", at.Addr(), s.Protocol(i)))
			case s.Protocol(i) == "udp":
				commands = append(commands, fmt.Sprintf("-D -u %s", at))
			default:
				commands = append(commands, fmt.Sprintf("-D -t %s", at))
			}
			want = append(want, fmt.Sprintf("only-kube-nft: %s/%s of shop/service-ip-%d:http", at, s.Protocol(i), i))
		}
	}
	file := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(file, []byte(strings.Join(commands, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	remove := []string{"nft", "-f", file}
	if mode == "ipvs" {
		remove = []string{"sh", "-ec", "while read -r server; do ipvsadm $server; done <" + file}
	}
	lab.Eventually(t, "all Services in what kube-proxy has", func() bool {
		_, err := lab.Execute(remove...)
		return err == nil
	})
	began := time.Now()
	m.awaitDifferences(t, want...)
	t.Logf("%d planted differences are named after %.1f s", len(want), time.Since(began).Seconds())
}
