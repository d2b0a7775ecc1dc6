package sync

import (
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestStickyPortsAtStart restarts a loop after ports with session affinity have got more endpoints, or have come, while
// their affinity map has many entries. For each chain that looks an entry up the kernel goes through the map, so that
// each port has a commit of its own.
func TestStickyPortsAtStart(t *testing.T) {
	thousand := lab.Addresses(netip.MustParseAddr("10.8.0.1"), 1000)
	for name, ports := range map[string]int{"more endpoints": 50, "more ports": 1} {
		t.Run(name, func(t *testing.T) {
			lab.New(t)
			c := &loudCluster{Tracker: tracker.New(tracker.Config{NodeName: "node"}), kernel: lab.Open(t, kernel.Open)}
			set := func(ports, endpoints int) {
				c.ofPorts(ports, 1, thousand[:endpoints])
				c.service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				c.set(t)
			}
			loop := func(k client) (*Loop, *services.Ruleset) {
				r := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 131072})
				return New(c.Tracker, r, k, Options{Log: zap.NewNop(), MinInterval: time.Millisecond}), r
			}
			set(ports, 2)
			first, _ := loop(lab.Open(t, kernel.Open))
			must(t, first.once(t.Context()))
			c.fill(t, 30_000)
			c.Tracker = tracker.New(tracker.Config{NodeName: "node"})
			set(50, 6)
			k := &timed{Client: lab.Open(t, kernel.Open), before: func() {}}
			second, ruleset := loop(k)
			done, began := make(chan bool, 1), time.Now()
			second.options.Committed = func(Report) {
				if !second.behind {
					select {
					case done <- true:
					default:
					}
				}
			}
			runLoop(t, second)
			<-done
			t.Logf("%d commits in %v, the longest %v, the most lookups %d", k.commits, time.Since(began), k.longest,
				k.lookups)
			if k.lookups > 2 {
				t.Errorf("a commit writes %d rules that look up an affinity map", k.lookups)
			}
			have, _, err := lab.Open(t, kernel.Open).Read(t.Context())
			must(t, err)
			if diff := change.Diff(have, ruleset.Want()); !diff.Empty() {
				t.Errorf("%d operations are left", len(diff.Ops))
			}
		})
	}
}
