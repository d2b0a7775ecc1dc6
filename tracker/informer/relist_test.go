package informer

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-nft/kube-nft/tracker"
)

// sliceHolder is a sink that knows which EndpointSlices it has.
type sliceHolder struct {
	tracker.Sink
	mu    sync.Mutex        // the time ends in a goroutine of its own
	names map[string]string // with the version
}

func (s *sliceHolder) SetSlice(slice *discoveryv1.EndpointSlice) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names[slice.Name] = slice.ResourceVersion
	return nil
}

func (s *sliceHolder) DeleteSlice(_, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.names, name)
}

// sliceOf is slice part of a Service.
func sliceOf(service, part int, version string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: fmt.Sprintf("service-%d-%d", service, part), ResourceVersion: version,
		Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprintf("service-%d", service)},
	}}
}

// A relisted store has had a list of two slices of each of n Services.
type relisted struct {
	*store
	sink  *sliceHolder
	words []string
}

// names are the slices that the sink has.
func (r *relisted) names() map[string]string {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	return maps.Clone(r.sink.names)
}

// told is what was reported about missing objects so far.
func (r *relisted) told() []string {
	r.sink.mu.Lock()
	defer r.sink.mu.Unlock()
	return slices.Clone(r.words)
}

func newRelisted(t *testing.T, n int, keepFor time.Duration) *relisted {
	t.Helper()
	r := &relisted{sink: &sliceHolder{names: make(map[string]string)}}
	options := Options{KeepMissing: keepFor, Missing: func(resource string, err error) {
		r.sink.mu.Lock()
		defer r.sink.mu.Unlock()
		r.words = append(r.words, fmt.Sprintf("%s: %v", resource, err))
	}}.orNothing()
	source := endpointSlicesOf(func(s tracker.Sink, object any) error {
		return s.SetSlice(object.(*discoveryv1.EndpointSlice))
	})
	r.store = newStore(source, r.sink, &options, func() {})
	var list []any
	for i := range n {
		list = append(list, sliceOf(i, 0, "100"), sliceOf(i, 1, "100"))
	}
	if err := r.Replace(list, "100"); err != nil || len(r.names()) != 2*n {
		t.Fatalf("%d objects, %v", len(r.names()), err)
	}
	return r
}

// endpointSlicesOf is the resource without a server.
func endpointSlicesOf(set func(tracker.Sink, any) error) resource {
	return resource{
		name: "endpointslices", set: set, remove: tracker.Sink.DeleteSlice,
		group: func(object any) string {
			return object.(*discoveryv1.EndpointSlice).Labels[discoveryv1.LabelServiceName]
		},
	}
}

// TestListThatLacksNearlyAll: a list lacks nearly all objects: these stay for KeepMissing, all else is followed.
func TestListThatLacksNearlyAll(t *testing.T) {
	const kept = 10 * time.Minute
	for _, tt := range []struct {
		name     string
		services int
		keepFor  time.Duration
		list     []any
		left     int // right after it
	}{
		{"a wiped server", 60, kept, nil, 120},
		{"one Service is left", 60, kept, []any{sliceOf(0, 0, "7")}, 119}, // its other slice goes
		{"a tenth is left", 60, kept, listOf(0, 12), 12},
		{"another cluster", 60, kept, []any{sliceOf(900, 0, "7")}, 121},
		{"few there were", 9, kept, nil, 0},                                    //
		{"not wanted", 60, 0, nil, 0},                                          //
		{"a slice of each Service is left", 60, kept, listOf(0, 60), 60},       //
		{"a new slice of a Service", 60, kept, []any{sliceOf(0, 7, "7")}, 119}, // its two go
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRelisted(t, tt.services, tt.keepFor)
				if err := r.Replace(tt.list, "7"); err != nil {
					t.Fatal(err)
				}
				if got := len(r.names()); got != tt.left {
					t.Errorf("%d objects, want %d", got, tt.left)
				}
				if kept := tt.left > len(tt.list); kept != (len(r.told()) > 0) {
					t.Errorf("told %q", r.told())
				}
				time.Sleep(kept + time.Second)
				synctest.Wait()
				if got := len(r.names()); got != len(tt.list) {
					t.Errorf("%d objects after that time, want %d", got, len(tt.list))
				}
				if n := len(r.told()); n > 0 && (n != 11 || r.told()[n-1] != "endpointslices: <nil>") {
					t.Errorf("told %d times: %q", n, r.told())
				}
			})
		})
	}
}

func listOf(from, to int) (list []any) {
	for i := from; i < to; i++ {
		list = append(list, sliceOf(i, 0, "7"))
	}
	return list
}

// TestMissingObjectsFollowTheSource: while objects are missing, each change of the source is followed at once.
// Reports end with the last missing object.
func TestMissingObjectsFollowTheSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRelisted(t, 60, 10*time.Minute)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		has := func(name, version string) {
			t.Helper()
			if got := r.names()[name]; got != version {
				t.Errorf("%s has version %q, want %q", name, got, version)
			}
		}
		must(r.Replace(nil, "7"))
		must(r.Add(sliceOf(1, 0, "8"))) // an older version than was known: another server
		has("service-1-0", "8")
		has("service-1-1", "")
		must(r.Add(sliceOf(2, 9, "9")))
		has("service-2-0", "")
		has("service-2-9", "9")
		must(r.Delete(sliceOf(3, 0, "10")))
		has("service-3-0", "")
		has("service-3-1", "100")
		must(r.Replace([]any{sliceOf(1, 0, "8"), sliceOf(2, 9, "9"), sliceOf(4, 0, "11"), sliceOf(4, 1, "11")}, "11"))
		has("service-4-1", "11")
		has("service-5-0", "100")
		var all []any
		for i := range 60 {
			all = append(all, sliceOf(i, 0, "200"), sliceOf(i, 1, "200"))
		}
		must(r.Replace(all, "200"))
		if last := r.told()[len(r.told())-1]; last != "endpointslices: <nil>" || len(r.names()) != 120 {
			t.Errorf("%d objects; told last: %s", len(r.names()), last)
		}
		before := r.names()
		time.Sleep(time.Hour)
		synctest.Wait()
		if !maps.Equal(before, r.names()) {
			t.Error("objects went although they were no longer missing")
		}
		for i := range 60 { // as when a namespace is deleted
			must(r.Delete(sliceOf(i, 0, "300")))
			must(r.Delete(sliceOf(i, 1, "300")))
		}
		if len(r.names()) != 0 {
			t.Errorf("%d objects are kept after they were deleted", len(r.names()))
		}
	})
}

// TestFirstListIsFollowed: there is nothing yet that it could take away; a stream that broke off has
// brought what it brought.
func TestFirstListIsFollowed(t *testing.T) {
	h := &holder{services: make(map[string]string)}
	options := Options{KeepMissing: time.Hour}.orNothing()
	s := newStore(resource{
		name: "services", remove: tracker.Sink.DeleteService,
		set: func(s tracker.Sink, object any) error { return s.SetService(object.(*corev1.Service)) },
	}, h, &options, func() {})
	for i := range 300 {
		s.Transformer()(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprint(i),
			ResourceVersion: "1"}})
	}
	if err := s.Replace(nil, "2"); err != nil || len(h.services) != 0 {
		t.Errorf("%d Services, %v", len(h.services), err)
	}
}
