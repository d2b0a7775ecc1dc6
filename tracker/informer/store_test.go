package informer

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-nft/kube-nft/tracker"
)

// holder is a sink that knows which Services it has, by name and cluster IP.
type holder struct {
	tracker.Sink
	services map[string]string
}

func (h *holder) SetService(service *corev1.Service) error {
	h.services[service.Name] = service.Spec.ClusterIP
	return nil
}

func (h *holder) DeleteService(_, name string) { delete(h.services, name) }

// TestStreamedList: the sink has the objects of a streaming list before the list is complete. What
// a stream brought that broke off goes with the next list, if it is not in that list. A list may
// bring older versions, as after a restore of the cluster.
func TestStreamedList(t *testing.T) {
	object := func(name, version, ip string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: version},
			Spec: corev1.ServiceSpec{ClusterIP: ip}}
	}
	h := &holder{services: make(map[string]string)}
	listed := false
	options := Options{}.orNothing()
	s := newStore(resource{
		name:   "services",
		set:    func(s tracker.Sink, object any) error { return s.SetService(object.(*corev1.Service)) },
		remove: tracker.Sink.DeleteService,
	}, h, &options, func() { listed = true })

	// As the reflector does it: a store of its own for each stream.
	stream := func(objects ...*corev1.Service) cache.Store {
		list := cache.NewStore(cache.DeletionHandlingMetaNamespaceKeyFunc, cache.WithTransformer(s.Transformer()))
		for _, o := range objects {
			if err := list.Add(o); err != nil {
				t.Fatal(err)
			}
		}
		return list
	}
	expect := func(when string, want map[string]string) {
		t.Helper()
		if !maps.Equal(h.services, want) {
			t.Errorf("%s: the sink has %v, want %v", when, h.services, want)
		}
	}
	stream(object("a", "7", "10.96.0.1"), object("b", "8", "10.96.0.2"))
	expect("a stream that breaks off", map[string]string{"a": "10.96.0.1", "b": "10.96.0.2"})
	if listed {
		t.Error("a stream that broke off counts as a list")
	}
	list := stream(object("a", "7", "10.96.0.1"), object("c", "9", "10.96.0.3"), object("d", "9", "10.96.0.4"))
	if err := list.Delete(object("d", "10", "10.96.0.4")); err != nil {
		t.Fatal(err)
	}
	if err := s.Replace(list.List(), "10"); err != nil {
		t.Fatal(err)
	}
	expect("a whole stream", map[string]string{"a": "10.96.0.1", "c": "10.96.0.3"})
	if !listed {
		t.Error("a whole stream does not count as a list")
	}
	if err := s.Replace(stream(object("a", "7", "10.96.0.5")).List(), "7"); err != nil {
		t.Fatal(err)
	}
	expect("another content of the same version, after a restore", map[string]string{"a": "10.96.0.5"})
	restored := []any{object("a", "3", "10.96.0.9")}
	if err := s.Replace(restored, "3"); err != nil {
		t.Fatal(err)
	}
	expect("a plain list of older versions", map[string]string{"a": "10.96.0.9"})
	if err := s.Replace(stream(object("a", "2", "10.96.0.8")).List(), "2"); err != nil {
		t.Fatal(err)
	}
	expect("a stream of older versions", map[string]string{"a": "10.96.0.8"})
}
