package informer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/tracker/informer"
	"github.com/kube-nft/kube-nft/tracker/trackertest"
)

// patience is how long a condition is awaited before a test fails.
const patience = 2 * time.Minute

func service(name, clusterIP string, labels ...string) *corev1.Service {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: clusterIP}}
	if len(labels) > 0 {
		o.Labels = map[string]string{labels[0]: labels[1]}
	}
	return o
}

func slice(name string, endpoints int, labels ...string) *discoveryv1.EndpointSlice {
	o := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		Endpoints: make([]discoveryv1.Endpoint, endpoints),
	}
	if len(labels) > 0 {
		o.Labels[labels[0]] = labels[1]
	}
	return o
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
}

func serviceCIDR(name, cidr string) *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}
}

// start returns a listening server that ends with the test.
func start(t *testing.T) (server *apiserver.Server, url string) {
	t.Helper()
	server = apiserver.New()
	url, err := server.Start("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	return server, url
}

// dial returns a client that prefers the given content type, protobuf if empty.
func dial(t *testing.T, url, contentType string) kubernetes.Interface {
	t.Helper()
	connection := informer.Connection{Master: url, ContentType: contentType, QPS: 1000, Burst: 1000}
	client, err := connection.Client()
	must(t, err)
	return client
}

// run feeds sink from client for as long as the test lasts.
func run(t *testing.T, client kubernetes.Interface, options informer.Options, sink *trackertest.Sink) *informer.Source {
	t.Helper()
	source := informer.New(client, options)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := source.Run(ctx, sink); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return source
}

// awaitSync fails the test if source does not sync.
func awaitSync(t *testing.T, source *informer.Source) {
	t.Helper()
	select {
	case <-source.Synced():
	case <-time.After(patience):
		t.Fatal("not synced")
	}
}

// await polls until sink holds want.
func await(t *testing.T, sink *trackertest.Sink, want map[string]string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		got := sink.Snapshot()
		if cmp.Equal(got, want) {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("state (-want +got):\n%s", cmp.Diff(want, got))
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// modes are the ways of getting at objects; every test that can runs in all of them.
var modes = []struct {
	name        string
	contentType string
	classic     bool
}{
	{name: "protobuf streaming"},
	{name: "protobuf lists", classic: true},
	{name: "json streaming", contentType: "application/json"},
	{name: "json lists", contentType: "application/json", classic: true},
}

// inAllModes runs a test against a server for each mode.
func inAllModes(t *testing.T, test func(t *testing.T, server *apiserver.Server, client kubernetes.Interface)) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			server, url := start(t)
			if mode.classic {
				server.DisableWatchList()
			}
			test(t, server, dial(t, url, mode.contentType))
		})
	}
}

// TestSlicesWithoutService: the server does not send them, so that they cost nothing and are no fault. KEP-6116 makes
// such slices.
func TestSlicesWithoutService(t *testing.T) {
	inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
		lone := slice("lone-1", 2)
		lone.Labels = nil
		server.Apply(lone, slice("web-1", 2))
		sink := trackertest.NewSink()
		awaitSync(t, run(t, client, informer.Options{}, sink))
		await(t, sink, map[string]string{"EndpointSlice shop/web-1": "2"})
		lone = lone.DeepCopy()
		lone.Endpoints = lone.Endpoints[1:]
		server.Apply(lone, slice("web-1", 3))
		await(t, sink, map[string]string{"EndpointSlice shop/web-1": "3"})
	})
}

func TestFollowsServer(t *testing.T) {
	inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
		server.Apply(
			service("web", "10.96.0.1"), service("headless", "None"),
			service("other", "10.96.0.2", "service.kubernetes.io/service-proxy-name", ""),
			slice("web-1", 2), slice("headless-1", 2, corev1.IsHeadlessService, ""),
			node("one", "a"), node("two", "b"), serviceCIDR("kubernetes", "10.96.0.0/16"),
		)
		sink := trackertest.NewSink()
		source := run(t, client, informer.Options{NodeName: "one"}, sink)
		awaitSync(t, source)
		await(t, sink, map[string]string{
			"Service shop/web":         "10.96.0.1",
			"EndpointSlice shop/web-1": "2",
			"Node one":                 "a",
			"ServiceCIDR kubernetes":   "[10.96.0.0/16]",
		})

		server.Apply(
			service("web", "10.96.0.9"), service("db", "10.96.0.3"),
			service("other", "10.96.0.2"), // the label is gone: it enters the selection
			slice("web-1", 3), slice("headless-1", 2),
			node("one", "c"), node("two", "d"),
		)
		server.Delete("ServiceCIDR", "", "kubernetes")
		await(t, sink, map[string]string{
			"Service shop/web": "10.96.0.9", "Service shop/db": "10.96.0.3", "Service shop/other": "10.96.0.2",
			"EndpointSlice shop/web-1": "3", "EndpointSlice shop/headless-1": "2",
			"Node one": "c",
		})

		server.Apply(service("db", "10.96.0.3", "service.kubernetes.io/service-proxy-name", "x")) // it leaves
		server.Delete("Service", "shop", "other")
		server.Delete("EndpointSlice", "shop", "headless-1")
		server.Delete("Node", "", "one")
		await(t, sink, map[string]string{"Service shop/web": "10.96.0.9", "EndpointSlice shop/web-1": "3"})
	})
}
