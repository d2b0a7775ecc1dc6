package sync

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestSeedingLeavesKnownClientsAlone fills an affinity map that exists already, as it does
// after a batch whose answer was lost.
func TestSeedingLeavesKnownClientsAlone(t *testing.T) {
	task := seedingTask(t)
	clients := func(names ...string) *nft.Elements {
		held := &nft.Elements{Set: task.Map, Map: make(map[string]nft.Element)}
		for _, name := range names {
			held.Map[name] = nft.Element{}
		}
		return held
	}
	for _, tt := range []struct {
		name string
		into *nft.Elements
		want []string
	}{
		{"the map does not exist", nil, []string{"a", "b"}},
		{"it exists and is empty", clients(), []string{"a", "b"}},
		{"packets have put a client there", clients("a"), []string{"b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			table := nft.NewTable(nft.IP)
			table.Sets[task.From] = clients("a", "b")
			if tt.into != nil {
				table.Sets[task.Map.Name] = tt.into
			}
			if got := slices.Sorted(maps.Keys(entriesFor(&task, table))); !slices.Equal(got, tt.want) {
				t.Errorf("entries of %q are copied, want those of %q", got, tt.want)
			}
			if n := len(table.Sets[task.From].Map); n != 2 {
				t.Errorf("%d entries are left in the table that was read, want 2", n)
			}
		})
	}
}

// seedingTask is that of a Service port with affinity whose policy becomes Local.
func seedingTask(t *testing.T) nft.AffinityTask {
	t.Helper()
	here := []netip.AddrPort{netip.MustParseAddrPort("10.244.0.1:8080")}
	port := tracker.ServicePort{
		ID:   tracker.PortID{Namespace: "ns", Service: "a", Protocol: tracker.TCP, Family: tracker.IPv4},
		Port: 80, ClusterIP: netip.MustParseAddr("10.96.0.1"), NodePort: 30080, Affinity: time.Hour,
		Cluster: here, Serving: here, HasEndpoints: true,
	}
	local := port
	local.ExternalLocal, local.Local = true, here
	r := nft.NewRuleset(nft.Config{Families: []nft.Family{nft.IP}})
	r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: &port}})
	r.Committed()
	r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: &local}})
	tasks := r.AffinityTasks()
	if len(tasks) != 1 || !tasks[0].Seeds() {
		t.Fatalf("tasks %+v, want one that fills a map from another", tasks)
	}
	return tasks[0]
}
