package sync

import (
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestLogConflicts: the log names the loser of a conflict with a remedy, and the end of the conflict.
func TestLogConflicts(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	port := func(name, addr string) *tracker.ServicePort {
		id := tracker.PortID{Namespace: "d", Service: name, Protocol: tracker.UDP, Family: tracker.IPv4}
		return &tracker.ServicePort{PortSpec: &tracker.PortSpec{ID: id, UID: name, Port: 53, NodePort: 30053,
			ClusterIP: netip.MustParseAddr(addr)}, Lists: new(tracker.Lists)}
	}
	i, j := port("i", "10.96.0.1"), port("j", "10.96.0.2")
	c, ruleset := newConflictLog(zap.New(core)), services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})
	apply := func(d tracker.Delta) {
		ruleset.Apply(d)
		conflicts, _ := ruleset.Conflicts()
		c.add(conflicts, ruleset.OwnerChanges())
		ruleset.Committed()
	}
	apply(tracker.Delta{Changed: []*tracker.ServicePort{i, j}})
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
	if got := lines[1].Message; got != "a conflict is over: the loser is served there now" {
		t.Error(got)
	}
}

// TestFloodOfConflicts: the log has a few conflicts of a namespace with very many, one line that says so, and
// the conflicts of other namespaces.
func TestFloodOfConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		c := newConflictLog(zap.New(core))
		lines := func(message string) int { return logs.FilterMessageSnippet(message).Len() }
		id := func(namespace string, i int) tracker.PortID {
			return tracker.PortID{Namespace: namespace, Service: fmt.Sprint(i), Protocol: tracker.TCP, Family: tracker.IPv4}
		}
		flood := func(namespace string, losers int) (conflicts []services.Conflict) {
			at := tracker.Frontend{Address: netip.AddrFrom4([4]byte{192, 0, 2, 1}), Protocol: tracker.TCP, Port: 80}
			for i := range losers {
				conflicts = append(conflicts, services.Conflict{Frontend: at, Winner: id("w", 0), Loser: id(namespace, i)})
			}
			return conflicts
		}
		logged := c.add(append(flood("bad", 2000), flood("good", 1)...), nil)
		if len(logged) != conflictsPerNamespace+1 || logged[conflictsPerNamespace].Loser.Namespace != "good" {
			t.Errorf("logged %d: %v", len(logged), logged)
		}
		for range 50 { // more in the same minute
			if logged := c.add(flood("bad", 100), nil); len(logged) != 0 {
				t.Errorf("logged %v", logged)
			}
		}
		if n := lines("too many conflicts in this namespace"); n != 1 {
			t.Errorf("%d lines say that some are missing", n)
		}
		for i := range 2 * conflictsTotal { // a tenant with many namespaces
			c.add(flood(fmt.Sprint("ns-", i), 5), nil)
		}
		if logged := c.add(flood("better", 2), nil); len(logged) != 1 {
			t.Errorf("%d of a namespace's first conflicts are logged, want one", len(logged))
		}
		time.Sleep(time.Minute)
		if logged := c.add(flood("bad", 1), nil); len(logged) != 1 {
			t.Errorf("in the next minute: logged %v", logged)
		}
		var ends []services.OwnerChange
		for _, conflict := range flood("bad", 20) {
			ends = append(ends, services.OwnerChange{Frontend: conflict.Frontend, Before: conflict.Winner, Now: conflict.Loser})
		}
		c.add(nil, ends)
		if n := lines("a conflict is over: the loser is served there now"); n != conflictsPerNamespace {
			t.Errorf("%d ends of conflicts logged, want %d", n, conflictsPerNamespace)
		}
		var unmet []services.Unmet
		for i := range 20 {
			unmet = append(unmet, services.Unmet{ID: id("bad", i)})
		}
		c.addUnserved(nil, unmet)
		if n := lines("this node does not serve what a Service requests"); n != conflictsPerNamespace {
			t.Errorf("%d unmet annotations logged, want %d", n, conflictsPerNamespace)
		}
	})
}
