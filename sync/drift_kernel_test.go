package sync

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/conntrack"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A watched is a loop at work in the test's namespace, with a stranger who commits to
// the same tables.
type watched struct {
	ruleset          *services.Ruleset
	loop             *Loop
	feed             *feed
	reports          chan Report
	first            Report // of the sync at the start
	skips            chan skipped
	logs             *observer.ObservedLogs
	stranger, reader *kernel.Client
}

// A skipped Service is one that the kernel refused.
type skipped struct {
	service string
	err     error
}

// watchServices runs a loop that has committed Services and listens.
func watchServices(t testing.TB, services, endpoints int) *watched {
	t.Helper()
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	return watchWith(t, k, k, manyServices(services, endpoints))
}

// watchWith runs a loop that commits a delta by way of a client, or of one with faults, whose
// commits the monitor passes over, and cleans flows if given.
func watchWith(t testing.TB, through client, own *kernel.Client, delta tracker.Delta, looks ...flows) *watched {
	t.Helper()
	g := &watched{reports: make(chan Report, 64), skips: make(chan skipped, 64), stranger: lab.Open(t, kernel.Open),
		reader: lab.Open(t, kernel.Open)}
	g.ruleset = services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024})
	monitor, err := kernel.NewMonitor(own)
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	g.logs = logs
	g.feed = &feed{deltas: []tracker.Delta{delta}}
	g.loop = New(g.feed, g.ruleset, through, Options{
		Log:           zap.New(core),
		AuditInterval: 30 * time.Second,
		Committed:     func(r Report) { g.reports <- r },
		Skipped:       func(namespace, service string, err error) { g.skips <- skipped{namespace + "/" + service, err} },
	})
	for _, flows := range looks {
		g.loop.CleanFlows(flows)
	}
	g.loop.Watch(monitor)
	t.Cleanup(func() { // when the loop has ended
		if err := monitor.Close(); err != nil {
			t.Error(err)
		}
	})
	runLoop(t, g.loop)
	g.first = g.report(t)
	return g
}

// manyServices makes up Service ports; every tenth has session affinity.
func manyServices(services, endpoints int) tracker.Delta {
	delta := tracker.Delta{}
	for i := range services {
		p := &tracker.ServicePort{PortSpec: &tracker.PortSpec{
			ID: tracker.PortID{Namespace: "ns", Service: fmt.Sprintf("service-%d", i), Protocol: tracker.TCP,
				Family: tracker.IPv4},
			UID: fmt.Sprintf("uid-%d", i), Port: 80,
			ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}),
		},
			Lists: new(tracker.Lists), HasEndpoints: true,
		}
		for e := range endpoints {
			n := i*endpoints + e
			p.Cluster = append(p.Cluster,
				netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128 + byte(n>>16), byte(n >> 8), byte(n)}), 8080))
		}
		if i%10 == 0 && services <= 100 {
			p.Affinity = time.Hour
		}
		p.Serving = p.Cluster
		delta.Changed = append(delta.Changed, p)
	}
	delta.ServiceCIDRs, delta.CIDRsChanged = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, true
	return delta
}

// report waits for the loop's next sync.
func (g *watched) report(t testing.TB) Report {
	t.Helper()
	select {
	case report := <-g.reports:
		return report
	case <-time.After(lab.Patience):
		t.Fatalf("no sync within %s", lab.Patience)
		return Report{}
	}
}

// commit is what the stranger does, in one transaction.
func (g *watched) commit(t testing.TB, ops ...nft.Op) {
	t.Helper()
	generation, err := g.stranger.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := g.stranger.Commit(t.Context(), nft.Batch{Ops: ops, Generation: generation}); err != nil {
		t.Fatal(err)
	}
}

// check holds the kernel against what is wanted.
func (g *watched) check(t testing.TB) {
	t.Helper()
	have, _, err := g.reader.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if batch := change.Diff(have, g.ruleset.Want()); !batch.Empty() {
		t.Errorf("%d operations are left to do, first: %s", len(batch.Ops), batch.Ops[0].Text())
	}
}

// A vandal makes up what another program does to a table.
type vandal struct {
	name string
	ops  func(*nft.Table) []nft.Op
	read bool // the repair takes a full read
}

// vandals lists kinds of damage.
var vandals = []vandal{
	{name: "endpoint deleted", ops: func(t *nft.Table) []nft.Op { return deletion(t, "endpoints-tcp", 1) }},
	{name: "frontend deleted", ops: func(t *nft.Table) []nft.Op { return deletion(t, "services", 1) }},
	{name: "map emptied", ops: func(t *nft.Table) []nft.Op {
		return deletion(t, "services", len(t.Sets["services"].Map))
	}},
	{name: "endpoint redirected", ops: func(t *nft.Table) []nft.Op {
		ops := deletion(t, "endpoints-tcp", 1)
		element := ops[0].Elements[0]
		element.Data = string([]byte{192, 0, 2, 1, 0, 80, 0, 0})
		return append(ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: ops[0].Set, Elements: []nft.KeyedElement{element}})
	}},
	{name: "element added", ops: func(*nft.Table) []nft.Op {
		set := &nft.Set{Name: "cluster-ips", Key: []nft.Field{nft.FieldAddr}}
		return []nft.Op{{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{{Key: "\xc0\x00\x02\x01"}}}}
	}},
	{name: "range deleted", ops: func(t *nft.Table) []nft.Op { return deletion(t, "service-cidrs", 1) }},
	{name: "range added", ops: func(t *nft.Table) []nft.Op {
		return []nft.Op{{Verb: nft.Add, Family: nft.IP, Set: t.Sets["service-cidrs"].Set, Elements: []nft.KeyedElement{
			{Key: "\x0a\x61\x00\x00\x0a\x61\x00\xff"}, {Key: "\xff\x00\x00\x00\xff\xff\xff\xff"}}}}
	}},
	{name: "range narrowed", ops: func(t *nft.Table) []nft.Op {
		ops := deletion(t, "service-cidrs", 1)
		return append(ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: ops[0].Set,
			Elements: []nft.KeyedElement{{Key: "\x0a\x60\x00\x00\x0a\x60\x00\xff"}}})
	}},
	{name: "rules deleted", ops: func(t *nft.Table) []nft.Op {
		return []nft.Op{{Verb: nft.Flush, Family: nft.IP, Chain: t.Chains["services"]}}
	}},
	{name: "rule added", ops: func(t *nft.Table) []nft.Op {
		return []nft.Op{{Verb: nft.Add, Family: nft.IP, Chain: t.Chains["services"], Rules: []nft.Rule{{nft.Drop}}}}
	}},
	{name: "chain deleted", ops: func(t *nft.Table) []nft.Op {
		chain := t.Chains["nat-prerouting"]
		return []nft.Op{{Verb: nft.Flush, Family: nft.IP, Chain: chain}, {Verb: nft.Delete, Family: nft.IP, Chain: chain}}
	}},
	{name: "chain and set added", ops: func(*nft.Table) []nft.Op {
		set := &nft.Set{Name: "foreign", Key: []nft.Field{nft.FieldAddr}}
		chain := &nft.Chain{Name: "foreign"}
		return []nft.Op{
			{Verb: nft.Add, Family: nft.IP, Set: set}, {Verb: nft.Add, Family: nft.IP, Chain: chain},
			{Verb: nft.Add, Family: nft.IP, Chain: chain,
				Rules: []nft.Rule{{nft.InSet{Key: []nft.Part{nft.Source}, Set: "foreign"}, nft.Drop}}},
			{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{{Key: "\xc0\x00\x02\x01"}}},
		}
	}},
	{name: "set deleted", ops: func(t *nft.Table) []nft.Op {
		return []nft.Op{
			{Verb: nft.Flush, Family: nft.IP, Chain: t.Chains["nat-postrouting"]},
			{Verb: nft.Delete, Family: nft.IP, Set: t.Sets["hairpin"].Set},
		}
	}},
	{name: "table deleted", ops: func(t *nft.Table) []nft.Op {
		return []nft.Op{{Verb: nft.Delete, Family: nft.IP, Table: t}}
	}},
	{name: "table replaced", read: true, ops: func(t *nft.Table) []nft.Op {
		return []nft.Op{
			{Verb: nft.Delete, Family: nft.IP, Table: t}, {Verb: nft.Add, Family: nft.IP, Table: t},
			{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "foreign"}},
		}
	}},
}

// deletion takes the first n elements out of a set.
func deletion(t *nft.Table, set string, n int) []nft.Op {
	var elements []nft.KeyedElement
	for key, element := range t.Sets[set].Map {
		if len(elements) < n {
			elements = append(elements, nft.KeyedElement{Key: key, Element: element})
		}
	}
	return []nft.Op{{Verb: nft.Delete, Family: nft.IP, Set: t.Sets[set].Set, Elements: elements}}
}

func TestDamageIsRepaired(t *testing.T) {
	g := watchServices(t, 20, 3)
	for _, v := range vandals {
		g.commit(t, v.ops(g.ruleset.Want()[nft.IP])...)
		report := g.report(t)
		if report.ReviewReason == "" || report.Operations == 0 || report.Full != v.read {
			t.Errorf("%s: %d operations because of %q, full read %v", v.name, report.Operations, report.ReviewReason,
				report.Full)
		}
		g.check(t)
	}
}

// lateFlows look at the log when they are to look at connections.
type lateFlows struct {
	flows
	logs    atomic.Pointer[observer.ObservedLogs]
	repairs chan int // lines about repairs that were there
}

func (f *lateFlows) Full(context.Context, []tracker.FlowChange, conntrack.Desired) (conntrack.Result, error) {
	repairs := 0
	if logs := f.logs.Load(); logs != nil {
		repairs = logs.FilterMessage("repaired our tables").Len()
	}
	f.repairs <- repairs
	return conntrack.Result{}, nil
}

// TestRepairIsLogged: with what was repaired, and when that was done.
func TestRepairIsLogged(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	late := &lateFlows{repairs: make(chan int, 1)}
	g := watchWith(t, &faulty{Client: k}, k, manyServices(50, 3), late)
	<-late.repairs // after the first commit
	late.logs.Store(g.logs)
	for _, tt := range []struct {
		damage     []nft.Op
		first      string
		operations int64
		reason     string
	}{
		{deletion(g.ruleset.Want()[nft.IP], "endpoints-tcp", 1), "add element ip kube-nft endpoints-tcp { ", 1,
			"changed our tables: 1 object needs repair"},
		{deletion(g.ruleset.Want()[nft.IP], "endpoints-tcp", 100), "add element ip kube-nft endpoints-tcp { ", 1,
			"changed our tables: 100 objects need repair"},
		{[]nft.Op{{Verb: nft.Flush, Family: nft.IP, Chain: g.ruleset.Want()[nft.IP].Chains["services"]}},
			"flush chain ip kube-nft services", 2, "1 object needs"},
	} {
		g.commit(t, tt.damage...)
		g.report(t)
		repairs := <-late.repairs
		lines := g.logs.FilterMessage("repaired our tables").All()
		g.logs.TakeAll()
		if len(lines) != 1 {
			t.Fatalf("%d lines about the repair", len(lines))
		}
		fields := lines[0].ContextMap()
		first, reason := fields["first_operation"].(string), fields["reason"].(string)
		if !strings.HasPrefix(first, tt.first) || len(first) > briefLength+len("…") || strings.Contains(first, "\n") {
			t.Errorf("first operation %q, want %s… in a line of %d bytes at most", first, tt.first, briefLength)
		}
		if fields["operations"] != tt.operations || !strings.Contains(reason, tt.reason) {
			t.Errorf("%v operations because of %q, want %d because of %q", fields["operations"], reason,
				tt.operations, tt.reason)
		}
		if fields["after"].(time.Duration) <= 0 || repairs != 1 {
			t.Errorf("repaired after %v; %d lines before the look at connections, want one", fields["after"], repairs)
		}
	}
}

// TestForeignCommitsWithoutEffect commits to other tables, and to ours what changes nothing.
func TestForeignCommitsWithoutEffect(t *testing.T) {
	g := watchServices(t, 20, 3)
	lab.Run(t, "table ip other { map services { type ipv4_addr : verdict; elements = { 192.0.2.1 : drop }; }; }",
		"nft", "-f", "-")
	want := g.ruleset.Want()[nft.IP]
	same := deletion(want, "endpoints-tcp", 1)
	g.commit(t, same[0], nft.Op{Verb: nft.Add, Family: nft.IP, Set: same[0].Set, Elements: same[0].Elements})
	lab.Run(t, "", "nft", "delete", "table", "ip", "other")
	g.commit(t, deletion(want, "services", 1)...)
	report := g.report(t)
	if report.Operations != 1 || len(g.reports) != 0 {
		t.Errorf("%d operations, %d more syncs; want the repair of one element to be all", report.Operations, len(g.reports))
	}
	g.check(t)
}

// TestFlushRuleset lets nft empty everything, which names it in the log.
func TestFlushRuleset(t *testing.T) {
	g := watchServices(t, 20, 3)
	lab.Run(t, "", "nft", "flush", "ruleset")
	report := g.report(t)
	var pid, objects int
	if n, err := fmt.Sscanf(report.ReviewReason,
		"nft (pid %d) changed our tables: %d objects need repair", &pid,
		&objects); n != 2 || pid == 0 || objects != 2 {
		t.Errorf("reason %q (%v), want that nft changed two objects, the tables", report.ReviewReason, err)
	}
	g.check(t)
}

// BenchmarkRepair is the time from a stranger's commit to the end of the repair. Run it with
// -benchtime 20x: further repairs would have to wait.
func BenchmarkRepair(b *testing.B) {
	for _, size := range []struct{ services, endpoints int }{{10000, 1}, {10000, 10}} {
		for _, v := range vandals {
			b.Run(fmt.Sprintf("services=%d/endpoints=%d/%s", size.services, size.endpoints, v.name), func(b *testing.B) {
				if b.N > promptRepairs {
					b.Skip("more repairs than are done at once")
				}
				g := watchServices(b, size.services, size.endpoints)
				want := g.ruleset.Want()[nft.IP]
				b.ResetTimer()
				for range b.N {
					b.StopTimer()
					ops := v.ops(want)
					b.StartTimer()
					g.commit(b, ops...)
					g.report(b)
				}
			})
		}
	}
}
