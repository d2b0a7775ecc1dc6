package sync

import (
	"fmt"
	"net/netip"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestLogConflicts: who goes without is told with a remedy, and once when that is over.
func TestLogConflicts(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	port := func(name, addr string) *tracker.ServicePort {
		id := tracker.PortID{Namespace: "d", Service: name, Protocol: tracker.UDP, Family: tracker.IPv4}
		return &tracker.ServicePort{ID: id, UID: name, Port: 53, NodePort: 30053, ClusterIP: netip.MustParseAddr(addr)}
	}
	i, j := port("i", "10.96.0.1"), port("j", "10.96.0.2")
	c, ruleset := conflictLog{log: zap.New(core)}, services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})
	apply := func(d tracker.Delta) {
		ruleset.Apply(d)
		fresh, standing := ruleset.Conflicts()
		c.note(fresh, ruleset.Successions(), standing)
		ruleset.Committed()
	}
	apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{i.ID: i, j.ID: j}})
	apply(tracker.Delta{Removed: map[tracker.PortID]bool{i.ID: true}})
	apply(tracker.Delta{})
	lines := logs.All()
	if len(lines) != 2 {
		t.Fatalf("log %v", lines)
	}
	for n, want := range []map[string]any{
		{"frontend": "node port 30053/udp", "winner": "d/i/udp", "loser": "d/j/udp",
			"remedy": "the loser is not served there while the winner claims it: change the address or port of one of them"},
		{"frontend": "node port 30053/udp", "before": "d/i/udp", "now": "d/j/udp"},
	} {
		for key, value := range want {
			if got := lines[n].ContextMap()[key]; got != value {
				t.Errorf("line %d: %s is %v, want %v", n, key, got, value)
			}
		}
	}
	if got := lines[1].Message; got != "conflict over: the loser is served there now" {
		t.Error(got)
	}
}

// TestFloodOfConflicts: of what one tenant makes a few are named and the others counted, in one
// line a minute; what another tenant has is named all the same, as an event before the second
// one of the flood.
func TestFloodOfConflicts(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	c := conflictLog{log: zap.New(core)}
	lines := func(message string) []observer.LoggedEntry { return logs.FilterMessage(message).All() }
	id := func(namespace string, i int) tracker.PortID {
		return tracker.PortID{Namespace: namespace, Service: fmt.Sprint(i), Protocol: tracker.TCP, Family: tracker.IPv4}
	}
	flood := func(namespace string, frontends, losers int) (conflicts []services.Conflict) {
		for f := range frontends {
			at := tracker.Frontend{Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(f)}), Protocol: tracker.TCP, Port: 80}
			for i := range losers {
				conflicts = append(conflicts, services.Conflict{Frontend: at, Winner: id("w", 0), Loser: id(namespace, i)})
			}
		}
		return conflicts
	}
	named := c.note(append(flood("bad", 20, 100), flood("good", 1, 1)...), nil, 2001)
	if len(named) != namedPerNamespace+1 || named[0].Loser.Namespace != "bad" || named[1].Loser.Namespace != "good" {
		t.Errorf("named %d: %v", len(named), named)
	}
	for i := range 50 { // more of the same minute
		if named := c.note(flood("bad", 1, 100), nil, 3000+i); len(named) != 0 {
			t.Errorf("named %v", named)
		}
	}
	for i := range 2 * namedInAll { // a tenant with many namespaces
		c.note(flood(fmt.Sprint("ns-", i), 1, 5), nil, 4000)
	}
	if named := c.note(flood("better", 1, 2), nil, 4001); len(named) != 1 {
		t.Errorf("%d of a namespace's first conflicts are named, want one", len(named))
	}
	more := lines("more conflicts than are named")
	if len(more) != 1 || more[0].ContextMap()["conflicts"] != int64(1990) || more[0].ContextMap()["standing"] != int64(2001) {
		t.Errorf("lines in the minute: %v", more)
	}
	total := 2000 + 1 + 50*100 + 2*namedInAll*5 + 2
	c.endMinute()
	more = lines("more conflicts than are named")
	if got := len(lines("conflict")) + 1990 + int(more[len(more)-1].ContextMap()["conflicts"].(int64)); len(more) != 2 || got != total {
		t.Errorf("%d lines; %d conflicts named or counted, want %d", len(more), got, total)
	}
	c.endMinute()
	if named := c.note(flood("bad", 1, 1), nil, 1); len(named) != 1 || len(lines("more conflicts than are named")) != 2 {
		t.Errorf("in the next minute: named %v", named)
	}
	var successions []services.Succession
	for _, conflict := range flood("bad", 20, 1) {
		successions = append(successions, services.Succession{Frontend: conflict.Frontend, Before: conflict.Winner, Heir: conflict.Loser})
	}
	c.note(nil, successions, 0)
	if n := len(lines("conflict over: the loser is served there now")); n != namedPerNamespace {
		t.Errorf("%d ends of conflicts named, want %d", n, namedPerNamespace)
	}
}
