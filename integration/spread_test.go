package integration

import (
	"fmt"
	"math"
	"testing"
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
