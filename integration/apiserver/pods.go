package apiserver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// A Command does what a container does when a client runs a command in it, and returns the exit code. As in a cluster,
// it goes on when the client has gone: then stdin ends, and what it writes fails. ctx ends with the server.
type Command func(ctx context.Context, pod *corev1.Pod, args []string, stdin io.Reader, stdout, stderr io.Writer) int

// Logs returns the log of a pod's container, or of the one that ended before it; false if there is none.
type Logs func(pod *corev1.Pod, options *corev1.PodLogOptions) (text string, ok bool)

// RunCommands lets clients run commands in the pods that there are.
func (s *Server) RunCommands(run Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.command = run
}

// ServeLogs lets clients read the logs of the pods that there are.
func (s *Server) ServeLogs(read Logs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logs = read
}

// RefuseWebSockets lets clients run commands over SPDY alone, as a server before Kubernetes 1.30, or a proxy.
func (s *Server) RefuseWebSockets() {
	s.change(func() { s.faults.noWebSockets = true })
}

// ofPod answers a request for a subresource of a Pod.
func (s *Server) ofPod(w *statusRecorder, r *http.Request, request Request) statusError {
	s.mu.Lock()
	e := s.collections["Pod"].entries[key(request.Namespace, request.Name)]
	command, logs, noWebSockets := s.command, s.logs, s.faults.noWebSockets
	s.mu.Unlock()
	if e == nil || request.Resource != "pods" {
		return apierrors.NewNotFound(schema.GroupResource{Resource: request.Resource}, request.Name)
	}
	pod, query := e.object.(*corev1.Pod).DeepCopy(), r.URL.Query()
	switch {
	case request.Subresource == "log" && logs != nil:
		options := &corev1.PodLogOptions{Container: query.Get("container"), Previous: query.Get("previous") == "true"}
		text, ok := logs(pod, options)
		if !ok {
			return apierrors.NewBadRequest("no such log of container " + options.Container + " in pod " + pod.Name)
		}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, text) // the client may be gone
		return nil
	case request.Subresource != "exec" || command == nil:
		return errNotServed()
	case wsstream.IsWebSocketRequest(r) && noWebSockets:
		return apierrors.NewBadRequest("switched on by RefuseWebSockets")
	}
	var open func(*statusRecorder, *http.Request) *terminal
	switch {
	case wsstream.IsWebSocketRequest(r):
		open = openWebSocket
	case httpstream.IsUpgradeRequest(r):
		open = openSPDY
	default:
		return apierrors.NewBadRequest("exec: expected a request to upgrade the connection")
	}
	t := open(w, r)
	if t == nil {
		return nil // the client has an answer, or is gone
	}
	defer t.close()
	code := command(s.ended, pod, query["command"], t.stdin, t.stdout, t.stderr)
	_ = json.NewEncoder(t.result).Encode(exitStatus(code)) // the client may be gone
	return nil
}

// exitStatus tells a client how a command ended. Source: version 4 of the protocol, remotecommand.StreamProtocolV4Name.
func exitStatus(code int) *metav1.Status {
	if code == 0 {
		return &metav1.Status{Status: metav1.StatusSuccess}
	}
	number := strconv.Itoa(code)
	return &metav1.Status{
		Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
		Message: "command terminated with exit code " + number,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
			{Type: remotecommand.ExitCodeCauseType, Message: number},
		}},
	}
}

// A terminal has the streams of a command. Those that the client does not ask for are empty.
type terminal struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	result         io.Writer
	close          func()
}

// openWebSocket answers a request to upgrade to a WebSocket.
func openWebSocket(w *statusRecorder, r *http.Request) *terminal {
	stdin := wsstream.IgnoreChannel
	if r.URL.Query().Get(corev1.StreamTypeStdin) == "true" {
		stdin = wsstream.ReadChannel
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{
		remotecommand.StreamProtocolV5Name: {Binary: true, Channels: []wsstream.ChannelType{
			stdin, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel,
		}},
	})
	w.status = http.StatusSwitchingProtocols
	quiet := klog.NewContext(r.Context(), logr.Discard()) // each connection ends with an error of the socket
	_, streams, err := conn.Open(w.ResponseWriter, r.WithContext(quiet))
	if err != nil {
		return nil
	}
	return &terminal{
		stdin: streams[remotecommand.StreamStdIn], stdout: streams[remotecommand.StreamStdOut],
		stderr: streams[remotecommand.StreamStdErr], result: streams[remotecommand.StreamErr],
		close: func() { _ = conn.Close() }, // the client may be gone
	}
}

// openSPDY answers a request to upgrade to SPDY, for which the client opens each stream.
func openSPDY(w *statusRecorder, r *http.Request) *terminal {
	const patience = 10 * time.Second // for streams that the client has promised
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return nil
	}
	opened := make(chan httpstream.Stream, 4)
	w.status = http.StatusSwitchingProtocols
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w.ResponseWriter, r,
		func(stream httpstream.Stream, _ <-chan struct{}) error {
			opened <- stream
			return nil
		})
	if conn == nil {
		return nil
	}
	t := &terminal{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard}
	var streams []httpstream.Stream
	t.close = func() { // a close of the connection would reset streams that the client has not read
		for _, stream := range streams {
			_ = stream.Close() // the client may be gone
		}
		select {
		case <-conn.CloseChan():
		case <-time.After(patience):
		}
		_ = conn.Close()
	}
	wanted := 1 // the stream of errors
	for _, name := range []string{corev1.StreamTypeStdin, corev1.StreamTypeStdout, corev1.StreamTypeStderr} {
		if r.URL.Query().Get(name) == "true" {
			wanted++
		}
	}
	for timeout := time.After(patience); wanted > 0; wanted-- {
		select {
		case stream := <-opened:
			streams = append(streams, stream)
			switch stream.Headers().Get(corev1.StreamType) {
			case corev1.StreamTypeStdin:
				t.stdin = stream
			case corev1.StreamTypeStdout:
				t.stdout = stream
			case corev1.StreamTypeStderr:
				t.stderr = stream
			case corev1.StreamTypeError:
				t.result = stream
			}
		case <-timeout:
			t.close()
			return nil
		}
	}
	return t
}
