package events

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-nft/kube-nft/tracker"
)

// A recorder keeps events as text.
type recorder []string

func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	text := func(object runtime.Object) string {
		ref, ok := object.(*corev1.ObjectReference)
		if !ok {
			return "-"
		}
		return fmt.Sprintf("%s %s/%s (%s)", ref.Kind, ref.Namespace, ref.Name, ref.UID)
	}
	*r = append(*r, fmt.Sprintf("%s, %s: %s %s %s: %s", text(regarding), text(related), kind, reason, action,
		fmt.Sprintf(note, args...)))
}

func newTestRecorder(t *testing.T) (*Recorder, *recorder) {
	tr := tracker.New(tracker.Config{NodeName: "node"})
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "1-2-3"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1",
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	if err := tr.SetService(service); err != nil {
		t.Fatal(err)
	}
	recorded := new(recorder)
	return New(recorded, tr, "node"), recorded
}

func TestEventTexts(t *testing.T) {
	e, recorded := newTestRecorder(t)
	e.Starting()
	e.Service("shop", "gone", tracker.PortID{Namespace: "shop", Service: "web"}, "FrontendConflict", "Program",
		"100%s taken")
	e.Refused(&tracker.InvalidField{Kind: "Service", Namespace: "shop", Name: "web", Field: "spec.ports[0]", Reason: "no"})
	e.Refused(&tracker.InvalidField{Kind: "EndpointSlice", Namespace: "shop", Name: "web-1", Field: "endpoints",
		Reason: "no"})
	e.Refused(&tracker.InvalidField{Kind: "EndpointSlice", Namespace: "shop", Name: "web-1", UID: "4-5",
		Field: "metadata.annotations[kube-nft.io/x]", Reason: "no"})
	want := []string{
		"Node /node (node), -: Normal Starting StartProxy: ",
		"Service shop/gone (), Service shop/web (1-2-3): Warning FrontendConflict Program: 100%s taken",
		"Service shop/web (1-2-3), -: Warning FieldRefused Read: Service shop/web: spec.ports[0]: no",
		"EndpointSlice shop/web-1 (4-5), -: Warning FieldRefused Read: EndpointSlice shop/web-1: " +
			"metadata.annotations[kube-nft.io/x]: no",
	}
	if got := strings.Join(*recorded, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

func TestNoEventsWithoutAPIServer(t *testing.T) {
	var e *Recorder
	e.Starting()
	e.Service("shop", "web", tracker.PortID{}, "FieldRefused", "Read", "")
	e.Refused(&tracker.InvalidField{Kind: "Service"})
}

func TestEventsAreFew(t *testing.T) {
	e, recorded := newTestRecorder(t)
	for range 100 {
		e.Node("TablesRepaired", "Program", "the same")
	}
	if len(*recorded) != 1 {
		t.Errorf("%d events for 100 of the same, want 1", len(*recorded))
	}
	for i := range 2000 {
		e.Node("TablesRepaired", "Program", fmt.Sprint(i))
	}
	if len(*recorded) != ofNode {
		t.Errorf("%d events in a burst, want %d", len(*recorded), ofNode)
	}
}

// TestEventsOfOneNamespaceAreFew: they leave room for those of others.
func TestEventsOfOneNamespaceAreFew(t *testing.T) {
	e, recorded := newTestRecorder(t)
	for i := range 100 {
		e.Service("bad", fmt.Sprint(i), tracker.PortID{}, "FrontendConflict", "Program", "taken")
	}
	if len(*recorded) != perNamespace {
		t.Errorf("%d events of one namespace, want %d", len(*recorded), perNamespace)
	}
	e.Service("good", "web", tracker.PortID{}, "FrontendConflict", "Program", "taken")
	e.Node("TablesRepaired", "Program", "")
	if len(*recorded) != perNamespace+2 {
		t.Errorf("%d events, want one of another namespace and one of the node among them: %v", len(*recorded), *recorded)
	}
	for i := range 10000 {
		e.Service(fmt.Sprint("ns-", i), "web", tracker.PortID{}, "FrontendConflict", "Program", "taken")
	}
	if want := 1 + total + firsts; len(*recorded) != want {
		t.Errorf("%d events, want %d", len(*recorded), want)
	}
	e.Node("TablesRepaired", "Program", "again")
	if last := (*recorded)[len(*recorded)-1]; !strings.HasSuffix(last, "again") {
		t.Errorf("namespaces have used up the node's events: the last is %s", last)
	}
}

// TestEventsOfATenant: a tenant with some namespaces that uses up what namespaces share leaves
// the others the first event of each.
func TestEventsOfATenant(t *testing.T) {
	e, recorded := newTestRecorder(t)
	for namespace := range 10 {
		for i := range 100 {
			e.Service(fmt.Sprint("bad-", namespace), fmt.Sprint(i), tracker.PortID{}, "FrontendConflict", "Program", "taken")
		}
	}
	used := len(*recorded)
	if used < total || used >= total+10 {
		t.Errorf("%d events of ten namespaces", used)
	}
	for namespace := range 10 {
		e.Service(fmt.Sprint("good-", namespace), "web", tracker.PortID{}, "FrontendConflict", "Program", "taken")
	}
	if got := len(*recorded) - used; got != 10 {
		t.Errorf("%d events of ten other namespaces, want 10", got)
	}
}

func TestEventsAreRepeatedLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, recorded := newTestRecorder(t)
		for _, pause := range []time.Duration{0, repeat - 1, 1} {
			time.Sleep(pause) // of the bubble's clock
			e.Node("TablesRepaired", "Program", "the same")
		}
		if len(*recorded) != 2 {
			t.Errorf("%d events, want one now and one after %s", len(*recorded), repeat)
		}
	})
}

func TestLongNotesAreCut(t *testing.T) {
	e, recorded := newTestRecorder(t)
	e.Node("TablesRepaired", "Program", strings.Repeat("x", 5000))
	if got := len((*recorded)[0]); got > 1100 {
		t.Errorf("%d bytes, the API takes 1024 of a note", got)
	}
}

// TestEventsReachTheServer sends events through the client to a server that looks at them.
func TestEventsReachTheServer(t *testing.T) {
	received := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event eventsv1.Event
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Error(err)
		}
		received <- fmt.Sprintf("%s %s: %s %s by %s: %s", r.Method, r.URL.Path, event.Type, event.Reason,
			event.ReportingController, event.Note)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		json.NewEncoder(w).Encode(event)
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	e, err := Start(ctx, client, tracker.New(tracker.Config{NodeName: "node"}), "node", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	e.Service("shop", "web", tracker.PortID{}, "FieldRefused", "Read", "spec.ports[0]: no")
	want := "POST /apis/events.k8s.io/v1/namespaces/shop/events: Warning FieldRefused by kube-nft: spec.ports[0]: no"
	if got := <-received; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

// TestEventLog: what client-go says of events is a line of our log, without the event.
func TestEventLog(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	logger := klog.New(eventLog{zap.New(core)}).WithName("n").WithValues("event", 1)
	logger.Info("Event occurred", "event", 1)
	logger.V(5).Info("Server rejected event")
	logger.Error(errors.New("connection refused"), "Unable to write event", "event", 1)
	lines := logs.All()
	if len(lines) != 1 || lines[0].Message != "cannot record an event" {
		t.Fatalf("log %v", lines)
	}
	want := map[string]any{"problem": "Unable to write event", "error": "connection refused"}
	if diff := cmp.Diff(want, lines[0].ContextMap()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestEventIsVisible: kubectl prints notes as they are.
func TestEventIsVisible(t *testing.T) {
	e, recorded := newTestRecorder(t)
	e.Node("Reason", "Action", "\x1b[2J"+strings.Repeat("\x9b", maxNote))
	if got := strings.Join(*recorded, ""); strings.Contains(got, "\x1b") || strings.Contains(got, "\x9b") ||
		!strings.Contains(got, `\u001b[2J\x9b`) || len(got) > maxNote+100 {
		t.Errorf("got %q", got)
	}
}
