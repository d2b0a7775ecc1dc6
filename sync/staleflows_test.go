package sync

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// cleaner keeps what it is asked to clean up and fails as it is told.
type cleaner struct {
	fails   error
	full    int
	changes []tracker.FlowChange
}

func (c *cleaner) Clean(_ context.Context, changes []tracker.FlowChange, _ conntrack.Desired) (conntrack.Result, error) {
	c.changes = changes
	return conntrack.Result{}, c.fails
}

func (c *cleaner) Full(context.Context, conntrack.Desired) (conntrack.Result, error) {
	c.full++
	return conntrack.Result{}, c.fails
}

// cleanAfter cleans up after a commit.
func cleanAfter(l *Loop, changes []tracker.FlowChange, all bool) FlowReport {
	l.stale.add(changes, all)
	return l.stale.clean(context.Background())
}

// TestFailedCleaningIsRepeated fails to clean up after one commit: the next one does it all,
// with one change for each frontend.
func TestFailedCleaningIsRepeated(t *testing.T) {
	c := &cleaner{fails: errors.New("no connection tracking")}
	l := New(new(feed), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), new(table), Options{Log: zap.NewNop()})
	l.CleanFlows(c)
	dns := tracker.Frontend{Address: netip.MustParseAddr("10.96.0.10"), Protocol: tracker.UDP, Port: 53}
	a, b := netip.MustParseAddrPort("10.244.0.1:53"), netip.MustParseAddrPort("10.244.0.2:53")
	first := []tracker.FlowChange{{Frontend: dns, Removed: []netip.AddrPort{b}, Appeared: true}}
	if report := cleanAfter(l, first, true); report.Err == nil {
		t.Error("no error is reported")
	}
	c.fails = nil
	later := []tracker.FlowChange{{Frontend: dns, Removed: []netip.AddrPort{a, b}, Gone: true}}
	if report := cleanAfter(l, later, false); report.Err != nil || !report.Ran || c.full != 2 {
		t.Errorf("report %+v after %d full runs, want 2", report, c.full)
	}
	want := []tracker.FlowChange{{
		Frontend: tracker.Frontend{Address: dns.Address, Protocol: tracker.UDP, Port: 53},
		Removed:  []netip.AddrPort{a, b}, Gone: true, Appeared: true,
	}}
	if diff := cmp.Diff(want, c.changes, cmp.Comparer(func(x, y netip.Addr) bool { return x == y }),
		cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y })); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if report := cleanAfter(l, nil, false); report.Ran || c.full != 2 {
		t.Errorf("cleaned up again: %+v", report)
	}
}

// TestFailedCleaningIsLoggedOnce fails to clean up with every commit, then in another way, and
// after a success in that way again.
func TestFailedCleaningIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	l := New(new(feed), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), new(table), Options{Log: zap.New(core)})
	c := new(cleaner)
	l.CleanFlows(c)
	away, busy := errors.New("no connection tracking"), errors.New("busy")
	for i, tt := range []struct {
		err  error
		want int // lines so far
	}{{away, 1}, {away, 1}, {busy, 2}, {busy, 2}, {nil, 2}, {busy, 3}} {
		c.fails = tt.err
		if cleanAfter(l, nil, true); logs.Len() != tt.want {
			t.Errorf("commit %d: %d lines, want %d", i, logs.Len(), tt.want)
		}
	}
}

// TestFullCleaningKnowsFrontends looks at all connections: changes are needed for the
// frontends only that are gone.
func TestFullCleaningKnowsFrontends(t *testing.T) {
	f, c := new(feed), new(cleaner)
	l := New(f, services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), new(table), Options{Log: zap.NewNop()})
	l.CleanFlows(c)
	f.add("web")
	l.ruleset.Apply(f.Take())
	known := tracker.Frontend{Address: netip.MustParseAddr("10.96.0.3"), Protocol: tracker.TCP, Port: 80}
	gone := tracker.Frontend{Address: netip.MustParseAddr("10.96.0.9"), Protocol: tracker.TCP, Port: 80}
	flows := []tracker.FlowChange{{Frontend: known, Appeared: true}, {Frontend: gone, Gone: true}}
	if report := cleanAfter(l, flows, true); report.Err != nil {
		t.Fatal(report.Err)
	}
	if c.full != 1 || len(c.changes) != 1 || c.changes[0].Frontend.Address != gone.Address {
		t.Errorf("%d full runs, and changes %v; want one, and %s", c.full, c.changes, gone)
	}
}
