package daemon

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"

	proxysync "github.com/kube-nft/kube-nft/sync"
)

// Bounds of what the collector lets a heap grow by before it runs, in percent of what lives, and
// the growth that it aims at between them. Go's own setting is 100 percent at any size: half of
// the memory of a large cluster is garbage then. A collection takes time in proportion to what
// lives, 0.1 s of a second core at 30,000 Services with ten endpoints each; garbage comes with
// changes, about 10 KiB each.
const (
	leastGrowth = 25
	mostGrowth  = 100
	growth      = 32 << 20 // bytes
)

// growthOf returns the percentage for a heap of which so many bytes live.
func growthOf(live uint64) int {
	return int(max(leastGrowth, min(mostGrowth, growth*100/max(live, 1))))
}

// setByOperator reports whether the operator has chosen how much memory to trade for CPU time.
func setByOperator() bool { return os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" }

// memoryInterval is how often the size of the heap is looked at.
const memoryInterval = 10 * time.Second

// saveMemory gives back what the start has used, once the first commit is done, and from then on
// lets the collector run as often as the size of the heap calls for, until ctx ends.
func (d *daemon) saveMemory(ctx context.Context, settings *proxysync.Options) {
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
	d.group.Go(func() error {
		select {
		case <-started:
		case <-ctx.Done():
			return nil
		}
		debug.FreeOSMemory()
		for percent := mostGrowth; ; {
			if now := growthOf(liveHeap()); now != percent {
				percent = now
				debug.SetGCPercent(percent)
			}
			if !pause(ctx, memoryInterval) {
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
