package daemon

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

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

// TestRefusedExternalIPIsAnEvent: kubectl describe of the Service shows which address is not served and what
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

// TestWhatTheQuotaLeavesOut: a Service over the quota and an annotation that is not followed are no invalid fields.
// Each is counted once while it lasts, and has an event of its own kind.
func TestWhatTheQuotaLeavesOut(t *testing.T) {
	t.Parallel()
	lab.Require(t)
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	slotted, large := lab.Service("shop", "slotted", firstWeb), lab.Service("shop", "large", firstWeb.Next())
	slotted.Annotations = map[string]string{"kube-nft.io/lb-algorithm": "maglev"}
	large.CreationTimestamp.Time = slotted.CreationTimestamp.Add(time.Hour)
	few := large.DeepCopy()
	for i := range int32(15) {
		large.Spec.Ports = append(large.Spec.Ports,
			corev1.ServicePort{Name: fmt.Sprint("more-", i), Protocol: corev1.ProtocolTCP, Port: 1000 + i})
	}
	server, p := startWithServer(t, func(s *apiserver.Server) {
		s.Apply(lab.Node(lab.NodeName), slotted, large,
			lab.Slice("shop", "slotted", 1, lab.FamilyOf(firstWeb), lab.Addresses(webPods, 3)))
	}, "--namespace-quota=100")
	lab.Eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	check := func(each int) {
		t.Helper()
		checkScrape(t, fmt.Sprint("kube_nft_unserved_services ", each), fmt.Sprint("kube_nft_unmet_annotations ", each),
			`kube_nft_refused_fields_total{kind="Service"} 0`)
		var status struct {
			Daemon struct{ RefusedFields, UnmetAnnotations, UnservedServices int }
		}
		out := runProxy(t, "status", "-o", "json")
		if err := json.Unmarshal([]byte(out.Stdout), &status); err != nil {
			t.Fatalf("%v\n%s", err, out.Stdout)
		}
		if d := status.Daemon; d.RefusedFields != 0 || d.UnmetAnnotations != each || d.UnservedServices != each {
			t.Errorf("status has %+v, want %d unmet annotations and unserved Services, and no refused field", d, each)
		}
	}
	check(1)
	for reason, service := range map[string]string{"ServiceUnserved": "large", "AnnotationUnmet": "slotted"} {
		lab.Eventually(t, "the event "+reason, func() bool {
			return slices.ContainsFunc(server.Events(), func(e *eventsv1.Event) bool {
				return e.Reason == reason && e.Regarding.Kind == "Service" && e.Regarding.Name == service &&
					strings.Contains(e.Note, "--namespace-quota")
			})
		})
	}
	for _, e := range server.Events() {
		if e.Reason == "FieldRefused" {
			t.Errorf("the event %s: %s", e.Reason, e.Note)
		}
	}
	slotted.Annotations = nil
	server.Apply(slotted, few)
	check(0)
	if t.Failed() {
		t.Log(p.Stderr())
	}
}
