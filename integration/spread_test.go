package integration

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/integration/netns"
)

// falseAlarm is how often a fair choice may look unfair: less than once in 10^6 times.
const falseAlarm = 1e-6

// chiSquare returns Pearson's statistic of how far counts are from being equal. There must
// be at least one count above 0.
func chiSquare(counts []int) float64 {
	total := 0
	for _, n := range counts {
		total += n
	}
	mean := float64(total) / float64(len(counts))
	var sum float64
	for _, n := range counts {
		sum += (float64(n) - mean) * (float64(n) - mean) / mean
	}
	return sum
}

// chiSquareBound returns a value that the statistic of a fair choice among so many
// endpoints, at least 2, exceeds with a probability below falseAlarm. It is Chernoff's
// bound on the tail of the chi-square distribution with k degrees of freedom: beyond x
// lies at most (x/k)^(k/2) * e^((k-x)/2). The distribution fits from about five
// connections per endpoint on.
func chiSquareBound(endpoints int) float64 {
	k := float64(endpoints - 1)
	low, high := k, 100+10*k // the tail falls from 1 to far below falseAlarm
	for high-low > 1e-6 {
		x := (low + high) / 2
		if k/2*math.Log(x/k)+(k-x)/2 > math.Log(falseAlarm) {
			low = x
		} else {
			high = x
		}
	}
	return high
}

// unfairness returns why counts do not look like a uniform choice, or "".
func unfairness(counts []int) string {
	statistic, bound := chiSquare(counts), chiSquareBound(len(counts))
	if statistic <= bound {
		return ""
	}
	return fmt.Sprintf("spread %v: chi-square %.1f, a uniform choice stays below %.1f", counts, statistic, bound)
}

// TestChiSquareBound compares with the distribution's tail, which for an even number k of
// degrees of freedom is a sum of k/2 terms.
func TestChiSquareBound(t *testing.T) {
	for _, k := range []int{2, 4, 10, 50, 200} {
		half := chiSquareBound(k+1) / 2
		term, sum := 1.0, 0.0
		for i := range k / 2 {
			sum += term
			term *= half / float64(i+1)
		}
		if tail := sum * math.Exp(-half); tail > falseAlarm || tail < falseAlarm/100 {
			t.Errorf("%d degrees of freedom: %g lies beyond the bound, want just below %g", k, tail, falseAlarm)
		}
	}
}

func TestUnfairness(t *testing.T) {
	for _, tt := range []struct {
		name   string
		counts []int
		fair   bool
	}{
		{"even", []int{100, 100, 100}, true},
		{"usual scatter", []int{385, 412, 403}, true},
		{"one left out", []int{0, 40, 40, 40}, false},
		{"twice the share", []int{800, 400, 400, 400}, false},
		{"all on one", []int{80, 0}, false},
	} {
		if got := unfairness(tt.counts); (got == "") != tt.fair {
			t.Errorf("%s: %q", tt.name, got)
		}
	}
}

// spreadCase has Services of 7 endpoints, in both families.
const spreadCase = `
name: spread
proxy: {clusterCIDR: "10.244.0.0/16,fd00:10:244::/48"}
nodeIPs: [192.168.0.2, "fd00:192:168::2"]
objects:
- apiVersion: v1
  kind: Service
  metadata: {namespace: shop, name: web}
  spec:
    type: ClusterIP
    clusterIP: 10.96.0.10
    clusterIPs: [10.96.0.10, "fd00:10:96::10"]
    ipFamilies: [IPv4, IPv6]
    ipFamilyPolicy: RequireDualStack
    internalTrafficPolicy: Cluster
    sessionAffinity: None
    ports:
    - {name: http, protocol: TCP, port: 80}
    - {name: quic, protocol: UDP, port: 80}
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {namespace: shop, name: web-4, labels: {kubernetes.io/service-name: web}}
  addressType: IPv4
  ports: [{name: http, protocol: TCP, port: 8080}, {name: quic, protocol: UDP, port: 8080}]
  endpoints: [{addresses: [10.244.1.1]}, {addresses: [10.244.1.2]}, {addresses: [10.244.1.3]}, {addresses: [10.244.1.4]},
    {addresses: [10.244.1.5]}, {addresses: [10.244.1.6]}, {addresses: [10.244.1.7]}]
- apiVersion: discovery.k8s.io/v1
  kind: EndpointSlice
  metadata: {namespace: shop, name: web-6, labels: {kubernetes.io/service-name: web}}
  addressType: IPv6
  ports: [{name: http, protocol: TCP, port: 8080}, {name: quic, protocol: UDP, port: 8080}]
  endpoints: [{addresses: ["fd00:10:244:1::1"]}, {addresses: ["fd00:10:244:1::2"]}, {addresses: ["fd00:10:244:1::3"]},
    {addresses: ["fd00:10:244:1::4"]}, {addresses: ["fd00:10:244:1::5"]}, {addresses: ["fd00:10:244:1::6"]}, {addresses: ["fd00:10:244:1::7"]}]
`

// spreadEndpoints and spreadConnections size the test of the choice: a share that is off
// by a third shows.
const (
	spreadEndpoints   = 7
	spreadConnections = 300 * spreadEndpoints
)

// spreadFlows reach the endpoints of spreadCase over every path of the choice.
var spreadFlows = []flow{
	{Name: "tcp", From: netip.MustParseAddr("10.244.0.7"), Via: "pod", Proto: "tcp", To: netip.MustParseAddrPort("10.96.0.10:80")},
	{Name: "udp", From: netip.MustParseAddr("203.0.113.2"), Via: "external", Proto: "udp", To: netip.MustParseAddrPort("10.96.0.10:80")},
	{Name: "node", From: netip.MustParseAddr("192.168.0.2"), Via: "local", Proto: "tcp", To: netip.MustParseAddrPort("10.96.0.10:80")},
	{Name: "IPv6", From: netip.MustParseAddr("fd00:10:244::7"), Via: "pod", Proto: "tcp", To: netip.MustParseAddrPort("[fd00:10:96::10]:80")},
}

func TestChoiceIsUniform(t *testing.T) {
	netns.Require(t)
	c, err := parseCase([]byte(spreadCase))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := startCase(t, c, buildProxy(t), newManifests)
	for _, f := range spreadFlows {
		outcomes, err := b.try(f, spreadConnections)
		if err != nil {
			t.Fatal(err)
		}
		reached := map[netip.AddrPort]int{}
		for _, o := range outcomes {
			reached[o.endpoint]++
		}
		counts := slices.Collect(maps.Values(reached))
		if len(counts) != spreadEndpoints {
			t.Errorf("%s: %d destinations, want %d: %v", f.Name, len(counts), spreadEndpoints, reached)
		} else if complaint := unfairness(counts); complaint != "" {
			t.Errorf("%s: %s", f.Name, complaint)
		}
	}
}
