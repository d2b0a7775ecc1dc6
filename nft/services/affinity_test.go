package services

import (
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// TestTaskGoesWithItsMap removes a Service port while the batch that was to forget clients of
// its endpoint has not been committed: no operation may name the map that goes.
func TestTaskGoesWithItsMap(t *testing.T) {
	port := clusterPort(1, 3)
	port.Affinity = time.Hour
	fewer := *port
	fewer.Cluster = port.Cluster[:2]
	without := fewer
	without.Affinity = 0
	for _, tt := range []struct {
		name string
		next tracker.Delta
	}{
		{"the port is removed", tracker.Delta{Removed: map[tracker.PortID]bool{port.ID: true}}},
		{"affinity is given up", tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: &without}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := NewRuleset(testConfig())
			r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: port}})
			r.Committed()
			r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: &fewer}})
			if n := len(r.AffinityTasks()); n != 1 {
				t.Fatalf("%d tasks for an endpoint that left, want 1", n)
			}
			r.Apply(tt.next)
			if tasks := r.AffinityTasks(); len(tasks) > 0 {
				t.Errorf("a task is left for the map %s, which goes", tasks[0].Map.Name)
			}
		})
	}
}
