package integration

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// syncTimeout bounds the wait for the proxy to act on a change. A proxy that works takes
// milliseconds.
const syncTimeout = 10 * time.Second

// probeInterval is the pause between two looks at whether the proxy has acted.
const probeInterval = 2 * time.Millisecond

// firstGeneration is the port of a case's first sentinel.
const firstGeneration = 10000

// sentinelAddresses are the addresses of the sentinel in one family.
type sentinelAddresses struct {
	family                      string // as the Kubernetes API spells it
	client, clusterIP, endpoint netip.Addr
}

// The sentinel's addresses; no case uses them.
var (
	sentinelIPv4 = sentinelAddresses{
		family:    "IPv4",
		client:    netip.MustParseAddr("10.244.255.253"),
		clusterIP: netip.MustParseAddr("198.18.0.1"),
		endpoint:  netip.MustParseAddr("10.244.255.254"),
	}
	sentinelIPv6 = sentinelAddresses{
		family:    "IPv6",
		client:    netip.MustParseAddr("fd00:10:244:ffff::fffd"),
		clusterIP: netip.MustParseAddr("fd00:198:18::1"),
		endpoint:  netip.MustParseAddr("fd00:10:244:ffff::fffe"),
	}
)

// A sentinel is a Service that shows how far the proxy has come. Its port and its
// endpoint's port are the generation, so a packet that reaches the endpoint proves that
// the proxy has acted on this generation's Service and EndpointSlices, and so on
// everything that it was told before them.
type sentinel struct {
	families   []sentinelAddresses
	generation uint16
}

// newSentinel returns a sentinel for the families that a node has addresses of.
func newSentinel(node []netip.Addr) *sentinel {
	s := &sentinel{generation: firstGeneration}
	if slices.ContainsFunc(node, netip.Addr.Is4) {
		s.families = append(s.families, sentinelIPv4)
	}
	if slices.ContainsFunc(node, netip.Addr.Is6) {
		s.families = append(s.families, sentinelIPv6)
	}
	return s
}

// objects returns the sentinel's Service and EndpointSlices.
func (s *sentinel) objects() []map[string]any {
	var families, clusterIPs []any
	var slices []map[string]any
	for _, f := range s.families {
		families = append(families, f.family)
		clusterIPs = append(clusterIPs, f.clusterIP.String())
		slices = append(slices, s.slice(f))
	}
	policy := "SingleStack"
	if len(families) > 1 {
		policy = "RequireDualStack"
	}
	port := map[string]any{"name": "probe", "protocol": "TCP", "port": s.generation, "targetPort": s.generation}
	return append(slices, map[string]any{
		"apiVersion": "v1",
		"kind":       "Service",
		"metadata":   map[string]any{"namespace": "kube-nft-test", "name": "sentinel"},
		"spec": map[string]any{
			"type":                  "ClusterIP",
			"clusterIP":             clusterIPs[0],
			"clusterIPs":            clusterIPs,
			"ipFamilies":            families,
			"ipFamilyPolicy":        policy,
			"internalTrafficPolicy": "Cluster",
			"sessionAffinity":       "None",
			"ports":                 []any{port},
		},
		"status": map[string]any{"loadBalancer": map[string]any{}},
	})
}

// slice returns the sentinel's EndpointSlice of one family.
func (s *sentinel) slice(f sentinelAddresses) map[string]any {
	return map[string]any{
		"apiVersion": "discovery.k8s.io/v1",
		"kind":       "EndpointSlice",
		"metadata": map[string]any{
			"namespace": "kube-nft-test",
			"name":      "sentinel-" + f.family[2:],
			"labels":    map[string]any{"kubernetes.io/service-name": "sentinel"},
		},
		"addressType": f.family,
		"endpoints": []any{map[string]any{
			"addresses":  []any{f.endpoint.String()},
			"conditions": map[string]any{"ready": true, "serving": true, "terminating": false},
		}},
		"ports": []any{map[string]any{"name": "probe", "protocol": "TCP", "port": s.generation}},
	}
}

// await returns when the proxy has acted on the sentinel's present generation. The test
// fails if the proxy exits or takes too long.
func (s *sentinel) await(t testing.TB, b *bench, proxy *netns.Process) {
	t.Helper()
	deadline := time.After(syncTimeout)
	for {
		done, err := s.reached(b)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		select {
		case <-time.After(probeInterval):
		case <-proxy.Exited():
			t.Fatalf("kube-nft exited with code %d:\n%s", proxy.ExitCode(), proxy.Stderr())
		case <-deadline:
			t.Fatalf("kube-nft did not serve a new Service within %s", syncTimeout)
		}
	}
}

// reached reports whether a connection to the sentinel reaches its endpoint in each family.
func (s *sentinel) reached(b *bench) (bool, error) {
	for _, f := range s.families {
		ok, err := s.reachedIn(b, f)
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// reachedIn is reached for one family.
func (s *sentinel) reachedIn(b *bench, f sentinelAddresses) (bool, error) {
	probe := flow{From: f.client, Via: "pod", Proto: "tcp", To: netip.AddrPortFrom(f.clusterIP, s.generation)}
	connections, err := b.connections(probe, 1)
	if err != nil {
		return false, fmt.Errorf("probe: %w", err)
	}
	if _, err := b.open(probe.Via, connections); err != nil {
		return false, err
	}
	packets, err := b.settle(probe.Via, probe.From)
	want := netip.AddrPortFrom(f.endpoint, s.generation)
	return slices.ContainsFunc(packets, func(p packet) bool { return p.kind == opens && p.dst == want }), err
}
