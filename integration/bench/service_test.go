package bench

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/tracker"
)

const (
	// apart is how long after a new Service its EndpointSlice comes, by another watch.
	apart = time.Millisecond
	// calm is the pause between two Services: longer than any rest that the loop takes.
	calm = 100 * time.Millisecond
	// newEndpoints is how many endpoints each new Service has.
	newEndpoints = 10
)

// BenchmarkServiceAdd is the time from a new Service to the commit of its endpoints, if they come
// right after it: when the Service waits for them, when it does not, and for the kernel alone.
func BenchmarkServiceAdd(b *testing.B) {
	for _, n := range []int{1000, 30_000, 100_000} {
		b.Run(fmt.Sprintf("services=%d", n), func(b *testing.B) {
			b.Run("waits", func(b *testing.B) { benchmarkAdd(b, n, 10*time.Millisecond) })
			b.Run("at once", func(b *testing.B) { benchmarkAdd(b, n, 0) })
			b.Run("kernel", func(b *testing.B) { benchmarkAddKernel(b, n) })
		})
	}
}

// manyServices returns a tracker of n Services.
func manyServices(b *testing.B, n int, await time.Duration) *tracker.Tracker {
	tr := tracker.New(tracker.Config{NodeName: "node-a", AwaitSlices: await, CPUTime: trackerConfig.CPUTime})
	for i := range n {
		addService(b, tr, i, func() {})
	}
	return tr
}

// addService adds Service i, and what it calls between is done before its endpoints come.
func addService(b *testing.B, tr *tracker.Tracker, i int, between func()) {
	if err := tr.SetService(benchService(i)); err != nil {
		b.Fatal(err)
	}
	between()
	if err := tr.SetSlice(benchSlice(i, newEndpoints)); err != nil {
		b.Fatal(err)
	}
}

func removeService(tr *tracker.Tracker, i int) {
	s := benchSlice(i, 0)
	tr.DeleteService(s.Namespace, benchService(i).Name)
	tr.DeleteSlice(s.Namespace, s.Name)
}

// benchmarkAdd adds one Service to n in a loop like the daemon's, and removes it, again and again.
func benchmarkAdd(b *testing.B, n int, await time.Duration) {
	lab.New(b)
	tr, queue := manyServices(b, n, await), proxysync.NewQueue()
	reports := make(chan proxysync.Report, 16)
	loop := proxysync.New(tr, services.NewRuleset(services.Config{Families: nft.Families[:]}), lab.Open(b, kernel.Open),
		proxysync.Options{Log: zap.NewNop(), Queue: queue, Committed: func(r proxysync.Report) { reports <- r }})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- loop.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	awaitEndpoints := func() (commits int) {
		for r := range reports {
			if r.Elements > 0 {
				commits++
			}
			if r.Elements >= newEndpoints {
				break
			}
		}
		return commits
	}
	awaitEndpoints() // of the start
	commits := 0
	var lags []time.Duration
	for b.Loop() {
		time.Sleep(calm)
		began := time.Now()
		addService(b, tr, n, func() {
			queue.Notify()
			time.Sleep(apart)
		})
		queue.Notify()
		commits += awaitEndpoints()
		lags = append(lags, time.Since(began))
		removeService(tr, n)
		queue.Notify()
		awaitEndpoints()
	}
	reportMedian(b, lags)
	b.ReportMetric(float64(commits)/float64(b.N), "commits/op")
}

// benchmarkAddKernel commits what such a Service is in one batch.
func benchmarkAddKernel(b *testing.B, n int) {
	lab.New(b)
	tr, ruleset, client := manyServices(b, n, 0), services.NewRuleset(services.Config{Families: nft.Families[:]}),
		lab.Open(b, kernel.Open)
	commit := func(batch nft.Batch) time.Duration {
		began := time.Now()
		if err := client.Commit(b.Context(), batch); err != nil {
			b.Fatal(err)
		}
		ruleset.Committed()
		return time.Since(began)
	}
	ruleset.Apply(tr.Take())
	commit(change.Diff(nil, ruleset.Want()))
	var took []time.Duration
	for b.Loop() {
		time.Sleep(calm)
		addService(b, tr, n, func() {})
		ruleset.Apply(tr.Take())
		took = append(took, commit(ruleset.Changes()))
		removeService(tr, n)
		ruleset.Apply(tr.Take())
		commit(ruleset.Changes())
	}
	reportMedian(b, took)
}

// reportMedian reports the median as the benchmark's time: some rounds meet other work.
func reportMedian(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "ns/op")
}
