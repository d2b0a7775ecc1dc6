package apiserver

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

// TestCommandsInPods: a client that uses WebSockets, or SPDY, gets what a command prints and its exit code, and can end
// the command's input.
func TestCommandsInPods(t *testing.T) {
	server, url := start(t)
	settings := &rest.Config{Host: url}
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		t.Fatal(err)
	}
	server.Apply(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
	server.RunCommands(func(_ context.Context, pod *corev1.Pod, args []string, stdin io.Reader,
		stdout, stderr io.Writer) int {
		said, _ := io.ReadAll(stdin)
		_, _ = io.WriteString(stdout, pod.Name+" "+strings.Join(args, " ")+" "+string(said))
		_, _ = io.WriteString(stderr, "a warning")
		return len(args)
	})
	request := func(pod string, stdin bool) string {
		return client.CoreV1().RESTClient().Get().Resource("pods").Namespace("shop").Name(pod).SubResource("exec").
			VersionedParams(&corev1.PodExecOptions{Container: "c", Command: []string{"echo", "x"}, Stdin: stdin, Stdout: true,
				Stderr: true}, scheme.ParameterCodec).URL().String()
	}
	run := func(protocol, pod string, stdin io.Reader) (stdout, stderr bytes.Buffer, err error) {
		executor, err := remotecommand.NewWebSocketExecutor(settings, "GET", request(pod, stdin != nil))
		if protocol == "SPDY" {
			address := client.CoreV1().RESTClient().Get().AbsPath("/").URL()
			at, parseErr := address.Parse(request(pod, stdin != nil))
			if parseErr != nil {
				t.Fatal(parseErr)
			}
			executor, err = remotecommand.NewSPDYExecutor(settings, "POST", at)
		}
		if err != nil {
			t.Fatal(err)
		}
		err = executor.StreamWithContext(t.Context(),
			remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr})
		return stdout, stderr, err
	}
	for _, protocol := range []string{"WebSocket", "SPDY"} {
		for want, stdin := range map[string]io.Reader{"web echo x ": nil, "web echo x hello": strings.NewReader("hello")} {
			stdout, stderr, err := run(protocol, "web", stdin)
			var ended exec.CodeExitError
			if !errors.As(err, &ended) || ended.Code != 2 || stdout.String() != want || stderr.String() != "a warning" {
				t.Errorf("%s: %q, %q, %v; want %q and exit code 2", protocol, &stdout, &stderr, err, want)
			}
		}
		if _, _, err := run(protocol, "none", nil); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Errorf("%s: a pod that is not there: %v", protocol, err)
		}
		server.Forbid("pods/exec", true)
		if _, _, err := run(protocol, "web", nil); err == nil || !strings.Contains(err.Error(), "forbidden") {
			t.Errorf("%s: forbidden: %v", protocol, err)
		}
		server.Forbid("pods/exec", false)
	}
	if _, err := client.CoreV1().Pods("shop").Get(t.Context(), "web", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// TestLogsOfPods: the log of a container, and of the one before it.
func TestLogsOfPods(t *testing.T) {
	server, url := start(t)
	client := dial(t, url, "application/json")
	server.Apply(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}})
	server.ServeLogs(func(pod *corev1.Pod, options *corev1.PodLogOptions) (string, bool) {
		return pod.Name + " " + options.Container, !options.Previous
	})
	for previous, want := range map[bool]string{false: "web c", true: ""} {
		text, err := client.CoreV1().Pods("shop").GetLogs("web", &corev1.PodLogOptions{Container: "c", Previous: previous}).
			Do(t.Context()).Raw()
		if !previous && string(text) != want || previous != apierrors.IsBadRequest(err) {
			t.Errorf("previous %t: %q, %v", previous, text, err)
		}
	}
}
