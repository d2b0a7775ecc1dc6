package services

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/tracker"
)

// serviceWithRanges is a Service of some ports at one load-balancer IP each, with some ranges.
func serviceWithRanges(ports, ranges int) (service []*tracker.ServicePort) {
	var sources []netip.Prefix
	for i := range ranges {
		sources = append(sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 7), byte(i<<1) & 0xfe, 0}), 24))
	}
	for i := range ports {
		p := clusterPort(0, 2)
		p.ID.Port, p.Port = fmt.Sprintf("port-%d", i), uint16(1000+i)
		p.LoadBalancers = []netip.Addr{netip.MustParseAddr("198.51.100.7")}
		p.HasSourceRanges, p.Sources = true, sources
		service = append(service, p)
	}
	return service
}

// rangeElements counts the elements of source ranges, and the sets that are ranges for the
// kernel, which no tenant may fill.
func rangeElements(t *nft.Table) (elements, intervals int) {
	for name, held := range t.Sets {
		if len(name) > len(layout.RangesPrefix) && name[:len(layout.RangesPrefix)] == layout.RangesPrefix {
			elements += len(held.Map)
		}
		if held.Set.Interval && len(held.Map) > 0 {
			intervals++
		}
	}
	return elements, intervals
}

// TestSourceRangesAreStoredOnce: one element for each range, whatever the number of ports, and
// two operations for a range that is replaced by another.
func TestSourceRangesAreStoredOnce(t *testing.T) {
	for _, size := range []struct{ ports, ranges int }{{1, 1000}, {20, 1000}, {20, 5000}} {
		r := NewRuleset(testConfig())
		service := serviceWithRanges(size.ports, size.ranges)
		r.Apply(tracker.Delta{Changed: service})
		if n, intervals := rangeElements(r.Want()[nft.IP]); n != size.ranges || intervals != 0 {
			t.Errorf("%d ports, %d ranges: %d elements, %d sets of ranges", size.ports, size.ranges, n, intervals)
		}
		r.Committed()
		changed := serviceWithRanges(size.ports, size.ranges)
		other := netip.MustParsePrefix("21.0.0.0/24")
		for _, p := range changed {
			p.Sources = append(append([]netip.Prefix{}, p.Sources[:size.ranges-1]...), other)
		}
		r.Apply(tracker.Delta{Changed: changed})
		batch := r.Changes()
		if len(batch.Ops) != 2 || batch.ElementCount() != 2 {
			t.Errorf("%d ports, %d ranges: one range changed is %d operations on %d elements", size.ports, size.ranges,
				len(batch.Ops), batch.ElementCount())
		}
	}
}

// TestPrefixLengthsAreRulesOnce: ports with session affinity have chains of their own, and the rules for prefix lengths
// are in one chain for all of them.
func TestPrefixLengthsAreRulesOnce(t *testing.T) {
	r := NewRuleset(testConfig())
	sticky := func(ranges ...netip.Prefix) []*tracker.ServicePort {
		service := serviceWithRanges(20, 0)
		for _, p := range service {
			p.Affinity, p.Several, p.Sources = time.Hour, true, ranges
		}
		return service
	}
	long, short := netip.MustParsePrefix("20.0.0.0/24"), netip.MustParsePrefix("21.0.0.0/16")
	r.Apply(tracker.Delta{Changed: sticky(long)})
	r.Found(nft.Tables{})
	r.Committed()
	r.Apply(tracker.Delta{Changed: sticky(long, short)})
	rules := 0
	for _, op := range r.Changes().Ops {
		rules += len(op.Rules)
	}
	if rules != 3 { // one for each length, and the end
		t.Errorf("another prefix length writes %d rules", rules)
	}
}

// TestUnusedSourceRangesAreRemoved: with the last port that needs it goes all that stands for its source ranges.
func TestUnusedSourceRangesAreRemoved(t *testing.T) {
	r := NewRuleset(testConfig())
	empty := nft.Tables{nft.IP: r.Want()[nft.IP], nft.IP6: r.Want()[nft.IP6]}.Text()
	service := serviceWithRanges(3, 10)
	r.Apply(tracker.Delta{Changed: service})
	for _, p := range service {
		open := p.With(func(spec *tracker.PortSpec) { spec.HasSourceRanges, spec.Sources = false, nil })
		r.Apply(tracker.Delta{Changed: []*tracker.ServicePort{open}})
	}
	if n, _ := rangeElements(r.Want()[nft.IP]); n != 0 || len(r.families[nft.IP].sourceRanges) != 0 ||
		len(r.families[nft.IP].numbers) != 0 {
		t.Errorf("%d elements, %d source ranges, %d numbers are left", n, len(r.families[nft.IP].sourceRanges),
			len(r.families[nft.IP].numbers))
	}
	r.Apply(tracker.Delta{Changed: service})
	removed := make(map[tracker.PortID]bool)
	for _, p := range service {
		removed[p.ID] = true
	}
	r.Apply(tracker.Delta{Removed: removed})
	if got := r.Want().Text(); got != empty {
		t.Error("a Service that came and went left something")
	}
}

// TestHashCollision: two identities at one number get two.
func TestHashCollision(t *testing.T) {
	r := NewRuleset(testConfig()).families[nft.IP]
	a := r.numberOf(rangesIdentity + "shop/web")
	delete(r.numbers, a)
	r.numbers[a] = "another program"
	if b := r.numberOf(rangesIdentity + "shop/web"); b != a+1 || r.numberOf(rangesIdentity+"shop/web") != b {
		t.Errorf("numbers %d and %d", a, b)
	}
}
