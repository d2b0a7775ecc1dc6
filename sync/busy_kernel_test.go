package sync

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// commitElsewhere makes another program commit to tables of its own, with pauses of so many seconds.
func commitElsewhere(t testing.TB, pause string) *lab.Process {
	t.Helper()
	return lab.Start(t, "sh", "-c", `while :; do
		nft "add table inet zz; add table ip zz; add chain ip zz c"; [ $0 = 0 ] || sleep $0
		nft "delete table inet zz; delete table ip zz"; [ $0 = 0 ] || sleep $0
	done`, pause)
}

// TestBusyNeighbor starts a loop, with and without tables of an earlier one, and lets it repair a table that
// nft deletes, while another program commits to tables of its own.
func TestBusyNeighbor(t *testing.T) {
	pauses := []string{"0.05", "0"}
	if testing.Short() { // as with -race, which makes the loop slower than a program that commits without a pause
		pauses = pauses[:1]
	}
	for _, pause := range pauses {
		for _, size := range []struct{ services, endpoints int }{{100, 2}, {5000, 10}} {
			for _, restart := range []bool{false, true} {
				t.Run(fmt.Sprintf("pause=%s/services=%d/restart=%v", pause, size.services, restart), func(t *testing.T) {
					lab.New(t)
					lab.Run(t, "table ip zz { chain c { }; }", "nft", "-f", "-") // stands before ours
					delta := manyServices(size.services, size.endpoints)
					if restart {
						ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024})
						loop := New(&feed{deltas: []tracker.Delta{delta}}, ruleset, lab.Open(t, kernel.Open), Options{Log: zap.NewNop()})
						if err := loop.once(t.Context()); err != nil {
							t.Fatal(err)
						}
					}
					neighbor := commitElsewhere(t, pause)
					began := time.Now()
					k := lab.Open(t, kernel.Open)
					g := watchWith(t, k, k, delta)
					g.wasQuick(t, "start", began)
					began = time.Now()
					lab.Run(t, "", "nft", "delete", "table", "ip", nft.TableName)
					g.report(t)
					g.wasQuick(t, "repair", began)
					neighbor.Kill()
					g.check(t)
				})
			}
		}
	}
}

// busyTime bounds a start, a restart and a repair beside another program that commits, on a machine that may be busy.
// On an idle machine each takes half a second for 5,000 Services. Without the monitor it would be more than a minute.
const busyTime = 30 * time.Second

// wasQuick fails the test if something took too long or a sync has failed.
func (g *watched) wasQuick(t testing.TB, what string, began time.Time) {
	t.Helper()
	took := time.Since(began)
	t.Logf("%s: %v", what, took.Round(time.Millisecond))
	if took > busyTime {
		t.Errorf("the %s took %v, want %v at most", what, took, busyTime)
	}
	for _, failed := range g.logs.FilterMessage("sync failed").All() {
		t.Errorf("sync failed: %v", failed.ContextMap())
	}
}
