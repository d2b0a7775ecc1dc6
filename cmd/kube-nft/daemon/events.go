package daemon

import (
	"context"
	"errors"
	"strings"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	k8sevents "k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
)

// reporter is the reporting controller of our events.
const reporter = "kube-nft"

// Types of events.
const (
	normal  = corev1.EventTypeNormal
	warning = corev1.EventTypeWarning
)

// Limits of events. All nodes of a cluster see the same Services, so a mistake in one Service
// becomes an event on every node: each node sends few. Events about the node have limits of their own.
const (
	eventInterval      = 5 * time.Minute
	eventsPerNamespace = 5
	eventsTotal        = 20
	eventsFirsts       = 50 // of namespaces, beyond eventsTotal
	eventsOfNode       = 10
	eventRepeat        = time.Hour
	maxNote            = 1024 // bytes that the API takes
)

// events records what users should see with kubectl. A nil *events records nothing, for runs
// without an API server.
type events struct {
	recorder         k8sevents.EventRecorder
	tracker          *tracker.Tracker
	nodeName         string
	nodeOnly         bool // events about Services are not recorded: what they say does not concern tenants
	ofNode, services quota.Quota
}

// startEvents records events of this node through client until ctx ends. It logs why the API server
// refuses one.
func startEvents(ctx context.Context, client kubernetes.Interface, t *tracker.Tracker, nodeName string,
	log *zap.Logger) (*events, error) {
	ctx = klog.NewContext(ctx, klog.New(eventLog{log}))
	broadcaster := k8sevents.NewBroadcaster(&k8sevents.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return newEvents(broadcaster.NewRecorder(scheme.Scheme, reporter), t, nodeName), nil
}

// An eventLog logs what client-go reports on events. client-go repeats an error at each attempt;
// its values repeat the event.
type eventLog struct{ log *zap.Logger }

func (eventLog) Init(klog.RuntimeInfo)            {}
func (eventLog) Enabled(level int) bool           { return level == 0 }
func (eventLog) Info(int, string, ...any)         {}
func (e eventLog) WithValues(...any) klog.LogSink { return e }
func (e eventLog) WithName(string) klog.LogSink   { return e }
func (e eventLog) Error(err error, text string, _ ...any) {
	e.log.Warn("cannot record an event", zap.String("problem", text), zap.Error(informer.Concise(err)))
}

func newEvents(recorder k8sevents.EventRecorder, t *tracker.Tracker, nodeName string) *events {
	return &events{
		recorder: recorder,
		tracker:  t,
		nodeName: nodeName,

		ofNode: quota.Quota{Interval: eventInterval, PerNamespace: eventsOfNode, Repeat: eventRepeat},
		services: quota.Quota{
			Interval: eventInterval, Repeat: eventRepeat,
			PerNamespace: eventsPerNamespace, Total: eventsTotal, Firsts: eventsFirsts,
		},
	}
}

// node records an event about this node. Its UID is the Node's name, as kubectl describe expects.
func (e *events) node(kind, reason, action, note string) {
	if e == nil {
		return
	}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.nodeName, UID: types.UID(e.nodeName)}
	e.record(ref, nil, kind, reason, action, note)
}

// service records a warning about a Service; related, if not empty, is another Service involved.
func (e *events) service(namespace, name string, related tracker.PortID, reason, action, note string) {
	if e == nil || e.nodeOnly {
		return
	}
	var other runtime.Object
	if related.Service != "" {
		other = e.serviceRef(related.Namespace, related.Service)
	}
	e.record(e.serviceRef(namespace, name), other, warning, reason, action, note)
}

func (e *events) serviceRef(namespace, name string) *corev1.ObjectReference {
	uid, _ := e.tracker.ServiceUID(namespace, name)
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name,
		UID: types.UID(uid)}
}

// refused records what could not be used of a Service, or of the annotations of an EndpointSlice, which
// people write. Other invalid fields stay in the log, because people look at Services.
func (e *events) refused(err error) {
	var field *tracker.InvalidField
	if e == nil || e.nodeOnly || !errors.As(err, &field) {
		return
	}
	const reason, action = "FieldRefused", "Read"
	switch {
	case field.Kind == "Service":
		e.service(field.Namespace, field.Name, tracker.PortID{}, reason, action, field.Error())
	case field.Kind == "EndpointSlice" && strings.HasPrefix(field.Field, "metadata.annotations["):
		ref := &corev1.ObjectReference{
			APIVersion: "discovery.k8s.io/v1", Kind: field.Kind,
			Namespace: field.Namespace, Name: field.Name, UID: types.UID(field.UID),
		}
		e.record(ref, nil, warning, reason, action, field.Error())
	}
}

// record sends an event unless the limits forbid it.
func (e *events) record(regarding *corev1.ObjectReference, related runtime.Object, kind, reason, action, note string) {
	note = nft.Visible(note) // it may hold names of others, and kubectl prints it
	note = strings.ToValidUTF8(note[:min(len(note), maxNote)], "")
	limit := &e.services
	if regarding.Namespace == "" {
		limit = &e.ofNode
	}
	if limit.Allow(regarding.Namespace, strings.Join([]string{regarding.Kind, regarding.Name, reason, note}, " ")) {
		e.recorder.Eventf(regarding, related, kind, reason, action, "%s", note)
	}
}
