package informer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/tracker"
	"github.com/kube-nft/kube-nft/tracker/informer"
	"github.com/kube-nft/kube-nft/tracker/trackertest"
)

// A world is a server with some Services and what a sink must hold of them.
type world struct {
	server *apiserver.Server
	want   map[string]string
	count  int
}

func newWorld(server *apiserver.Server) *world {
	w := &world{server: server, want: make(map[string]string)}
	for i := range 20 {
		w.set(fmt.Sprintf("s%d", i))
	}
	return w
}

// set creates or changes a Service.
func (w *world) set(name string) {
	w.count++
	ip := fmt.Sprintf("10.96.%d.%d", w.count/250, w.count%250)
	w.server.Apply(service(name, ip))
	w.want["Service shop/"+name] = ip
}

// setLarge changes a Service into one that is nearly as large as etcd takes.
func (w *world) setLarge(name string) {
	w.set(name)
	object := service(name, w.want["Service shop/"+name])
	object.Annotations = map[string]string{"filler": strings.Repeat("x", 1<<20)}
	w.server.Apply(object)
}

func (w *world) remove(name string) {
	w.server.Delete("Service", "shop", name)
	delete(w.want, "Service shop/"+name)
}

// churn changes, adds, removes and brings back Services.
func (w *world) churn() {
	w.set("s1")
	w.set(fmt.Sprintf("extra%d", w.count))
	w.remove("s2")
	w.remove("s3")
	w.set("s3")
}

// TestFaults holds that after each fault the sink ends up with what the server has.
func TestFaults(t *testing.T) {
	faults := []struct {
		name  string
		fault func(t *testing.T, w *world)
	}{
		{"watches cut", func(t *testing.T, w *world) {
			w.server.CutWatches()
			w.churn()
		}},
		{"watches cut after changes", func(t *testing.T, w *world) {
			w.churn()
			w.server.CutWatches()
		}},
		{"gone", func(t *testing.T, w *world) {
			w.churn()
			w.server.Gone()
			w.churn()
		}},
		{"gone while cut off", func(t *testing.T, w *world) {
			must(t, w.server.Down(true))
			w.churn()
			w.server.Gone()
			must(t, w.server.Down(false))
		}},
		{"storm of gone", func(t *testing.T, w *world) {
			for range 5 {
				w.churn()
				w.server.Gone()
			}
		}},
		{"down", func(t *testing.T, w *world) {
			must(t, w.server.Down(true))
			w.churn()
			must(t, w.server.Down(false))
			w.churn()
		}},
		{"failing", func(t *testing.T, w *world) {
			w.server.Fail(http.StatusInternalServerError)
			w.server.CutWatches()
			w.churn()
			w.server.Fail(0)
		}},
		{"overloaded", func(t *testing.T, w *world) {
			w.server.Fail(http.StatusTooManyRequests)
			w.server.CutWatches()
			w.churn()
			w.server.Fail(0)
		}},
		{"forbidden for a while", func(t *testing.T, w *world) {
			w.server.Forbid("services", true)
			w.server.Gone()
			w.churn()
			w.server.Forbid("services", false)
		}},
		{"duplicated", func(t *testing.T, w *world) {
			w.server.Duplicate(true)
			w.churn()
		}},
		{"objects of 1 MiB", func(t *testing.T, w *world) {
			for i := range 20 {
				w.setLarge(fmt.Sprintf("s%d", i))
			}
			w.server.CutWatches()
			w.churn()
		}},
		{"late", func(t *testing.T, w *world) {
			w.server.Delay(30 * time.Millisecond)
			w.churn()
		}},
		{"replayed backwards", func(t *testing.T, w *world) {
			w.churn()
			w.server.Replay(10)
			w.churn()
			w.server.Replay(100)
		}},
		{"bookmarks, then cut", func(t *testing.T, w *world) {
			w.churn()
			w.server.Bookmark()
			w.server.CutWatches()
		}},
	}
	for _, tt := range faults {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
				t.Parallel()
				w := newWorld(server)
				sink := trackertest.NewSink()
				awaitSync(t, run(t, client, informer.Options{}, sink))
				tt.fault(t, w)
				w.set("last")
				await(t, sink, w.want)
			})
		})
	}
}

// TestRandomFaults mixes changes and faults in an order that a seed gives.
func TestRandomFaults(t *testing.T) {
	inAllModes(t, func(t *testing.T, server *apiserver.Server, client kubernetes.Interface) {
		t.Parallel()
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		w := newWorld(server)
		sink := trackertest.NewSink()
		awaitSync(t, run(t, client, informer.Options{}, sink))
		for range 200 {
			name := fmt.Sprintf("s%d", random.IntN(30))
			switch random.IntN(20) {
			case 0:
				server.CutWatches()
			case 1:
				server.Gone()
			case 2:
				server.Replay(random.IntN(20))
			case 3:
				server.Duplicate(random.IntN(2) == 0)
			case 4:
				server.Bookmark()
			case 5, 6, 7:
				w.remove(name)
			default:
				w.set(name)
			}
			if random.IntN(10) == 0 {
				runtime.Gosched()
			}
		}
		w.set("last")
		await(t, sink, w.want)
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestReplayedEventsAreDropped holds that the sink sees no event twice.
func TestReplayedEventsAreDropped(t *testing.T) {
	server, url := start(t)
	w := newWorld(server)
	sink := trackertest.NewSink()
	awaitSync(t, run(t, dial(t, url, ""), informer.Options{}, sink))
	w.churn()
	await(t, sink, w.want)
	before := sink.Calls()
	server.Replay(100)
	w.set("last")
	await(t, sink, w.want)
	if sets := sink.Calls() - before; sets != 1 {
		t.Errorf("the sink was given %d objects, one was changed", sets)
	}
}

// TestRelistChangesOnlyWhatDiffers: the tracker compares the objects of a new list with what it has.
func TestRelistChangesOnlyWhatDiffers(t *testing.T) {
	server, url := start(t)
	w := newWorld(server)
	known := tracker.New(tracker.Config{})
	source := informer.New(dial(t, url, ""), informer.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- source.Run(ctx, known) }()
	awaitSync(t, source)
	before, _ := known.Changes()
	server.Gone()
	w.set("last")
	now := before
	for deadline := time.Now().Add(patience); now == before &&
		time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		now, _ = known.Changes()
	}
	cancel()
	must(t, <-ended)
	now, _ = known.Changes() // the end of Run is after the list
	if n := now.Services - before.Services; before.Services != 20 || n != 1 {
		t.Errorf("%d Services at first, %d changes by the list; want 20, and the last one", before.Services, n)
	}
}
