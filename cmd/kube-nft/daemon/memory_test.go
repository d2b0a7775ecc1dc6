package daemon

import (
	"runtime"
	"runtime/debug"
	"testing"
)

func TestGrowthOf(t *testing.T) {
	for live, want := range map[uint64]int{0: 100, 5 << 20: 100, 32 << 20: 100, 64 << 20: 50, 100 << 20: 32, 138 << 20: 25, 1 << 30: 25} {
		if got := growthOf(live); got != want {
			t.Errorf("%d MiB: %d percent, want %d", live>>20, got, want)
		}
	}
}

// TestSetByOperator: what the operator says counts, and what he does not say is ours.
func TestSetByOperator(t *testing.T) {
	for _, tt := range []struct {
		percent, limit string
		want           bool
	}{{"", "", false}, {"100", "", true}, {"", "300MiB", true}, {"off", "1GiB", true}} {
		t.Setenv("GOGC", tt.percent)
		t.Setenv("GOMEMLIMIT", tt.limit)
		if got := setByOperator(); got != tt.want {
			t.Errorf("GOGC=%s GOMEMLIMIT=%s: %v", tt.percent, tt.limit, got)
		}
	}
}

// TestSpendMemory: the start has its own percentage, unless the operator has chosen one.
func TestSpendMemory(t *testing.T) {
	before := debug.SetGCPercent(mostGrowth)
	defer debug.SetGCPercent(before)
	t.Setenv("GOGC", "100")
	spendMemory()
	if got := debug.SetGCPercent(mostGrowth); got != mostGrowth {
		t.Errorf("with GOGC=100: %d percent", got)
	}
	t.Setenv("GOGC", "")
	spendMemory()
	if got := debug.SetGCPercent(mostGrowth); got != startGrowth {
		t.Errorf("%d percent, want %d", got, startGrowth)
	}
}

// TestLiveHeap: the runtime knows the number by its name.
func TestLiveHeap(t *testing.T) {
	runtime.GC()
	if liveHeap() == 0 {
		t.Error("the runtime does not tell how much of the heap lives")
	}
}
