package migration

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// shadowMetrics is where a daemon in the shadow mode serves metrics: beside kube-proxy's port.
const shadowMetrics = "127.0.0.1:10349"

// newShadow makes a node with kube-proxy's rules, and a daemon in the shadow mode.
func newShadow(t *testing.T, state oldState, services int, flags ...string) (*migration, *lab.Process) {
	t.Helper()
	newMigrationNet(t)
	m := &migration{state: state, shapes: shapesOf(services), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.program(t)
	return m, m.startShadow(t, flags...)
}

// startShadow starts a daemon in the shadow mode.
func (m *migration) startShadow(t *testing.T, flags ...string) *lab.Process {
	t.Helper()
	argv := slices.Concat(asInit, []string{m.binary, "--mode=shadow", "--log-level=debug"}, m.applyArgs()[1:], flags)
	daemon := lab.Start(t, argv...)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the shadow wrote:\n%s", daemon.Stderr())
		}
	})
	return daemon
}

// shadowStatus asks kube-nft status.
func (m *migration) shadowStatus(t *testing.T) *peer.Shadow {
	t.Helper()
	out, err := lab.Execute(m.binary, "status", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var s struct{ Daemon struct{ Shadow *peer.Shadow } }
	if err := json.Unmarshal([]byte(out.Stdout), &s); err != nil {
		t.Fatalf("%v: %s%s", err, out.Stdout, out.Stderr)
	}
	if s.Daemon.Shadow == nil {
		return &peer.Shadow{}
	}
	return s.Daemon.Shadow
}

// awaitComparisons waits for more comparisons. It returns all differences that any of them has found to last.
func (m *migration) awaitComparisons(t *testing.T, more int) (found []migrate.Difference) {
	t.Helper()
	last := m.shadowStatus(t).Compared
	lab.Eventually(t, fmt.Sprintf("%d comparisons", more), func() bool {
		s := m.shadowStatus(t)
		if found = append(found, s.First...); s.Compared.After(last) {
			last = s.Compared
			more--
		}
		return more <= 0
	})
	return found
}

// awaitDifferences waits until the differences that last are those whose beginnings are given, in any order.
func (m *migration) awaitDifferences(t *testing.T, want ...string) {
	t.Helper()
	var s *peer.Shadow
	lab.Eventually(t, fmt.Sprintf("%d differences", len(want)), func() bool {
		s = m.shadowStatus(t)
		return !s.Compared.IsZero() && s.Problem == "" && s.Differences == len(want) && s.Passing == 0
	})
	for _, begins := range want {
		if !slices.ContainsFunc(s.First, func(d migrate.Difference) bool { return strings.HasPrefix(d.String(), begins) }) {
			t.Errorf("no %q in %v", begins, s.First)
		}
	}
}

// untouched returns what is in the kernel that nothing may change.
func (m *migration) untouched(t *testing.T) string {
	t.Helper()
	return m.state.save(t) + lab.Run(t, "", "nft", "list", "tables") +
		lab.Run(t, "", "sysctl", "net.netfilter.nf_conntrack_max", "net.ipv4.conf.all.route_localnet")
}

// TestShadowKernel: beside rules of each kind that are as they should be, the shadow mode finds no difference, also
// while Services come and go and kube-proxy follows late; it changes nothing in the kernel, and takes no port of
// kube-proxy's.
func TestShadowKernel(t *testing.T) {
	t.Parallel()
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			// kube-proxy may be late by half a minute, and is not.
			m, daemon := newShadow(t, state, 30, "--min-sync-period=10s")
			before := m.untouched(t)
			m.awaitDifferences(t)
			found := m.awaitComparisons(t, 2)
			if after := m.untouched(t); after != before {
				t.Errorf("it has changed something:\n%s\nbefore:\n%s", after, before)
			}
			for _, services := range []int{31, 40, 12, 30} {
				m.shapes = shapesOf(services)
				m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
				found = append(found, m.awaitComparisons(t, 1)...)
				m.program(t)
				found = append(found, m.awaitComparisons(t, 1)...)
			}
			if found = append(found, m.awaitComparisons(t, 2)...); len(found) > 0 {
				t.Errorf("differences: %v", found)
			}
			m.awaitDifferences(t)
			n := m.shadowStatus(t).Frontends
			frontends := fmt.Sprintf("kube_nft_shadow_frontends %d\n", n)
			if text := answer(shadowMetrics, "/metrics"); n == 0 || !strings.Contains(text, frontends) ||
				!strings.Contains(text, `kube_nft_shadow_differences{kind="endpoints"} 0`) {
				t.Errorf("no %s in metrics:\n%s", frontends, text)
			}
			if text := answer("127.0.0.1:10356", "/readyz"); !strings.Contains(text, " 200 ") {
				t.Errorf("not ready:\n%s", text)
			}
			for _, port := range []string{":10256", ":10249"} {
				if listens := lab.Run(t, "", "ss", "-Hltn"); strings.Contains(listens, port+" ") {
					t.Errorf("it listens at a port of kube-proxy's:\n%s", listens)
				}
			}
			if text := lab.Run(t, "", m.binary, "status"); strings.Contains(text, "\nkube-proxy ") ||
				!strings.HasPrefix(text, "Daemon              healthy, in the shadow mode") {
				t.Errorf("status:\n%s", text)
			}
			daemon.Stop(t)
			if text := daemon.Stderr(); !strings.Contains(text, "shadow mode: kube-nft changes nothing") ||
				strings.Contains(text, "the rules stay") {
				t.Errorf("the log:\n%s", text)
			}
		})
	}
}

// TestShadowBesideCommitsKernel: where a program commits to nf_tables all the time, the shadow mode compares, and finds
// nothing that is not there.
func TestShadowBesideCommitsKernel(t *testing.T) {
	t.Parallel()
	for _, state := range oldStates[1:] {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m, _ := newShadow(t, state, 300)
			const loop = "while sleep 0.02; do nft add table ip other; nft delete table ip other; done"
			lab.Start(t, "sh", "-c", loop)
			m.awaitDifferences(t)
			if found := m.awaitComparisons(t, 3); len(found) > 0 {
				t.Errorf("differences: %v", found)
			}
		})
	}
}

// TestShadowFindsKernel: each difference that is planted is named, with the Service, the frontend and what each of the
// two has; and no other.
func TestShadowFindsKernel(t *testing.T) {
	t.Parallel()
	type edit = func(*corev1.Service, *discoveryv1.EndpointSlice)
	plants := []struct { // each in a Service of its own, by its number; what kube-proxy has is what it was before
		service int
		edit    edit // nil: the Service is deleted
		want    []string
	}{
		{3, func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.244.9.9"}})
		}, []string{"endpoints: 10.96.0.4:80/tcp of shop/service-ip-3:http: kube-proxy lacks 10.244.9.9:8080"}},
		{4, nil, []string{
			"only-kube-proxy: 10.96.0.5:80/tcp of shop/service-4:http: kube-proxy serves it, and no Service has it"}},
		{5, func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) { slice.Endpoints = slice.Endpoints[:2] },
			[]string{"endpoints: 10.96.0.6:80/tcp of shop/service-ip-5:http: kube-nft lacks 10.244.0.18:8080"}},
		{9, func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) { slice.Ports[0].Port = new(int32(8081)) },
			[]string{"endpoints: 10.96.0.10:80/tcp of shop/service-ip-9:http: kube-proxy lacks 10.244.0.28:8081, " +
				"10.244.0.29:8081, 10.244.0.30:8081, kube-nft lacks 10.244.0.28:8080"}},
		{11, func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Ports[0].NodePort = 31999 },
			[]string{"only-kube-proxy: node port 30002/tcp of shop/service-11:http: kube-proxy serves it, and no Service has it",
				"only-kube-nft: node port 31999/tcp of shop/service-ip-11:http: kube-proxy does not serve it"}},
		{10, func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.ExternalIPs = []string{"203.0.113.1"} },
			[]string{"only-kube-nft: 203.0.113.1:80/tcp of shop/service-ip-10:http: kube-proxy does not serve it"}},
		{2, func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Status.LoadBalancer.Ingress = nil },
			[]string{"only-kube-proxy: 198.18.0.3:80/tcp of shop/service-2:http: kube-proxy serves it, and no Service has it"}},
		{8, func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
			slice.Endpoints[1].NodeName, slice.Endpoints[0].NodeName = slice.Endpoints[0].NodeName, nil
		}, []string{"local-endpoints: 198.18.0.9:80/tcp of shop/service-ip-8:http: kube-proxy lacks 10.244.0.26:8080, " +
			"kube-nft lacks 10.244.0.25:8080"}},
		{14, func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
			s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		}, []string{"traffic-policy: 198.18.0.15:80/tcp of shop/service-ip-14:http: kube-proxy has the traffic policy " +
			"Local, kube-nft Cluster"}},
		{13, func(s *corev1.Service, slice *discoveryv1.EndpointSlice) {
			s.Spec.Ports[0].Protocol, slice.Ports[0].Protocol = corev1.ProtocolUDP, new(corev1.ProtocolUDP)
		}, []string{"only-kube-proxy: 10.96.0.14:80/tcp of shop/service-13:http: kube-proxy serves it, and no Service has it",
			"only-kube-nft: 10.96.0.14:80/udp of shop/service-ip-13:http: kube-proxy does not serve it"}},
	}
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m, daemon := newShadow(t, state, 20)
			m.awaitDifferences(t)
			objects, want := migrationObjects(m.shapes), []string(nil)
			for _, p := range plants {
				want = append(want, p.want...)
				at := slices.IndexFunc(objects, func(o any) bool {
					s, ok := o.(*corev1.Service)
					return ok && s.Name == fmt.Sprint("service-ip-", p.service)
				})
				if p.edit == nil {
					objects = slices.Delete(objects, at, at+2) // its slice comes after it
				} else {
					p.edit(objects[at].(*corev1.Service), objects[at+1].(*discoveryv1.EndpointSlice))
				}
			}
			added := m.shapes[0].Endpoint(0, 0)
			objects = append(objects, lab.Service("shop", "new", netip.MustParseAddr("10.96.9.9")),
				lab.Slice("shop", "new", 1, corev1.IPv4Protocol, lab.Addresses(added, 2)))
			want = append(want, "only-kube-nft: 10.96.9.9:80/tcp of shop/new:http: kube-proxy does not serve it, kube-nft "+
				"would with 10.244.0.1:8080, 10.244.0.2:8080")
			m.source.Write(t, "objects.yaml", lab.Manifest(objects...))
			m.awaitDifferences(t, want...)
			text := answer(shadowMetrics, "/metrics")
			for kind, n := range map[migrate.Kind]int{migrate.OnlyKubeProxy: 4, migrate.OnlyKubeNFT: 4, migrate.Endpoints: 3,
				migrate.LocalEndpoints: 1, migrate.Policy: 1} {
				if line := fmt.Sprintf("kube_nft_shadow_differences{kind=%q} %d\n", kind, n); !strings.Contains(text, line) {
					t.Errorf("no %s in metrics:\n%s", line, text)
				}
			}
			daemon.AwaitLog(t, `"kube-proxy's rules and kube-nft's differ"`)
			m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
			m.awaitDifferences(t)
			daemon.AwaitLog(t, "kube-proxy's rules and kube-nft's do not differ any more")
			if n := strings.Count(daemon.Stderr(), `"kube-proxy's rules and kube-nft's differ"`); n != 1 {
				t.Errorf("%d lines about differences", n)
			}
		})
	}
}

// TestShadowEventKernel: the Node has an event that names the differences, and Services have none, though their
// health-check node ports are wrong here. While the API server is away, the shadow mode goes on with what it knows.
func TestShadowEventKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[2], shapes: shapesOf(20), binary: lab.Program(t)}
	m.program(t)
	server := apiserver.New()
	for _, object := range migrationObjects(m.shapes) {
		server.Apply(object.(interface {
			metav1.Object
			runtime.Object
			Marshal() ([]byte, error)
		}))
	}
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lab.Start(t, slices.Concat(asInit, []string{m.binary, "--mode=shadow", "--kubeconfig", kubeconfig,
		"--hostname-override", "node-1"})...)
	m.awaitDifferences(t)
	lab.Run(t, "delete element ip kube-proxy service-nodeports { tcp . 30000 }", "nft", "-f", "-")
	const difference = "only-kube-nft: node port 30000/tcp of shop/service-ip-1:http: kube-proxy does not serve it"
	m.awaitDifferences(t, difference)
	lab.Eventually(t, "the event", func() bool {
		return slices.ContainsFunc(server.Events(), func(e *eventsv1.Event) bool {
			return e.Reason == "ShadowDifferences" && e.Type == "Warning" && strings.Contains(e.Note, difference) &&
				e.Regarding.Kind == "Node" && e.Regarding.Name == "node-1"
		})
	})
	for _, e := range server.Events() {
		if e.Regarding.Kind != "Node" {
			t.Errorf("an event for tenants: %s of %s %s", e.Reason, e.Regarding.Kind, e.Regarding.Name)
		}
	}
	server.Close()
	m.program(t)
	m.awaitDifferences(t)
	if text := answer("127.0.0.1:10356", "/livez"); !strings.Contains(text, " 200 ") {
		t.Errorf("without an API server:\n%s", text)
	}
}

// TestShadowThenTakeoverKernel: after the shadow mode the takeover is the ordinary one, also while the shadow still
// runs; then there is nothing to compare.
func TestShadowThenTakeoverKernel(t *testing.T) {
	t.Parallel()
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			m, shadow := newShadow(t, state, 30)
			m.awaitDifferences(t)
			daemon := m.startDaemon(t)
			awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
			if left := proxys(state.save(t)); left != "" {
				t.Errorf("left of kube-proxy's:\n%s", left)
			}
			shadow.AwaitLog(t, "kube-proxy serves no frontend on this node")
			if text := answer(shadowMetrics, "/metrics"); !strings.Contains(text,
				`kube_nft_shadow_differences{kind="only-kube-nft"} 0`) {
				t.Errorf("metrics:\n%s", text)
			}
			if text := lab.Run(t, "", m.binary, "status"); strings.Contains(text, "shadow") {
				t.Errorf("status asks the shadow, not the daemon that programs:\n%s", text)
			}
			shadow.Stop(t)
			m.program(t) // kube-proxy is back beside a kube-nft that serves: there is something to compare again
			shadow = m.startShadow(t)
			lab.Eventually(t, "a comparison", func() bool {
				return strings.Contains(answer(shadowMetrics, "/metrics"), "kube_nft_shadow_comparison_duration_seconds 0.")
			})
			shadow.Signal(syscall.SIGTERM)
			daemon.Stop(t)
		})
	}
}

// TestShadowAloneKernel: without a kube-proxy there is nothing to compare, and that is said; when it comes, it is
// compared, and again when it has restarted.
func TestShadowAloneKernel(t *testing.T) {
	t.Parallel()
	for _, state := range oldStates {
		t.Run(state.name, func(t *testing.T) {
			t.Parallel()
			newMigrationNet(t)
			m := &migration{state: state, shapes: shapesOf(20), binary: lab.Program(t), source: lab.NewDirectory(t)}
			m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
			daemon := m.startShadow(t)
			daemon.AwaitLog(t, "kube-proxy serves no frontend on this node")
			if s := m.shadowStatus(t); !s.Compared.IsZero() || s.Differences+s.Passing > 0 {
				t.Errorf("without a kube-proxy: %+v", s)
			}
			if text := answer(shadowMetrics, "/metrics"); !strings.Contains(text,
				"kube_nft_shadow_last_comparison_timestamp_seconds 0\n") {
				t.Errorf("metrics:\n%s", text)
			}
			m.program(t)
			m.awaitDifferences(t)
			daemon.AwaitLog(t, "kube-nft compares its rules with kube-proxy's again")
			m.program(t)
			if found := m.awaitComparisons(t, 3); len(found) > 0 {
				t.Errorf("kube-proxy has written the same again: %v", found)
			}
		})
	}
}
