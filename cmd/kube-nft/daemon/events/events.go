// Package events records what users should see with kubectl, about this node and about Services. All nodes of a cluster
// see the same Services, so each node sends few.
//
//	r, err := events.Start(ctx, client, tracker, nodeName, log)
//	r.Starting()
//	r.Node("TablesRepaired", "Program", text)
//	r.Service(namespace, name, other, "FrontendConflict", "Program", text)
package events

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

// Limits of events. A mistake in one Service becomes an event on every node. Events about the node have limits of
// their own.
const (
	interval     = 5 * time.Minute
	perNamespace = 5
	total        = 20
	firsts       = 50 // of namespaces, beyond total
	ofNode       = 10
	repeat       = time.Hour
	maxNote      = 1024 // bytes that the API takes
)

// A Recorder records events. A nil *Recorder records nothing, for runs without an API server.
type Recorder struct {
	// NodeOnly says that events about Services are not recorded: what they say does not concern tenants.
	NodeOnly bool

	recorder         k8sevents.EventRecorder
	tracker          *tracker.Tracker
	nodeName         string
	ofNode, services quota.Quota
}

// Start records events of this node through client until ctx ends. It logs why the API server
// refuses one.
func Start(ctx context.Context, client kubernetes.Interface, t *tracker.Tracker, nodeName string,
	log *zap.Logger) (*Recorder, error) {
	ctx = klog.NewContext(ctx, klog.New(eventLog{log}))
	broadcaster := k8sevents.NewBroadcaster(&k8sevents.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, broadcaster.Shutdown)
	return New(broadcaster.NewRecorder(scheme.Scheme, reporter), t, nodeName), nil
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

// New returns a Recorder that sends events to recorder.
func New(recorder k8sevents.EventRecorder, t *tracker.Tracker, nodeName string) *Recorder {
	return &Recorder{
		recorder: recorder, tracker: t, nodeName: nodeName,
		ofNode: quota.Quota{Interval: interval, PerNamespace: ofNode, Repeat: repeat},
		services: quota.Quota{Interval: interval, PerNamespace: perNamespace, Total: total, Firsts: firsts,
			Repeat: repeat},
	}
}

// Starting records that kube-nft starts on this node.
func (e *Recorder) Starting() { e.node(corev1.EventTypeNormal, "Starting", "StartProxy", "") }

// Node records a warning about this node.
func (e *Recorder) Node(reason, action, note string) {
	e.node(corev1.EventTypeWarning, reason, action, note)
}

// node records an event about this node. Its UID is the Node's name, as kubectl describe expects.
func (e *Recorder) node(kind, reason, action, note string) {
	if e == nil {
		return
	}
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: e.nodeName, UID: types.UID(e.nodeName)}
	e.record(ref, nil, kind, reason, action, note)
}

// Service records a warning about a Service; related, if not empty, is another Service involved.
func (e *Recorder) Service(namespace, name string, related tracker.PortID, reason, action, note string) {
	if e == nil || e.NodeOnly {
		return
	}
	var other runtime.Object
	if related.Service != "" {
		other = e.serviceRef(related.Namespace, related.Service)
	}
	e.record(e.serviceRef(namespace, name), other, corev1.EventTypeWarning, reason, action, note)
}

func (e *Recorder) serviceRef(namespace, name string) *corev1.ObjectReference {
	uid, _ := e.tracker.ServiceUID(namespace, name)
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: name,
		UID: types.UID(uid)}
}

// Refused records what could not be used of a Service, or of the annotations of an EndpointSlice, which
// people write. Other invalid fields stay in the log, because people look at Services.
func (e *Recorder) Refused(err error) {
	field, ok := errors.AsType[*tracker.InvalidField](err)
	if !ok || e == nil || e.NodeOnly {
		return
	}
	const reason, action = "FieldRefused", "Read"
	switch {
	case field.Kind == "Service":
		e.Service(field.Namespace, field.Name, tracker.PortID{}, reason, action, field.Error())
	case field.Kind == "EndpointSlice" && strings.HasPrefix(field.Field, "metadata.annotations["):
		ref := &corev1.ObjectReference{
			APIVersion: "discovery.k8s.io/v1", Kind: field.Kind,
			Namespace: field.Namespace, Name: field.Name, UID: types.UID(field.UID),
		}
		e.record(ref, nil, corev1.EventTypeWarning, reason, action, field.Error())
	}
}

// record sends an event unless the limits forbid it.
func (e *Recorder) record(regarding *corev1.ObjectReference, related runtime.Object,
	kind, reason, action, note string) {
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
