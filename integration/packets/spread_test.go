package packets

import (
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
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

// spreadCounts are the numbers of endpoints for which the choice is tested: without a
// choice, powers of two and not, and more than there are chains for from the start.
var spreadCounts = []int{1, 2, 3, 7, 50, 250}

// spreadSample is how many connections are made for each endpoint, and smallestSample how
// many at least: a share that is off by a third shows.
const (
	spreadSample   = 25 // one of 250 is missed in 1 of 10^8 runs
	smallestSample = 600
)

// spreadObjects returns, for each number of endpoints, a Service of each family.
func spreadObjects() string {
	objects := lab.Manifest(node)
	for i, n := range spreadCounts {
		for family := range 2 {
			name := fmt.Sprintf("web-%d-%d", n, family)
			objects += lab.Web(name, movingIP(i, family), lab.Addresses(movingHost(1, family), n))
		}
	}
	return objects
}

// TestChoiceIsUniform counts where connections go, from pods, from outside and from the node
// itself, each a path of its own through the ruleset.
func TestChoiceIsUniform(t *testing.T) {
	t.Parallel()
	b := newBench(t, nodeAddresses, []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"),
		netip.MustParsePrefix("fd00:10:244::/48")})
	heard, objects := lab.ListenToNotices(t), lab.NewDirectory(t)
	objects.Write(t, "objects.yaml", spreadObjects())
	p := objects.Start(t, "--cluster-cidr=10.244.0.0/16,fd00:10:244::/48")
	t.Cleanup(func() { logOnFailure(t, p) })
	heard.Next(t, lab.About("shop/web-250-1:http"))
	for i, n := range spreadCounts {
		for _, f := range spreadFlows {
			if n != 3 && f.Via == "local" {
				continue // a socket for each connection: once is enough
			}
			f.To = netip.AddrPortFrom(movingIP(i, f.family), 80)
			b.port = firstPort - 1 // ports of connections to another Service are free again
			checkSpread(t, b, f.flow, n)
		}
	}
}

// spreadFlows are the paths of a choice through the ruleset, without their destinations.
var spreadFlows = []struct {
	family int
	flow
}{
	{0, flow{From: netip.MustParseAddr("10.244.7.1"), Via: "pod", Proto: "tcp"}},
	{0, flow{From: nodeAddresses[0], Via: "local", Proto: "tcp"}},
	{1, flow{From: netip.MustParseAddr("2001:db8:113::2"), Via: "external", Proto: "tcp"}},
	{1, flow{From: nodeAddresses[1], Via: "local", Proto: "tcp"}},
}

// checkSpread makes connections of a flow and holds their spread over n endpoints to the
// bound of a uniform choice.
func checkSpread(t *testing.T, b *bench, f flow, n int) {
	t.Helper()
	reached := map[netip.AddrPort]int{}
	for rest := max(smallestSample, n*spreadSample); rest > 0; rest -= tunQueue / 2 {
		outcomes, err := b.try(f, min(rest, tunQueue/2)) // all come out before the first is read
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range outcomes {
			reached[o.endpoint]++
		}
	}
	counts := slices.Collect(maps.Values(reached))
	if len(counts) != n {
		t.Errorf("%s from %s: %d destinations, want %d: %v", f.To, f.From, len(counts), n, reached)
	} else if complaint := unfairness(counts); n > 1 && complaint != "" {
		t.Errorf("%s from %s: %s", f.To, f.From, complaint)
	}
}
