package cluster

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// A streamer runs a command of the program in a pod until it ends, or ctx does. stdin, which may be nil, ends with ctx.
type streamer func(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader, stdout, stderr io.Writer) error

// A runner runs a command of the program in a pod until it ends. stdout is what it prints, also if it ends with an
// error.
type runner func(ctx context.Context, pod *corev1.Pod, args []string) (stdout []byte, err error)

// maxAnswer bounds what one node may print.
const maxAnswer = 16 << 20

// errTooLong ends a command that prints more.
var errTooLong = fmt.Errorf("its answer is longer than %d MiB", maxAnswer>>20)

// errNoJSON is the problem of a node that answers something else.
var errNoJSON = errors.New("its answer is not the JSON that kube-nft prints")

// A bounded buffer refuses what is too long.
type bounded struct{ bytes.Buffer }

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxAnswer {
		return 0, errTooLong
	}
	return b.Buffer.Write(p)
}

// collect is the runner of a streamer. It returns when ctx ends, though a WebSocket to a kubelet that does not answer
// cannot be interrupted.
func (s streamer) collect(ctx context.Context, pod *corev1.Pod, args []string) ([]byte, error) {
	var stdout bounded
	ended := make(chan error, 1)
	go func() { ended <- s(ctx, pod, args, nil, &stdout, io.Discard) }()
	select {
	case err := <-ended:
		return stdout.Bytes(), err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// execIn returns a streamer that uses the API server's exec.
func execIn(client kubernetes.Interface, settings *rest.Config) streamer {
	return func(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
		request := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
			SubResource("exec").VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: append([]string{program}, args...), Stdin: stdin != nil, Stdout: true,
			Stderr: true,
		}, scheme.ParameterCodec)
		url := request.URL()
		// As kubectl: WebSockets, and SPDY for an API server before Kubernetes 1.31 or a proxy that knows no other.
		socket, err := remotecommand.NewWebSocketExecutor(settings, "GET", url.String())
		if err != nil {
			return err
		}
		spdy, err := remotecommand.NewSPDYExecutor(settings, "POST", url)
		if err != nil {
			return err
		}
		executor, err := remotecommand.NewFallbackExecutor(socket, spdy, func(err error) bool {
			return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
		})
		if err != nil {
			return err
		}
		var said bounded
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{
			Stdin: stdin, Stdout: stdout, Stderr: io.MultiWriter(&said, stderr),
		})
		if said := strings.TrimSpace(said.String()); said != "" && errors.As(err, new(exec.ExitError)) {
			err = fmt.Errorf("%w: %s", err, said)
		}
		if err != nil && ctx.Err() == nil && !errors.As(err, new(exec.ExitError)) {
			// Executors keep only the text of a refusal. The same request without an upgrade runs nothing, and has the reason.
			if refusal := request.Do(ctx).Error(); apierrors.IsForbidden(refusal) {
				return refusal
			}
		}
		return err
	}
}

// read runs a command in a pod and returns what it prints. found says that the error is none: the command has found
// something, which its text says, and ended with 1.
func (c *cluster) read(ctx context.Context, pod *corev1.Pod, args []string) (text []byte, found bool, err error) {
	text, err = c.run(ctx, pod, args)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	ended, ok := errors.AsType[exec.CodeExitError](err)
	return text, ok && ended.Code == foundCode && len(text) > 0, err
}

// foundCode is the exit code of a command that has found something: docs/operations.md, exit codes.
const foundCode = 1

// decode runs a command in a pod that prints a JSON document. Commands that find something end with an exit code that
// is not 0, and print it all the same: only without a document, their error counts.
func (c *cluster) decode(ctx context.Context, pod *corev1.Pod, document any, args ...string) error {
	text, _, err := c.read(ctx, pod, args)
	if json.Unmarshal(text, document) == nil {
		return nil
	}
	return cmp.Or(err, errNoJSON)
}

// late is the problem of a node that does not answer in time.
func (c *cluster) late() error { return fmt.Errorf("no answer within %s", c.timeout) }

// ask asks all members with a pod that runs, side by side, and within the timeout each. A question returns why a node
// did not answer: that is for its row. But a right that the user lacks on one node is missing on all: ask stops then,
// and returns an error.
func (c *cluster) ask(ctx context.Context, members []member,
	question func(ctx context.Context, i int, pod *corev1.Pod) error) error {
	group, all := errgroup.WithContext(ctx)
	group.SetLimit(c.parallel)
	for i := range members {
		if !members[i].answers() {
			continue
		}
		group.Go(func() error {
			if all.Err() != nil {
				return nil
			}
			ctx, cancel := context.WithTimeoutCause(all, c.timeout, c.late())
			defer cancel()
			if err := question(ctx, i, members[i].pods[0]); apierrors.IsForbidden(err) {
				return err
			}
			return nil
		})
	}
	return permitted(group.Wait())
}

// permitted names the rule that the user lacks, if that is the error.
func permitted(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("your rights are not enough: %w. deploy/plugin-rbac.yaml has the rules that kubectl kube-nft needs",
		err)
}

// answers reports whether a member has a pod that can answer.
func (m *member) answers() bool { return len(m.pods) > 0 && rank(m.pods[0]) == 0 }
