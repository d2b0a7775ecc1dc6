package move

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// eventTimeout is how long the API server may take for an event. The takeover goes on meanwhile.
const eventTimeout = 10 * time.Second

// A lateError says how long a command has waited; what it has waited for stands before it.
type lateError string

func (e lateError) Error() string { return string(e) }

// Is makes it a context.DeadlineExceeded.
func (e lateError) Is(target error) bool { return target == context.DeadlineExceeded }

// withTimeout bounds a command by its flag --timeout.
func withTimeout(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, timeout, lateError(fmt.Sprintf("waited for %s, which --timeout allows", timeout)))
}

// maxNote is how many bytes of a note the API takes.
const maxNote = 1024

// parsePod reads --pod as NAMESPACE/NAME/UID. Without it the object of events is the Node.
func parsePod(pod, node string) (*corev1.ObjectReference, error) {
	if pod == "" { // the UID of a Node in events is its name
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}, nil
	}
	parts := strings.Split(pod, "/")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" {
		return nil, config.Usagef("--pod %s: expected NAMESPACE/NAME/UID", pod)
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: parts[0], Name: parts[1], UID: types.UID(parts[2])}, nil
}

// recordWaiting records an event that says for whom a takeover waits, about a pod or a Node.
func recordWaiting(ctx context.Context, c *config.Config, regarding *corev1.ObjectReference, note string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, eventTimeout, lateError("no answer within "+eventTimeout.String()))
	defer cancel()
	client, err := c.Client()
	if err != nil {
		return err
	}
	namespace := regarding.Namespace
	if namespace == "" {
		namespace = metav1.NamespaceDefault // of events about objects that have none
	}
	now := time.Now()
	event := &eventsv1.Event{
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s.%x", regarding.Name, now.UnixNano())},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: "kube-nft", ReportingInstance: "kube-nft-" + c.NodeName,
		Type: corev1.EventTypeWarning, Reason: "WaitingForKubeProxy", Action: "TakeOver",
		Regarding: *regarding,
		Note:      strings.ToValidUTF8(note[:min(len(note), maxNote)], ""),
	}
	_, err = client.EventsV1().Events(namespace).Create(ctx, event, metav1.CreateOptions{})
	return err
}
