package sync

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/sync/quota"
	"github.com/kube-nft/kube-nft/tracker"
)

// logPort makes up a Service port that differs from those of other arguments.
func logPort(i int, addr byte) *tracker.ServicePort {
	id := tracker.PortID{Namespace: "ns", Service: fmt.Sprintf("svc-%03d", i), Protocol: tracker.TCP, Family: tracker.IPv4}
	return &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: id, Port: 80,
		ClusterIP: netip.AddrFrom4([4]byte{10, 96, addr, byte(i)})}, Lists: new(tracker.Lists)}
}

// TestLinesOfManyCommits: however many commits there are, info has one line for the start and
// one for each minute with commits, and none for a minute without.
func TestLinesOfManyCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		b := start(t, k, Options{}, logPort(0, 0))
		const commits = 100
		for i := range commits {
			b.change(logPort(1, byte(1+i)))
		}
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		b.change(logPort(2, 0), logPort(3, 0))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		var got []string
		for _, line := range b.logs.All() {
			got = append(got, fmt.Sprint(line.Message, " ", line.ContextMap()["commits"], " ", line.ContextMap()["operations"]))
		}
		operations := 0
		for _, batch := range k.batches[1:] {
			operations += len(batch.Ops)
		}
		last := len(k.batches[len(k.batches)-1].Ops)
		want := []string{
			fmt.Sprint("kube-nft started and programmed the Services <nil> ", len(k.batches[0].Ops)),
			fmt.Sprint("kube-nft synced in the last minute ", commits, " ", operations-last),
			fmt.Sprint("kube-nft synced in the last minute 1 ", last),
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lines of %d commits (-want +got):\n%s", len(k.batches), diff)
		}
	})
}

// TestCommitLines holds the lines of single syncs: their level, and what they name.
func TestCommitLines(t *testing.T) {
	core, logs := observer.New(zap.DebugLevel)
	c := commitLog{log: zap.New(core), wait: quota.Once{Interval: time.Minute}}
	delta := tracker.Delta{Removed: map[tracker.PortID]bool{logPort(0, 0).ID: true}}
	for i := range 200 {
		port := logPort(1+i, 0)
		delta.Changed = append(delta.Changed, port)
	}
	names := []any{"ns/svc-000/tcp", "ns/svc-001/tcp", "ns/svc-002/tcp"}
	for _, tt := range []struct {
		name   string
		report Report
		level  string // with the message; empty for no line
		want   map[string]any
	}{
		{"nothing", Report{Compile: time.Millisecond}, "", nil},
		{"steady", Report{Operations: 2, Elements: 3, Delta: delta, Commit: slowSync}, "debug committed",
			map[string]any{"changed": int64(201), "service_ports": names, "operations": int64(2), "elements": int64(3),
				"commit": slowSync, "longest": nil}},
		{"without Services", Report{Operations: 1}, "debug committed",
			map[string]any{"changed": int64(0), "service_ports": []any(nil)}},
		{"slow commit", Report{Operations: 1, Delta: delta, Compile: 1, Commit: slowSync}, "info a sync was slow",
			map[string]any{"longest": "commit", "changed": int64(201), "service_ports": names}},
		{"slow compile", Report{Operations: 1, Compile: slowSync, Commit: 1}, "info a sync was slow",
			map[string]any{"longest": "compile"}},
		{"slow in sum", Report{Operations: 1, Compile: slowSync * 6 / 10, Commit: slowSync * 7 / 10}, "info a sync was slow",
			map[string]any{"longest": "commit"}},
		{"a long wait", Report{Delta: tracker.Delta{Waiting: 2, Slowest: "shop", Wait: longWait}},
			"info a namespace exceeds its share of the time: its additions wait",
			map[string]any{"namespace": "shop", "wait": longWait, "waiting_services": int64(2)}},
		{"the wait goes on", Report{Delta: tracker.Delta{Waiting: 2, Slowest: "shop", Wait: longWait}}, "", nil},
		{"slow reading", Report{Full: true, Compile: 2 * slowSync}, "info a sync was slow",
			map[string]any{"longest": "reading the tables back, and compile"}},
	} {
		c.add(&tt.report)
		lines := logs.TakeAll()
		if tt.level == "" {
			if len(lines) != 0 {
				t.Errorf("%s: lines %v", tt.name, lines)
			}
			continue
		}
		if len(lines) != 1 || lines[0].Level.String()+" "+lines[0].Message != tt.level {
			t.Errorf("%s: lines %v, want %s", tt.name, lines, tt.level)
			continue
		}
		got := lines[0].ContextMap()
		for key, want := range tt.want {
			if diff := cmp.Diff(want, got[key]); diff != "" &&
				!(key == "service_ports" && fmt.Sprint(want) == fmt.Sprint(got[key])) {
				t.Errorf("%s: %s (-want +got):\n%s", tt.name, key, diff)
			}
		}
	}
	// Where every sync is slow, the lines are few and the sums tell.
	for range 100 {
		c.add(&Report{Operations: 1, Elements: 1, Commit: 3 * slowSync})
	}
	isInfo := func(line observer.LoggedEntry) bool { return line.Level == zap.InfoLevel }
	if lines := logs.TakeAll(); len(slices.DeleteFunc(lines, func(l observer.LoggedEntry) bool {
		return !isInfo(l)
	})) != slowLines-4 {
		t.Errorf("%d lines of slow syncs, four were before", len(lines))
	}
	c.endMinute()
	want := map[string]any{"commits": int64(105), "operations": int64(106), "elements": int64(103),
		"slowest": 3 * slowSync, "slow": int64(104)}
	lines := logs.TakeAll()
	if len(lines) != 1 || lines[0].Message != "kube-nft synced in the last minute" {
		t.Fatalf("lines %v", lines)
	}
	if diff := cmp.Diff(want, lines[0].ContextMap()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	c.endMinute()
	if lines := logs.TakeAll(); len(lines) != 0 {
		t.Errorf("lines of a minute without commits: %v", lines)
	}
}
