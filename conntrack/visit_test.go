package conntrack

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// translated returns n flows that were translated.
func translated(n int) []Flow {
	flows := foreign(tracker.TCP, n)
	for i := range flows {
		flows[i].Status |= DestinationNAT
		flows[i].Reply.Source = netip.MustParseAddrPort("10.244.9.9:8080")
	}
	return flows
}

// TestVisit reads all, a part, and all again: a socket on which a dump was cut short is used no more.
func TestVisit(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	const all = 5000
	create(t, table, translated(all)...)
	create(t, table, foreign(tracker.UDP, 100)...)
	filter := Filter{Family: tracker.IPv4, Has: DestinationNAT}
	for _, tt := range []struct {
		budget, want int
		complete     bool
	}{{all + 1, all, true}, {all, all, true}, {all - 1, all - 1, false}, {10, 10, false}, {0, 0, false},
		{all + 1, all, true}} {
		seen := 0
		complete, err := table.Visit(t.Context(), filter, tt.budget, func(*Flow) { seen++ })
		if err != nil || seen != tt.want || complete != tt.complete {
			t.Errorf("budget %d: %d flows, complete %t, %v; want %d, %t", tt.budget, seen, complete, err, tt.want, tt.complete)
		}
	}
	if n := count(t, table); n != all+100 {
		t.Errorf("%d flows, want %d", n, all+100)
	}
}

// TestVisitOfManyFlows: of 200,000 flows, or as many as this machine takes, those that were not translated stay in
// the kernel, and a budget bounds what the others cost.
func TestVisitOfManyFlows(t *testing.T) {
	if testing.Short() {
		t.Skip("creates 200,000 connection tracking entries")
	}
	lab.New(t)
	table := openTable(t)
	half := scale / 2
	if text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max"); err == nil {
		limit, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		half = min(half, limit*9/20)
	}
	create(t, table, foreign(tracker.UDP, half)...)
	create(t, table, translated(half)...)
	took := make(map[int]time.Duration)
	for _, tt := range []struct{ budget, want int }{{scale, half}, {1000, 1000}, {1000, 1000}, {1000, 1000}, {1000, 1000},
		{1000, 1000}} {
		seen, begin := 0, time.Now()
		complete, err := table.Visit(t.Context(), Filter{Family: tracker.IPv4, Has: DestinationNAT}, tt.budget,
			func(*Flow) { seen++ })
		if d := time.Since(begin); took[tt.budget] == 0 || d < took[tt.budget] { // others may have the processor meanwhile
			took[tt.budget] = d
		}
		if err != nil || seen != tt.want || complete != (tt.budget == scale) {
			t.Errorf("budget %d: %d of %d flows, complete %t, %v", tt.budget, seen, half, complete, err)
		}
	}
	t.Logf("%d flows, half of them translated: %s; the first 1000: %s", 2*half, took[scale], took[1000])
	if took[1000] > took[scale]/3 {
		t.Errorf("a budget of 1000 takes %s, all of them %s", took[1000], took[scale])
	}
}

func TestEnded(t *testing.T) {
	for state, want := range map[TCPState]bool{0: false, SYNSent: false, 3: false, 4: false, 5: false, 6: true, 7: true,
		8: true, 9: false} {
		if got := (&Flow{TCPState: state}).Ended(); got != want {
			t.Errorf("state %d: %t", state, got)
		}
	}
}
