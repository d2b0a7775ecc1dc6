package informer_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/tracker/informer"
	"github.com/kube-nft/kube-nft/tracker/trackertest"
)

// A log collects what Reached is told, without the part that differs between runs.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) reached(resource string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%s: %v", resource, err))
}

func (l *log) about(resource string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var lines []string
	for _, line := range l.lines {
		if rest, ok := strings.CutPrefix(line, resource+": "); ok {
			lines = append(lines, rest)
		}
	}
	return lines
}

func (l *log) await(t *testing.T, resource string, want ...string) {
	t.Helper()
	deadline := time.After(patience)
	for !slices.Equal(l.about(resource), want) {
		select {
		case <-deadline:
			t.Fatalf("told %q, want %q", l.about(resource), want)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestServiceCIDRsAreNotWaitedFor(t *testing.T) {
	const (
		forbidden = `servicecidrs: servicecidrs.networking.k8s.io is forbidden: switched on by Forbid; allow list and watch of servicecidrs in kube-nft's ClusterRole`
		hidden    = `servicecidrs: the server could not find the requested resource; the API server does not serve them`
	)
	tests := []struct {
		name string
		turn func(server *apiserver.Server, on bool)
		want string
	}{
		{"forbidden", func(s *apiserver.Server, on bool) { s.Forbid("servicecidrs", on) }, forbidden},
		{"not served", func(s *apiserver.Server, on bool) { s.Hide("servicecidrs", on) }, hidden},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, url := start(t)
			tt.turn(server, true)
			server.Apply(service("web", "10.96.0.1"), serviceCIDR("kubernetes", "10.96.0.0/16"))
			sink, told := trackertest.NewSink(), &log{}
			source := run(t, dial(t, url, ""), informer.Options{Reached: told.reached}, sink)
			awaitSync(t, source)
			told.await(t, "servicecidrs", tt.want)
			tt.turn(server, false)
			await(t, sink, map[string]string{"Service shop/web": "10.96.0.1", "ServiceCIDR kubernetes": "[10.96.0.0/16]"})
			told.await(t, "servicecidrs", tt.want, "<nil>") // once each, however many attempts
		})
	}
}

func TestServicesAreWaitedFor(t *testing.T) {
	server, url := start(t)
	server.Apply(service("web", "10.96.0.1"), node("one", "a"))
	server.Forbid("services", true)
	sink, told := trackertest.NewSink(), &log{}
	source := run(t, dial(t, url, ""), informer.Options{NodeName: "one", Reached: told.reached}, sink)
	await(t, sink, map[string]string{"Node one": "a"})
	const forbidden = "services: services is forbidden: switched on by Forbid; allow list and watch of services in " +
		"kube-nft's ClusterRole"
	told.await(t, "services", forbidden)
	select {
	case <-source.Synced():
		t.Fatal("synced without Services")
	default:
	}
	server.Forbid("services", false)
	awaitSync(t, source)
	await(t, sink, map[string]string{"Node one": "a", "Service shop/web": "10.96.0.1"})
	told.await(t, "services", forbidden, "<nil>")
}

func TestRefusalsAndChanges(t *testing.T) {
	server, url := start(t)
	server.Apply(service("web", "10.96.0.1"))
	sink := trackertest.NewSink()
	sink.Refusal = errors.New("Service shop/web: spec.ports: none")
	refused, changed := make(chan error, 100), make(chan struct{}, 100)
	source := run(t, dial(t, url, ""), informer.Options{
		Refused: func(err error) { refused <- err },
		Changed: func() { changed <- struct{}{} },
	}, sink)
	awaitSync(t, source)
	if err := <-refused; err != sink.Refusal {
		t.Errorf("refused %v", err)
	}
	for range 3 {
		<-changed // one for each list
	}
	server.Delete("Service", "shop", "web")
	<-changed
}

// TestRequests holds that nothing is asked for but what the ClusterRole allows, with the
// selectors that keep foreign objects away.
func TestRequests(t *testing.T) {
	tests := []struct {
		name      string
		proxyName string
		want      map[string]string // resource -> selectors
	}{
		{"default proxy", "", map[string]string{
			"services":       "!service.kubernetes.io/service-proxy-name | spec.clusterIP!=None",
			"endpointslices": "kubernetes.io/service-name,!service.kubernetes.io/headless | ",
			"nodes":          " | metadata.name=one",
			"servicecidrs":   " | ",
		}},
		{"named proxy", "edge", map[string]string{
			"services":       "service.kubernetes.io/service-proxy-name=edge | spec.clusterIP!=None",
			"endpointslices": "kubernetes.io/service-name,!service.kubernetes.io/headless | ",
			"nodes":          " | metadata.name=one",
			"servicecidrs":   " | ",
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, url := start(t)
			server.DisableWatchList()
			options := informer.Options{NodeName: "one", ProxyName: tt.proxyName}
			awaitSync(t, run(t, dial(t, url, ""), options, trackertest.NewSink()))
			got := make(map[string]string)
			for _, request := range server.Requests() {
				if request.Verb != "list" && request.Verb != "watch" {
					t.Errorf("unexpected request %+v", request)
				}
				if request.ContentType != "application/vnd.kubernetes.protobuf" {
					t.Errorf("%s of %s in %s", request.Verb, request.Resource, request.ContentType)
				}
				got[request.Resource] = request.LabelSelector + " | " + request.FieldSelector
			}
			if !maps.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestFallsBackToJSON(t *testing.T) {
	server, url := start(t)
	server.DisableProtobuf()
	server.Apply(service("web", "10.96.0.1"))
	sink := trackertest.NewSink()
	awaitSync(t, run(t, dial(t, url, ""), informer.Options{}, sink))
	server.Apply(service("web", "10.96.0.2"))
	await(t, sink, map[string]string{"Service shop/web": "10.96.0.2"})
}

func TestStreamsListsWhereTheServerCan(t *testing.T) {
	server, url := start(t)
	server.Apply(service("web", "10.96.0.1"))
	awaitSync(t, run(t, dial(t, url, ""), informer.Options{}, trackertest.NewSink()))
	for _, request := range server.Requests() {
		if request.Verb == "list" {
			t.Errorf("a plain list of %s", request.Resource)
		}
	}
}

func TestLoad(t *testing.T) {
	server, url := start(t)
	want := make(map[string]string)
	for i := range 1200 { // more than one chunk
		server.Apply(service(fmt.Sprintf("s%d", i), "10.96.0.1"))
		want[fmt.Sprintf("Service shop/s%d", i)] = "10.96.0.1"
	}
	server.Apply(service("headless", corev1.ClusterIPNone), node("one", "a"), node("two", "b"))
	want["Node one"] = "a"
	server.Forbid("servicecidrs", true)
	sink, told := trackertest.NewSink(), &log{}
	client := dial(t, url, "")
	err := informer.Load(t.Context(), client, informer.Options{NodeName: "one", Reached: told.reached}, sink)
	must(t, err)
	await(t, sink, want)
	if len(told.about("servicecidrs")) != 1 {
		t.Errorf("told %q", told.lines)
	}
	server.Forbid("nodes", true)
	err = informer.Load(t.Context(), client, informer.Options{NodeName: "one"}, trackertest.NewSink())
	const forbidden = "nodes: nodes is forbidden: switched on by Forbid; allow list and watch of nodes in kube-nft's " +
		"ClusterRole"
	if err == nil || err.Error() != forbidden {
		t.Errorf("got %v, want %s", err, forbidden)
	}
}

// TestNothingRunsAfterRun holds that Run leaves no goroutine behind, in whatever state
// the API server is.
func TestNothingRunsAfterRun(t *testing.T) {
	faults := map[string]func(*apiserver.Server){
		"serving":   func(*apiserver.Server) {},
		"failing":   func(s *apiserver.Server) { s.Fail(http.StatusInternalServerError) },
		"forbidden": func(s *apiserver.Server) { s.Forbid("services", true) },
		"down":      func(s *apiserver.Server) { _ = s.Down(true) },
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			t.Run("run", func(t *testing.T) {
				server, url := start(t)
				server.Apply(service("web", "10.96.0.1"))
				fault(server)
				told := &log{}
				sink := trackertest.NewSink()
				run(t, dial(t, url, ""), informer.Options{NodeName: "one", Reached: told.reached}, sink)
				deadline := time.After(patience)
				for len(told.about("services")) == 0 && sink.Calls() == 0 {
					select {
					case <-deadline:
						t.Fatal("nothing happens")
					case <-time.After(time.Millisecond):
					}
				}
			})
			deadline := time.After(patience)
			for runtime.NumGoroutine() > before {
				select {
				case <-deadline:
					stacks := make([]byte, 1<<20)
					t.Fatalf("%d goroutines before, now:\n%s", before, stacks[:runtime.Stack(stacks, true)])
				case <-time.After(5 * time.Millisecond):
				}
			}
		})
	}
}
