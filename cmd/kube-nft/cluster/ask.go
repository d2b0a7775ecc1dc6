package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
	"k8s.io/streaming/pkg/httpstream"
)

// A streamer runs a command of the program in a pod until it ends, or ctx does. stdin, which may be nil, ends with ctx.
type streamer func(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader, stdout io.Writer) error

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

// collect is the runner of a streamer.
func (s streamer) collect(ctx context.Context, pod *corev1.Pod, args []string) ([]byte, error) {
	var stdout bounded
	err := s(ctx, pod, args, nil, &stdout)
	return stdout.Bytes(), err
}

// execIn returns a streamer that uses the API server's exec.
func execIn(client kubernetes.Interface, settings *rest.Config) streamer {
	return func(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader, stdout io.Writer) error {
		url := client.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
			SubResource("exec").VersionedParams(&corev1.PodExecOptions{
			Container: container, Command: append([]string{program}, args...), Stdin: stdin != nil, Stdout: true,
			Stderr: true,
		}, scheme.ParameterCodec).URL()
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
		var stderr bounded
		err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: &stderr})
		if said := strings.TrimSpace(stderr.String()); said != "" && errors.As(err, new(exec.ExitError)) {
			err = fmt.Errorf("%w: %s", err, said)
		}
		return err
	}
}

// decode runs a command in a pod that prints a JSON document. Commands that find something end with an exit code that
// is not 0, and print it all the same: only without a document, their error counts.
func (c *cluster) decode(ctx context.Context, pod *corev1.Pod, document any, args ...string) error {
	stdout, err := c.run(ctx, pod, args)
	if json.Unmarshal(stdout, document) == nil {
		return nil
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer within %s", c.timeout)
	case err == nil:
		return errNoJSON
	}
	return err
}

// ask asks all members with a pod that runs, side by side, and within the timeout each.
func (c *cluster) ask(ctx context.Context, members []member,
	question func(ctx context.Context, i int, pod *corev1.Pod)) {
	var group errgroup.Group
	group.SetLimit(c.parallel)
	for i := range members {
		if len(members[i].pods) == 0 || rank(members[i].pods[0]) > 0 {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, c.timeout)
			defer cancel()
			question(ctx, i, members[i].pods[0])
			return nil
		})
	}
	_ = group.Wait() // what a node lacks is in its row
}
