package packets

import (
	"encoding/json"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

// A source is where kube-nft gets its objects from.
type source interface {
	Flags() []string                              // that make kube-nft use it
	publish(t testing.TB, world []map[string]any) // makes these the objects that exist, in this order
}

// sources are the kinds of sources by the names that the flag -source takes.
var sources = map[string]func(testing.TB) source{
	"manifests": newManifests,
	"api":       newAPI,
}

// manifests is a directory with one file that holds all objects.
type manifests struct{ lab.Directory }

// newManifests returns a source whose directory lives as long as the test.
func newManifests(t testing.TB) source { return manifests{lab.NewDirectory(t)} }

// publish replaces the file.
func (m manifests) publish(t testing.TB, world []map[string]any) {
	t.Helper()
	documents := make([]any, len(world))
	for i, object := range world {
		documents[i] = object
	}
	m.Write(t, "objects.yaml", lab.Manifest(documents...))
}

// api is an API server on the loopback device of the namespace.
type api struct {
	server     *apiserver.Server
	kubeconfig string
	world      []map[string]any // what the server holds
}

// newAPI returns a source whose server lives as long as the test.
func newAPI(t testing.TB) source {
	t.Helper()
	a := &api{server: apiserver.New()}
	if _, err := a.server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.server.Close)
	var err error
	if a.kubeconfig, err = a.server.Kubeconfig(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	return a
}

// Flags name a kubeconfig for the server.
func (a *api) Flags() []string { return []string{"--kubeconfig", a.kubeconfig} }

// publish deletes what is gone, then writes what is new or different, in order.
func (a *api) publish(t testing.TB, world []map[string]any) {
	t.Helper()
	held, wanted := byID(a.world), byID(world)
	for id := range held {
		if _, ok := wanted[id]; !ok {
			a.server.Delete(id.Kind, id.Namespace, id.Name)
		}
	}
	for _, object := range world {
		if !reflect.DeepEqual(object, held[idOf(object)]) {
			a.apply(t, object)
		}
	}
	a.world = world
}

// byID returns objects by their identity.
func byID(objects []map[string]any) map[objectID]map[string]any {
	m := make(map[objectID]map[string]any, len(objects))
	for _, object := range objects {
		m[idOf(object)] = object
	}
	return m
}

// apply creates or replaces one object.
func (a *api) apply(t testing.TB, object map[string]any) {
	t.Helper()
	switch kind := idOf(object).Kind; kind {
	case "Service":
		a.server.Apply(typed(t, object, &corev1.Service{}))
	case "Node":
		a.server.Apply(typed(t, object, &corev1.Node{}))
	case "EndpointSlice":
		a.server.Apply(typed(t, object, &discoveryv1.EndpointSlice{}))
	case "ServiceCIDR":
		a.server.Apply(typed(t, object, &networkingv1.ServiceCIDR{}))
	default:
		t.Fatalf("the API server does not hold objects of kind %q", kind)
	}
}

// typed fills in a value of an API type from an object as the case has it.
func typed[T any](t testing.TB, object map[string]any, into T) T {
	t.Helper()
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatalf("%v: %v", idOf(object), err)
	}
	return into
}
