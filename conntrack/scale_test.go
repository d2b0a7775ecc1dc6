package conntrack

import (
	"net/netip"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// foreign returns n flows of protocol that have nothing to do with any Service.
func foreign(protocol tracker.Protocol, n int) []Flow {
	f := flow(protocol, "172.16.0.0:10000", "203.0.113.80:80", "203.0.113.80:80", established)
	flows := make([]Flow, n)
	for i := range flows {
		source := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
		f.Original.Source = netip.AddrPortFrom(source, uint16(10_000+i>>16))
		f.Reply.Destination = f.Original.Source
		flows[i] = f
	}
	return flows
}

// count returns how many flows the table holds.
func count(tb testing.TB, table *Table) (n int) {
	tb.Helper()
	_, err := table.Flows(tb.Context(), Filter{}, func(*Flow) bool { n++; return false })
	if err != nil {
		tb.Fatal(err)
	}
	return n
}

// scale is the number of foreign flows of the tests and benchmarks here.
const scale = 200_000

// TestForeignFlows cleans up among 200,000 foreign flows, half of them UDP, and loses none.
func TestForeignFlows(t *testing.T) {
	if testing.Short() {
		t.Skip("creates 200,000 connection tracking entries")
	}
	lab.New(t)
	table := openTable(t)
	create(t, table, foreign(tracker.UDP, scale/2)...)
	create(t, table, foreign(tracker.TCP, scale/2)...)
	ours, stale := allCases()
	create(t, table, ours...)
	reconciler := NewReconciler(table)

	change := tracker.FlowChange{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353")}
	result, err := reconciler.Clean(t.Context(), []tracker.FlowChange{change}, desired)
	if err != nil || result.Requests != 1 || result.Deleted != 4 {
		t.Errorf("one frontend: got %+v, %v, want 1 request and 4 deleted", result, err)
	}
	full, err := reconciler.Full(t.Context(), nil, desired)
	if err != nil || full.Deleted != len(stale)-result.Deleted {
		t.Errorf("full: got %+v, %v, want %d deleted", full, err, len(stale)-result.Deleted)
	}
	if got, want := count(t, table), scale+len(ours)-len(stale); got != want {
		t.Errorf("%d flows are left, want %d", got, want)
	}
}

// BenchmarkClean cleans up one frontend with one stale flow, alone and among 200,000
// foreign flows.
func BenchmarkClean(b *testing.B) {
	for name, flows := range map[string][]Flow{
		"alone": nil,
		"tcp":   foreign(tracker.TCP, scale),
		"udp":   foreign(tracker.UDP, scale),
	} {
		b.Run(name, func(b *testing.B) {
			table := crowded(b, flows)
			reconciler := NewReconciler(table)
			stale := flow(tracker.UDP, client, "10.96.0.10:53", "10.244.9.9:5353", established)
			changes := []tracker.FlowChange{{Frontend: at(tracker.UDP, "10.96.0.10:53"), Removed: served("10.244.9.9:5353")}}
			for b.Loop() {
				b.StopTimer()
				create(b, table, stale)
				b.StartTimer()
				result, err := reconciler.Clean(b.Context(), changes, desired)
				if err != nil || result.Deleted != 1 {
					b.Fatalf("got %+v, %v", result, err)
				}
			}
		})
	}
}

// BenchmarkFull compares everything with what should exist.
func BenchmarkFull(b *testing.B) {
	for _, protocol := range []tracker.Protocol{tracker.TCP, tracker.UDP} {
		b.Run(protocol.String(), func(b *testing.B) {
			reconciler := NewReconciler(crowded(b, foreign(protocol, scale)))
			for b.Loop() {
				if _, err := reconciler.Full(b.Context(), nil, desired); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkUnfiltered is what a clean-up costs without the kernel's filter.
func BenchmarkUnfiltered(b *testing.B) {
	table := crowded(b, foreign(tracker.UDP, scale))
	for b.Loop() {
		count(b, table)
	}
}

// BenchmarkDelete deletes 10,000 flows.
func BenchmarkDelete(b *testing.B) {
	lab.New(b)
	table := openTable(b)
	for b.Loop() {
		b.StopTimer()
		create(b, table, foreign(tracker.UDP, 10_000)...)
		flows, err := table.Flows(b.Context(), Filter{}, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if n, err := table.Delete(b.Context(), flows, nil); n != len(flows) || err != nil {
			b.Fatalf("deleted %d of %d, %v", n, len(flows), err)
		}
	}
}

// crowded returns a table that holds flows.
func crowded(b *testing.B, flows []Flow) *Table {
	lab.New(b)
	table := openTable(b)
	create(b, table, flows...)
	return table
}
