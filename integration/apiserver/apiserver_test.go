package apiserver

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func service(name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.ServiceSpec{ClusterIP: ip},
	}
}

func start(t *testing.T) (*Server, string) {
	t.Helper()
	server := New()
	url, err := server.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server, url
}

// dial returns a client that asks for one content type.
func dial(t *testing.T, url, contentType string) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: url, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: contentType, AcceptContentTypes: contentType},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// inBothEncodings runs a test with a client for each.
func inBothEncodings(t *testing.T, test func(t *testing.T, server *Server, client kubernetes.Interface)) {
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		t.Run(contentType, func(t *testing.T) {
			server, url := start(t)
			test(t, server, dial(t, url, contentType))
		})
	}
}

// names returns the names and versions of list.
func names(list *corev1.ServiceList) []string {
	var names []string
	for _, o := range list.Items {
		names = append(names, o.Name+"@"+o.ResourceVersion)
	}
	return names
}

func TestGetAndList(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, server *Server, client kubernetes.Interface) {
		server.Apply(service("a", "10.0.0.1"), service("b", "None"), service("c", "10.0.0.3"))
		services := client.CoreV1().Services("shop")
		got, err := services.Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || got.Spec.ClusterIP != "10.0.0.1" || got.ResourceVersion != "2" {
			t.Errorf("got %v, error %v", got, err)
		}
		if _, err := services.Get(t.Context(), "z", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("an object that does not exist: %v", err)
		}
		tests := []struct {
			options metav1.ListOptions
			want    []string
		}{
			{metav1.ListOptions{}, []string{"a@2", "b@3", "c@4"}},
			{metav1.ListOptions{FieldSelector: "spec.clusterIP!=None"}, []string{"a@2", "c@4"}},
			{metav1.ListOptions{LabelSelector: "app in (b,c)"}, []string{"b@3", "c@4"}},
			{metav1.ListOptions{LabelSelector: "!app"}, nil},
			{metav1.ListOptions{FieldSelector: "metadata.name=c"}, []string{"c@4"}},
		}
		for _, tt := range tests {
			list, err := services.List(t.Context(), tt.options)
			if err != nil || !slices.Equal(names(list), tt.want) || list.ResourceVersion != "4" {
				t.Errorf("%v: got %v at %s, error %v, want %v", tt.options, names(list), list.ResourceVersion, err, tt.want)
			}
		}
		list, err := client.CoreV1().Services("other").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 0 {
			t.Errorf("another namespace: %v, error %v", names(list), err)
		}
	})
}

func TestListInChunks(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, server *Server, client kubernetes.Interface) {
		for i := range 5 {
			server.Apply(service(fmt.Sprintf("s%d", i), "10.0.0.1"))
		}
		services := client.CoreV1().Services("")
		first, err := services.List(t.Context(), metav1.ListOptions{Limit: 3})
		if err != nil || len(first.Items) != 3 || first.Continue == "" {
			t.Fatalf("got %v, continue %q, error %v", names(first), first.Continue, err)
		}
		server.Apply(service("s9", "10.0.0.1"))
		rest, err := services.List(t.Context(), metav1.ListOptions{Limit: 3, Continue: first.Continue})
		if err != nil || len(rest.Items) != 3 || rest.Continue != "" || rest.ResourceVersion != first.ResourceVersion {
			t.Errorf("got %v at %s, error %v", names(rest), rest.ResourceVersion, err)
		}
		server.Gone()
		_, err = services.List(t.Context(), metav1.ListOptions{Continue: first.Continue})
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("a chunk of a forgotten list: %v", err)
		}
	})
}

// follow starts a watch that ends with the test.
func follow(t *testing.T, client kubernetes.Interface, options metav1.ListOptions) <-chan watch.Event {
	t.Helper()
	w, err := client.CoreV1().Services("").Watch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w.ResultChan()
}

// expect reads events and compares them with want: type, name, version.
func expect(t *testing.T, events <-chan watch.Event, want ...string) {
	t.Helper()
	for _, want := range want {
		event := <-events
		got := string(event.Type)
		switch o := event.Object.(type) {
		case *corev1.Service:
			got = strings.TrimSpace(fmt.Sprintf("%s %s@%s %s", event.Type, o.Name, o.ResourceVersion,
				o.Annotations[metav1.InitialEventsAnnotationKey]))
		case *metav1.Status:
			got = fmt.Sprintf("%s %s", event.Type, o.Reason)
		}
		if got != want {
			t.Fatalf("got event %q, want %q", got, want)
		}
	}
}

func TestWatch(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, server *Server, client kubernetes.Interface) {
		server.Apply(service("a", "10.0.0.1"))
		events := follow(t, client, metav1.ListOptions{ResourceVersion: "2", FieldSelector: "spec.clusterIP!=None"})
		server.Apply(service("b", "10.0.0.2"), service("c", "None"), service("a", "10.0.0.9"))
		expect(t, events, "ADDED b@3", "MODIFIED a@5")
		server.Apply(service("c", "10.0.0.3"), service("b", "None"))
		expect(t, events, "ADDED c@6", "DELETED b@7")
		server.Delete("Service", "shop", "b") // out of sight
		server.Delete("Service", "shop", "c")
		expect(t, events, "DELETED c@9")

		resumed := follow(t, client, metav1.ListOptions{ResourceVersion: "5"})
		expect(t, resumed, "MODIFIED c@6", "MODIFIED b@7", "DELETED b@8", "DELETED c@9")
		present := follow(t, client, metav1.ListOptions{})
		expect(t, present, "ADDED a@5")
	})
}

func TestStreamingList(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, server *Server, client kubernetes.Interface) {
		server.Apply(service("a", "10.0.0.1"), service("b", "10.0.0.2"))
		options := metav1.ListOptions{
			SendInitialEvents: new(true), AllowWatchBookmarks: true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
		}
		events := follow(t, client, options)
		expect(t, events, "ADDED a@2", "ADDED b@3", "BOOKMARK @3 true")
		server.Apply(service("c", "10.0.0.3"))
		expect(t, events, "ADDED c@4")
		server.Bookmark()
		expect(t, events, "BOOKMARK @4")
		server.DisableWatchList()
		if _, err := client.CoreV1().Services("").Watch(t.Context(), options); !apierrors.IsInvalid(err) {
			t.Errorf("a server without streaming lists says %v", err)
		}
	})
}

// TestCompressedStreamingList reads the bytes as they are on the wire, which client-go unpacks unseen.
func TestCompressedStreamingList(t *testing.T) {
	server, url := start(t)
	server.Compress()
	server.Apply(service("a", "10.0.0.1"))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		url+
			"/api/v1/services?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&"+
			"resourceVersionMatch=NotOlderThan&timeoutSeconds=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept-Encoding", "gzip") // set by hand, it is not unpacked by the transport
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	unpacked, err := gzip.NewReader(response.Body)
	if err != nil || response.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("%v: %v", response.Header, err)
	}
	text, err := io.ReadAll(unpacked)
	if err != nil || strings.Count(string(text), "\n") != 2 ||
		!strings.Contains(string(text), metav1.InitialEventsAnnotationKey) {
		t.Errorf("%s, %v", text, err)
	}
	inBothEncodings(t, func(t *testing.T, server *Server, client kubernetes.Interface) {
		server.Compress()
		server.Apply(service("a", "10.0.0.1"))
		events := follow(t, client, metav1.ListOptions{SendInitialEvents: new(true), AllowWatchBookmarks: true,
			ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
		expect(t, events, "ADDED a@2", "BOOKMARK @2 true")
		server.Apply(service("b", "10.0.0.2"))
		expect(t, events, "ADDED b@3")
	})
}

func TestExpiredResourceVersion(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, server *Server, client kubernetes.Interface) {
		server.Apply(service("a", "10.0.0.1"))
		events := follow(t, client, metav1.ListOptions{ResourceVersion: "2"})
		server.Gone()
		expect(t, events, "ERROR Expired")
		if _, open := <-events; open {
			t.Error("the watch goes on")
		}
		_, err := client.CoreV1().Services("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "2"})
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("a watch from a forgotten version: %v", err)
		}
		_, err = client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{ResourceVersion: "99"})
		if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
			t.Errorf("a list from the future: %v", err)
		}
		_, err = client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{ResourceVersion: "2",
			ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		if !apierrors.IsResourceExpired(err) {
			t.Errorf("a list of a forgotten version: %v", err)
		}
	})
}

func TestRepeatedEvents(t *testing.T) {
	server, url := start(t)
	events := follow(t, dial(t, url, "application/json"), metav1.ListOptions{ResourceVersion: "1"})
	server.Duplicate(true)
	server.Apply(service("a", "10.0.0.1"))
	expect(t, events, "ADDED a@2", "ADDED a@2")
	server.Duplicate(false)
	server.Delete("Service", "shop", "a")
	expect(t, events, "DELETED a@3")
	server.Replay(2)
	expect(t, events, "DELETED a@3", "ADDED a@2")
}

func TestWatchTimeout(t *testing.T) {
	_, url := start(t)
	events := follow(t, dial(t, url, "application/json"), metav1.ListOptions{TimeoutSeconds: new(int64(1))})
	if event, open := <-events; open {
		t.Errorf("got %v", event)
	}
}

func TestFaultsAnswerRequests(t *testing.T) {
	server, url := start(t)
	client := dial(t, url, "application/vnd.kubernetes.protobuf")
	list := func() error {
		_, err := client.CoreV1().Services("").List(t.Context(), metav1.ListOptions{})
		return err
	}
	server.Forbid("services", true)
	if err := list(); !apierrors.IsForbidden(err) {
		t.Errorf("Forbid: %v", err)
	}
	server.Forbid("services", false)
	server.Hide("services", true)
	if err := list(); !apierrors.IsNotFound(err) {
		t.Errorf("Hide: %v", err)
	}
	server.Hide("services", false)
	server.Fail(http.StatusInternalServerError)
	if err := list(); !apierrors.IsInternalError(err) {
		t.Errorf("Fail: %v", err)
	}
	server.Fail(0)
	if err := server.Down(true); err != nil {
		t.Fatal(err)
	}
	if err := list(); err == nil {
		t.Error("Down: a list succeeded")
	}
	if err := server.Down(false); err != nil {
		t.Fatal(err)
	}
	if err := list(); err != nil {
		t.Errorf("after Down(false): %v", err)
	}
	server.DisableProtobuf()
	if err := list(); !apierrors.IsNotAcceptable(err) {
		t.Errorf("DisableProtobuf: %v", err)
	}
}

func TestEventsAndRequestsAreRecorded(t *testing.T) {
	inBothEncodings(t, func(t *testing.T, server *Server, client kubernetes.Interface) {
		event := &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "one.1"}, Reason: "Starting",
			Regarding: corev1.ObjectReference{Kind: "Node", Name: "one"},
		}
		if _, err := client.EventsV1().Events("default").Create(t.Context(), event, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if events := server.Events(); len(events) != 1 || events[0].Reason != "Starting" ||
			events[0].Regarding.Name != "one" {
			t.Errorf("events %+v", events)
		}
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{LabelSelector: "a=b",
			FieldSelector: "metadata.name=one"}); err != nil {
			t.Fatal(err)
		}
		want := []Request{
			{Verb: "create", Group: "events.k8s.io", Resource: "events", Namespace: "default", Status: http.StatusCreated},
			{Verb: "list", Resource: "nodes", LabelSelector: "a=b", FieldSelector: "metadata.name=one", Status: http.StatusOK},
		}
		got := server.Requests()
		for i := range got {
			got[i].ContentType = ""
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("requests (-want +got):\n%s", diff)
		}
	})
}

func TestKubeconfig(t *testing.T) {
	server, url := start(t)
	path, err := server.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil || config.Host != url {
		content, _ := os.ReadFile(path)
		t.Errorf("error %v, kubeconfig:\n%s", err, content)
	}
}

// TestJSONAsCurlSeesIt holds the bytes on the wire.
func TestJSONAsCurlSeesIt(t *testing.T) {
	server, url := start(t)
	server.Apply(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	response, err := http.Get(url + "/api/v1/nodes")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(bufio.NewReader(response.Body))
	if err != nil || !json.Valid(body) {
		t.Fatalf("error %v, body %s", err, body)
	}
	const want = `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"2"},"items":[{"kind":"Node","apiVersion":"v1","metadata":{"name":"one","resourceVersion":"2"},"spec":{},"status":{"daemonEndpoints":{"kubeletEndpoint":{"Port":0}},"nodeInfo":{"machineID":"","systemUUID":"","bootID":"","kernelVersion":"","osImage":"","containerRuntimeVersion":"","kubeletVersion":"","kubeProxyVersion":"","operatingSystem":"","architecture":""}}}]}`
	if string(body) != want {
		t.Errorf("(-want +got)\n%s", cmp.Diff(want, string(body)))
	}
}

// TestHistoryIsBounded holds that a watch from before the bound is told so.
func TestHistoryIsBounded(t *testing.T) {
	c := newCollection(kinds[1])
	for version := range uint64(maxHistory + 1) {
		c.put(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, version+1)
	}
	if len(c.history) > maxHistory {
		t.Errorf("%d changes are kept", len(c.history))
	}
	if _, err := c.since(c.oldest - 1); err == nil {
		t.Error("a forgotten version was served")
	}
	if changes, err := c.since(c.oldest); err != nil || changes[0].version != c.oldest+1 {
		t.Errorf("the oldest version: error %v", err)
	}
}

// TestRequestsAfterCloseAreCutOff: Close waits for the requests that are being served. One that begins beside it must
// not be counted any more.
func TestRequestsAfterCloseAreCutOff(t *testing.T) {
	server, _ := start(t)
	server.Close()
	defer func() {
		if got := recover(); got != http.ErrAbortHandler {
			t.Errorf("the handler ended with %v, want %v", got, http.ErrAbortHandler)
		}
		if n := len(server.Requests()); n > 0 {
			t.Errorf("%d requests were served", n)
		}
	}()
	server.Handler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/api/v1/services", nil))
}
