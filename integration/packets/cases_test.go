package packets

import (
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// Flags of the behaviour cases.
var (
	casesDir   = flag.String("cases", "testdata/cases", "directory of behaviour cases that TestCases runs")
	sourceName = flag.String("source", "manifests", "where kube-nft gets its objects from in TestCases: manifests or api")
)

// TestCases runs kube-nft against every behaviour case, each in a namespace of its own.
func TestCases(t *testing.T) {
	lab.Require(t)
	newSource, ok := sources[*sourceName]
	if !ok {
		t.Fatalf("unknown -source %s", *sourceName)
	}
	cases, err := loadCases(*casesDir)
	if err != nil {
		t.Fatal(err)
	}
	binary := lab.Program(t)
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			runCase(t, c, binary, newSource)
		})
	}
}

// runCase plays one case from its first objects to its last step.
func runCase(t *testing.T, c behaviourCase, binary string, newSource func(testing.TB) source) {
	b, w := startCase(t, c, binary, newSource, func() {})
	playCase(t, b, w, c)
}

// playCase sends the packets of a case and changes its objects.
func playCase(t *testing.T, b *bench, w *world, c behaviourCase) {
	runFlows(t, b, c.Flows, 0, 0)
	for _, step := range c.Steps {
		w.change(step.Apply, step.Delete)
		w.sync(t, b)
		if slices.ContainsFunc(step.Apply, isSticky) {
			time.Sleep(handover)
		}
		runFlows(t, b, step.Flows, w.losses(), w.patience(step))
	}
}

// startCase moves the calling test onto a bench on which kube-nft has acted on the first
// objects of a case. It calls prepare before kube-nft starts.
func startCase(t *testing.T, c behaviourCase, binary string, newSource func(testing.TB) source,
	prepare func()) (*bench, *world) {
	t.Helper()
	pods, err := c.Proxy.podRanges()
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, c.NodeIPs, pods)
	if err := b.listenFor(c.allFlows()); err != nil {
		t.Fatal(err)
	}
	w := &world{source: newSource(t), sentinel: newSentinel(c.NodeIPs)}
	w.change(c.Objects, nil)
	w.publish(t)
	prepare()
	w.proxy = lab.Start(t, slices.Concat([]string{binary}, c.Proxy.flags(), w.source.Flags())...)
	t.Cleanup(func() { logOnFailure(t, w.proxy) })
	w.sync(t, b)
	return b, w
}

// logOnFailure shows what the proxy said and did in a case that failed.
func logOnFailure(t *testing.T, proxy *lab.Process) {
	if !t.Failed() {
		return
	}
	t.Logf("kube-nft wrote:\n%s", proxy.Stderr())
	if testing.Verbose() {
		t.Logf("ruleset:\n%s", lab.Run(t, "", "nft", "list", "ruleset"))
	}
}

// runFlows sends the packets of each flow and reports it as a subtest. The packets are
// sent here, because the subtest's goroutine is not in the namespace. Each flow may fail so many times, and more often
// before patience ends.
func runFlows(t *testing.T, b *bench, flows []flow, losses int, patience time.Duration) {
	for _, f := range flows {
		first, deadline := b.port, time.Now().Add(patience)
		complaint := b.complaint(f)
		for n := 0; complaint != "" && (n < losses || time.Now().Before(deadline)); n, complaint = n+1, b.complaint(f) {
			time.Sleep(firstPause)
			flushTracked(t) // then the same source ports make new connections
			b.port = first
		}
		t.Run(f.Name, func(t *testing.T) {
			if complaint != "" {
				t.Errorf("%s %s via %s to %s\n%s", f.Proto, f.From, f.Via, f.To, complaint)
			}
		})
	}
}

// complaint tries a flow and returns what is wrong with what became of it, or "".
func (b *bench) complaint(f flow) string {
	outcomes, err := b.try(f, connectionsPerEndpoint*f.Expect.endpoints())
	complaint := f.Expect.complaint(outcomes, b.addresses)
	if err != nil {
		complaint += err.Error()
	}
	return complaint
}

// A world is the objects of a case and the proxy that acts on them.
type world struct {
	source   source
	sentinel *sentinel
	proxy    *lab.Process
	objects  []map[string]any // in the order in which they appeared
}

// change creates or replaces objects, then deletes some.
func (w *world) change(apply []map[string]any, remove []objectID) {
	for _, object := range apply {
		id := idOf(object)
		i := slices.IndexFunc(w.objects, func(o map[string]any) bool { return idOf(o) == id })
		if i < 0 {
			w.objects = append(w.objects, object)
		} else {
			w.objects[i] = object
		}
	}
	w.objects = slices.DeleteFunc(w.objects, func(o map[string]any) bool {
		return slices.Contains(remove, idOf(o))
	})
}

// publish makes the world's objects known, the sentinel's last.
func (w *world) publish(t testing.TB) {
	t.Helper()
	w.source.publish(t, slices.Concat(w.objects, w.sentinel.objects(t)))
}

// sync publishes the world and waits for the proxy to act on it. A proxy may take up the
// objects of one reading in any order and in several commits. So there are two readings:
// a proxy that acts on the second one has finished with the first.
func (w *world) sync(t testing.TB, b *bench) {
	t.Helper()
	for range 2 {
		w.sentinel.generation++
		w.publish(t)
		w.sentinel.await(t, b, w.proxy)
	}
}

// handover is more than kube-nft needs to make entries of clients for the list of another traffic policy, after the
// commit: a client that is faster may change its endpoint (docs/decisions/040-one-affinity-clean-up.md).
const handover = 500 * time.Millisecond

// losses returns how many times a flow after a step may fail. With session affinity, a client whose endpoint has left
// may lose one packet, which removes the client's entry (docs/decisions/040-one-affinity-clean-up.md).
func (w *world) losses() int {
	if slices.ContainsFunc(w.objects, isSticky) {
		return 1
	}
	return 0
}

// patience returns how long the flows after a step may fail at first. Over the API each kind of object comes in a
// stream of its own, and the sentinel shows only for its own kinds that they have been read.
func (w *world) patience(step caseStep) time.Duration {
	if *sourceName != "api" {
		return 0
	}
	for _, object := range step.Apply {
		if kind := idOf(object).Kind; kind != "Service" && kind != "EndpointSlice" {
			return lab.Patience
		}
	}
	for _, id := range step.Delete {
		if id.Kind != "Service" && id.Kind != "EndpointSlice" {
			return lab.Patience
		}
	}
	return 0
}

// isSticky reports whether an object is a Service with session affinity.
func isSticky(object map[string]any) bool {
	spec, _ := object["spec"].(map[string]any)
	return idOf(object).Kind == "Service" && spec["sessionAffinity"] == "ClientIP"
}
