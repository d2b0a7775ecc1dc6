package daemon

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// startWithServer starts an API server that has objects, and kube-nft.
func startWithServer(t *testing.T, apply func(*apiserver.Server), flags ...string) (*apiserver.Server, *lab.Process) {
	t.Helper()
	server := apiserver.New()
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	apply(server)
	return server, lab.Start(t, append([]string{lab.Program(t), "--hostname-override", lab.NodeName, "--kubeconfig",
		kubeconfig}, flags...)...)
}

// TestNodeWithoutNetwork gives the Node what tells load balancers to look elsewhere, and takes it away
// again; /livez stays well, as a restart would not help.
func TestNodeWithoutNetwork(t *testing.T) {
	t.Parallel()
	lab.Require(t)
	lab.New(t)
	lab.Open(t, kernel.Open)
	server, p := startWithServer(t, func(s *apiserver.Server) { s.Apply(lab.Node(lab.NodeName)) })
	awaitCode(t, p, "127.0.0.1:10256", "/readyz", 200)
	awaitCode(t, p, "127.0.0.1:10256", "/healthz", 200)
	for i, edit := range []func(*corev1.Node){
		func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue}}
		},
		func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule}}
		},
		func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
		},
	} {
		node := lab.Node(lab.NodeName)
		edit(node)
		server.Apply(node)
		awaitCode(t, p, "127.0.0.1:10256", "/healthz", 503)
		_, body, err := fetch("127.0.0.1:10256", "/healthz")
		var report struct {
			NodeEligible, Healthy *bool
			Status                map[string]struct{ Healthy bool }
		}
		if json.Unmarshal([]byte(body), &report) != nil || report.NodeEligible == nil || *report.NodeEligible ||
			report.Healthy == nil || !*report.Healthy || !report.Status["IPv4"].Healthy {
			t.Errorf("/healthz says %s, %v", body, err)
		}
		awaitCode(t, p, "127.0.0.1:10256", "/livez", 200)
		lab.Eventually(t, "a log line that says why", func() bool {
			return strings.Count(p.Stderr(), "/healthz returns 503: node not eligible") == i+1
		})
		fine := lab.Node(lab.NodeName)
		fine.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse}}
		server.Apply(fine)
		awaitCode(t, p, "127.0.0.1:10256", "/healthz", 200)
	}
}

// TestRefusedExternalIPIsAnEvent: whoever looks at the Service sees which address is not served and what
// to do.
func TestRefusedExternalIPIsAnEvent(t *testing.T) {
	t.Parallel()
	lab.Require(t)
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	server, p := startWithServer(t, func(s *apiserver.Server) {
		web := lab.Service("shop", "web", firstWeb)
		web.Spec.ExternalIPs = []string{"203.0.113.5"}
		s.Apply(lab.Node(lab.NodeName), web, lab.Slice("shop", "web", 1, lab.FamilyOf(firstWeb), lab.Addresses(webPods, 3)))
	}, "--feature-gates=AllowServiceExternalIPs=false")
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	lab.Eventually(t, "the event", func() bool {
		return slices.ContainsFunc(server.Events(), func(e *eventsv1.Event) bool {
			return e.Reason == "FieldRefused" && e.Regarding.Kind == "Service" && e.Regarding.Name == "web" &&
				strings.Contains(e.Note, "203.0.113.5 is not served: the nodes allow none as external IPs") &&
				strings.Contains(e.Note, "--external-ips")
		})
	})
	checkScrape(t, `kube_nft_refused_fields_total{kind="Service"} 1`)
	if t.Failed() {
		t.Log(p.Stderr())
	}
}
