package sync

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestCommitsOfStickyPorts: whatever changes at a Service with session affinity and many ports, a commit has few
// elements and few rules that look up an affinity map, because for each such rule the kernel goes through all entries
// of the map.
func TestCommitsOfStickyPorts(t *testing.T) {
	const ports, n = 100, 150
	addrs := lab.Addresses(netip.MustParseAddr("10.8.0.1"), 2*n)
	type edit func(*corev1.Service, *discoveryv1.EndpointSlice)
	endpoints := func(from, n int) edit {
		return func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
			slice.Endpoints = lab.Slice("loud", "web", 0, corev1.IPv4Protocol, addrs[from:from+n]).Endpoints
			for i := range slice.Endpoints {
				slice.Endpoints[i].NodeName = new("node")
			}
		}
	}
	local := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
	}
	external := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.ExternalIPs = []string{"192.0.2.1"} }
	targets := func(_ *corev1.Service, slice *discoveryv1.EndpointSlice) {
		for i, p := range slice.Ports {
			slice.Ports[i].Port = new(*p.Port + 10000)
		}
	}
	few := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Ports = s.Spec.Ports[:20] }
	one := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) { s.Spec.Ports = s.Spec.Ports[:1] }
	timeout := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: new(int32(77))}}
	}
	without := func(s *corev1.Service, _ *discoveryv1.EndpointSlice) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityNone
	}
	for name, between := range map[string][2][]edit{
		"an endpoint is replaced":       {{endpoints(0, n)}, {endpoints(1, n)}},
		"all endpoints are replaced":    {{endpoints(0, n)}, {endpoints(n, n)}},
		"an endpoint more":              {{endpoints(0, n)}, {endpoints(0, n+1)}},
		"lists of another capacity":     {{endpoints(0, 128)}, {endpoints(0, 129)}},
		"lists that the ports share":    {{endpoints(0, 3)}, {endpoints(0, 20)}},
		"no endpoints":                  {{endpoints(0, 0)}, {endpoints(0, n)}},
		"no endpoints, few":             {{endpoints(0, 0)}, {endpoints(0, 2)}},
		"policy Local":                  {{endpoints(0, n)}, {endpoints(0, n), local}},
		"policy Local, few endpoints":   {{endpoints(0, 2)}, {endpoints(0, 2), local}},
		"an external IP":                {{endpoints(0, n)}, {endpoints(0, n), external}},
		"an external IP, few endpoints": {{endpoints(0, 6)}, {endpoints(0, 6), external}},
		"target ports":                  {{endpoints(0, n)}, {endpoints(0, n), targets}},
		"target ports, few endpoints":   {{endpoints(0, 2)}, {endpoints(0, 2), targets}},
		"fewer ports":                   {{endpoints(0, 60)}, {endpoints(0, 60), few}},
		"one port":                      {{endpoints(0, 60)}, {endpoints(0, 60), one}},
		"a timeout":                     {{endpoints(0, 60)}, {endpoints(0, 60), timeout}},
		"affinity":                      {{endpoints(0, 60)}, {endpoints(0, 60), without}},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			c := &loudCluster{Tracker: tracker.New(tracker.Config{NodeName: "node", Quota: 1 << 20,
				Clock: func() time.Time { return now }})}
			r := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024})
			take := func(round int) tracker.Delta {
				d := c.Take()
				r.Apply(d)
				batch := r.Changes()
				r.Committed()
				if n := lookups(batch); round > 0 && n > 2 {
					t.Errorf("round %d: a commit has %d rules that look up an affinity map", round, n)
				}
				if n := batch.ElementCount(); round > 0 && n > mostElements {
					t.Errorf("round %d: a commit has %d elements", round, n)
				}
				return d
			}
			for round := range 50 {
				c.ofPorts(ports, 1, nil)
				c.service.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
				for _, edit := range between[round%2] {
					edit(c.service, c.slices[0])
				}
				c.set(t)
				if round > 2 { // what is added has to wait
					c.Charge("loud", time.Second/4)
				}
				for commits := 0; ; commits++ {
					if round > 5 && commits > round%4 { // the next change comes before this one has ended
						now = now.Add(time.Duration(round%3) * time.Second)
						break
					}
					if commits > 5*ports {
						t.Fatalf("round %d does not end", round)
					}
					d := take(round)
					if d.Due.After(now) && round < 6 {
						now = d.Due
					} else if d.Due.IsZero() && !r.Behind() {
						break
					}
				}
			}
		})
	}
}

// lookups counts the rules of a batch that look up an affinity map.
func lookups(batch nft.Batch) (n int) {
	for _, op := range batch.Ops {
		for _, rule := range op.Rules {
			for _, stmt := range rule {
				if s, ok := stmt.(nft.DNATFrom); ok && strings.HasPrefix(s.Map, layout.AffinityPrefix) {
					n++
				}
			}
		}
	}
	return n
}
