package tracker

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// weighing gives a slice a weight.
func weighing(s *discoveryv1.EndpointSlice, weight string) *discoveryv1.EndpointSlice {
	s.Annotations = map[string]string{"kube-nft.io/weight": weight}
	return s
}

// TestMostWeighted: more endpoints than that have equal shares, and those with weight 0 still get no connections. Fewer
// have their weights again.
func TestMostWeighted(t *testing.T) {
	tr := newTracker(Config{})
	must(t, tr.SetService(newService()))
	must(t, tr.SetSlice(weighing(newSlice("web-1", newEndpoint("10.0.0.1")), "3")))
	must(t, tr.SetSlice(weighing(newSlice("web-2", newEndpoint("10.0.0.2")), "0")))
	for _, tt := range []struct {
		endpoints  int
		unweighted bool
	}{{MostWeighted, false}, {MostWeighted + 1, true}, {MostWeighted - 1, false}} {
		slice := newSlice("web-3")
		for i := range tt.endpoints - 1 {
			slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250)))
		}
		must(t, tr.SetSlice(slice))
		p := tr.Take().Changed[0]
		for d := tr.Take(); len(d.Changed) > 0; d = tr.Take() {
			p = d.Changed[0]
		}
		if len(p.Cluster) != tt.endpoints || p.Unweighted != tt.unweighted || p.Weighted() == tt.unweighted {
			t.Errorf("%d endpoints: %d in the list, without weights %v, with weights %v", tt.endpoints, len(p.Cluster),
				p.Unweighted, p.Weighted())
		}
	}
}

// TestStepsAcrossMostWeighted: a list with weights changes at once, but not when it becomes one that is too long for
// weights, or was one.
func TestStepsAcrossMostWeighted(t *testing.T) {
	now := started
	tr := newStopped(&now, Config{}, func(tr *Tracker) {
		must(t, tr.SetService(newService()))
		must(t, tr.SetSlice(weighing(newSlice("web-1", newEndpoint("10.0.0.1")), "3")))
		must(t, tr.SetSlice(newSlice("web-2", newEndpoint("10.0.0.2"))))
	})
	for _, endpoints := range []int{10 * mostWork, 1} {
		slice := newSlice("web-2")
		for i := range endpoints {
			slice.Endpoints = append(slice.Endpoints, newEndpoint(fmt.Sprintf("10.%d.%d.%d", 1+i/50_000, i/250%200, 1+i%250)))
		}
		must(t, tr.SetSlice(slice))
		steps, before := 0, tr.entries[objectName{"shop", "web"}].out[0]
		for ; steps < 100; steps++ {
			d := tr.Take()
			if len(d.Changed) == 0 {
				break
			}
			after := d.Changed[0]
			if gone, come := differingEndpoints(before, after); gone+come > mostWork+MostWeighted {
				t.Errorf("one step: %d endpoints go, %d come", gone, come)
			}
			before = after
		}
		if long := endpoints > 1; len(before.Cluster) != endpoints+1 || before.Unweighted != long ||
			before.Weighted() == long || steps < 5 || steps == 100 {
			t.Errorf("%d endpoints after %d steps, without weights %v", len(before.Cluster), steps, before.Unweighted)
		}
	}
}

// TestWeights says which endpoints of two slices with weights are in which list.
func TestWeights(t *testing.T) {
	const a, b, both = "10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.1:8080 10.0.0.2:8080"
	for _, tt := range []struct {
		name                   string
		first, second          string // the endpoint of each slice
		weight, secondWeight   string
		local                  bool
		cluster, here, serving string
		weights                []uint16
		some                   bool
		healthy                int
	}{
		{name: "two weights", first: "10.0.0.1", second: "10.0.0.2", weight: "2", secondWeight: "7", cluster: both,
			serving: both, weights: []uint16{2, 7}, some: true},
		{name: "one weight of two slices", first: "10.0.0.1", second: "10.0.0.2", weight: "9", secondWeight: "9",
			cluster: both, serving: both, some: true},
		{name: "the default", first: "10.0.0.1", second: "10.0.0.2", weight: "5", cluster: both, serving: both,
			weights: []uint16{5, 1}, some: true},
		{name: "an unknown weight is none", first: "10.0.0.1", second: "10.0.0.2", weight: "heavy", secondWeight: "65536",
			cluster: both, serving: both, some: true},
		{name: "drained", first: "10.0.0.1", second: "10.0.0.2", weight: "0", cluster: b, serving: both, some: true},
		{name: "all drained", first: "10.0.0.1", second: "10.0.0.2", weight: "0", secondWeight: "0", serving: both},
		{name: "drained, the other one terminates", first: "10.0.0.1", second: "10.0.0.2 notready terminating", weight: "0",
			cluster: b, serving: both, some: true},
		{name: "one drained twice", first: "10.0.0.1", second: "10.0.0.1", weight: "0", secondWeight: "5", serving: a},
		{name: "one twice: the first slice", first: "10.0.0.1", second: "10.0.0.1", weight: "5", secondWeight: "0",
			cluster: a, serving: a, some: true},
		{name: "one twice: the ready one", first: "10.0.0.1 notready", second: "10.0.0.1", weight: "0", secondWeight: "5",
			cluster: a, serving: a, some: true},
		{name: "drained here", first: "10.0.0.1 node=node-a", second: "10.0.0.2", weight: "0", local: true, cluster: b,
			serving: both, some: true},
		{name: "one of two drained here", first: "10.0.0.1 node=node-a", second: "10.0.0.2 node=node-a", weight: "0",
			local: true, cluster: b, here: b, serving: both, some: true, healthy: 1},
		{name: "hints of a drained endpoint do not matter", first: "10.0.0.1", second: "10.0.0.2 nodes=node-a", weight: "0",
			cluster: b, serving: both, some: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tr := newTracker(Config{NodeName: "node-a"})
			edits := []func(*corev1.Service){}
			if tt.local {
				edits = append(edits, balanced("198.51.100.1"), externalLocal)
			}
			tr.SetService(newService(edits...))
			first, second := newSlice("web-1", newEndpoint(tt.first)), newSlice("web-2", newEndpoint(tt.second))
			if tt.weight != "" {
				weighing(first, tt.weight)
			}
			if tt.secondWeight != "" {
				weighing(second, tt.secondWeight)
			}
			tr.SetSlice(second)
			tr.SetSlice(first)
			for _, p := range tr.Take().Changed {
				p = p.withPorts()
				for _, list := range []struct {
					name string
					got  any
					want string
				}{{"Cluster", p.Cluster, tt.cluster}, {"Local", p.Local, tt.here}, {"Serving", p.Serving, tt.serving}} {
					if got := fmt.Sprint(list.got); got != "["+list.want+"]" {
						t.Errorf("%s is %s, want [%s]", list.name, got, list.want)
					}
				}
				if !slices.Equal(p.ClusterWeights, tt.weights) || p.HasEndpoints != tt.some || p.LocalReady != tt.healthy {
					t.Errorf("weights %v, HasEndpoints %t, LocalReady %d; want %v, %t, %d", p.ClusterWeights, p.HasEndpoints,
						p.LocalReady, tt.weights, tt.some, tt.healthy)
				}
			}
		})
	}
}

// TestWeightChanges: a weight changes the Service port, and nothing else does.
func TestWeightChanges(t *testing.T) {
	tr := newTracker(Config{})
	tr.SetService(newService())
	// many: listings
	for _, name := range []string{"web-1", "web-2", "web-3", "web-4", "web-5", "web-6", "web-7", "web-8", "web-9"} {
		tr.SetSlice(newSlice(name, newEndpoint("10.0.0."+name[4:])))
	}
	tr.Take()
	for _, step := range []struct {
		weight  string
		changed bool
		want    string
	}{
		{"1", false, ""}, {"7", true, "[1 7 1 1 1 1 1 1 1]"}, {"7", false, ""}, {"0", true, "[]"}, {"x", true, "[]"},
	} {
		tr.SetSlice(weighing(newSlice("web-2", newEndpoint("10.0.0.2")), step.weight))
		delta := tr.Take()
		if !delta.Empty() != step.changed {
			t.Errorf("weight %s: changed %t, want %t", step.weight, !delta.Empty(), step.changed)
		}
		for _, p := range delta.Changed {
			if got := fmt.Sprint(p.ClusterWeights); got != step.want {
				t.Errorf("weight %s: weights %s, want %s", step.weight, got, step.want)
			}
		}
	}
}
