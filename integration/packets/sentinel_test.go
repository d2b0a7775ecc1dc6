package packets

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// The pause between two looks at whether the proxy has acted is short at first. It grows, for each look
// takes a source port.
const (
	firstPause   = 2 * time.Millisecond
	longestPause = 100 * time.Millisecond
)

// firstGeneration is the port of a case's first sentinel.
const firstGeneration = 10000

// sentinelAddresses are the addresses of the sentinel in one family.
type sentinelAddresses struct {
	client, clusterIP, endpoint netip.Addr
}

// The sentinel's addresses; no case uses them.
var (
	sentinelIPv4 = sentinelAddresses{
		client:    netip.MustParseAddr("10.244.255.253"),
		clusterIP: netip.MustParseAddr("198.18.0.1"),
		endpoint:  netip.MustParseAddr("10.244.255.254"),
	}
	sentinelIPv6 = sentinelAddresses{
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

// objects returns the sentinel's EndpointSlices and Service.
func (s *sentinel) objects(t testing.TB) (objects []map[string]any) {
	t.Helper()
	const namespace, name = "kube-nft-test", "sentinel"
	var ips []netip.Addr
	for i, f := range s.families {
		slice := lab.Slice(namespace, name, i, lab.FamilyOf(f.endpoint), []netip.Addr{f.endpoint})
		slice.Ports[0].Port = new(int32(s.generation))
		objects, ips = append(objects, asMap(t, slice)), append(ips, f.clusterIP)
	}
	service := lab.Service(namespace, name, ips...)
	service.Spec.Ports[0].Port, service.Spec.Ports[0].TargetPort = int32(s.generation),
		intstr.FromInt32(int32(s.generation))
	return append(objects, asMap(t, service))
}

// asMap returns an object as a case has it.
func asMap(t testing.TB, object any) (m map[string]any) {
	t.Helper()
	text, err := json.Marshal(object)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// await returns when the proxy has acted on the sentinel's present generation. The test
// fails if the proxy exits or takes too long.
func (s *sentinel) await(t testing.TB, b *bench, proxy *lab.Process) {
	t.Helper()
	deadline := time.After(lab.Patience)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		done, err := s.reached(b)
		if err != nil {
			t.Fatal(err)
		}
		if done {
			return
		}
		select {
		case <-time.After(pause):
		case <-proxy.Exited():
			t.Fatalf("kube-nft exited with code %d:\n%s", proxy.ExitCode(), proxy.Stderr())
		case <-deadline:
			t.Fatalf("kube-nft did not serve a new Service within %s", lab.Patience)
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
