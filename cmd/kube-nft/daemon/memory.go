package daemon

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"golang.org/x/sync/errgroup"

	proxysync "github.com/kube-nft/kube-nft/sync"
)

// The heap may grow by leastGrowth to mostGrowth percent of the live heap before the collector
// runs; between these bounds, by growth bytes. Go's default is 100 percent at any size: then half
// of the memory of a large cluster is garbage. A collection takes time in proportion to the live
// heap, 0.1 s of a second core at 30,000 Services with ten endpoints each; a change makes about
// 10 KiB of garbage.
const (
	leastGrowth = 25
	mostGrowth  = 100
	growth      = 32 << 20 // bytes
)

// startGrowth is the percentage until the first commit. Nearly all of the heap is new then, and most
// of it garbage: with 100 percent the collector takes as much CPU time as everything else.
const startGrowth = 200

// growthOf returns the percentage for a live heap of this many bytes.
func growthOf(live uint64) int {
	return int(max(leastGrowth, min(mostGrowth, growth*100/max(live, 1))))
}

// setByOperator reports whether the operator has chosen how much memory to trade for CPU time.
func setByOperator() bool { return os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" }

// memoryInterval is how often the size of the heap is looked at.
const memoryInterval = 10 * time.Second

// spendMemory lets the collector run less often until saveMemory takes over.
func spendMemory() {
	if !setByOperator() {
		debug.SetGCPercent(startGrowth)
	}
}

// saveMemory gives back what the start has used, once the first commit is done, and from then on
// lets the collector run as often as the size of the heap calls for, until ctx ends.
func saveMemory(ctx context.Context, group *errgroup.Group, settings *proxysync.Options) {
	if setByOperator() {
		return
	}
	started := make(chan struct{}, 1)
	committed := settings.Committed
	settings.Committed = func(r proxysync.Report) {
		committed(r)
		select {
		case started <- struct{}{}:
		default: // it has been said
		}
	}
	group.Go(func() error {
		select {
		case <-started:
		case <-ctx.Done():
			return nil
		}
		debug.FreeOSMemory()
		tick := time.Tick(memoryInterval)
		for percent := startGrowth; ; {
			if now := growthOf(liveHeap()); now != percent {
				percent = now
				debug.SetGCPercent(percent)
			}
			select {
			case <-tick:
			case <-ctx.Done():
				return nil
			}
		}
	})
}

// liveHeap returns how many bytes the latest collection has found in use.
func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	if sample[0].Value.Kind() != metrics.KindUint64 {
		return 0 // a runtime that does not say: as Go does by itself
	}
	return sample[0].Value.Uint64()
}
