package sync

import (
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
	l := Loop{options: Options{Log: zap.New(core)}, ruleset: services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}})}
	apply := func(d tracker.Delta) {
		l.ruleset.Apply(d)
		fresh, _ := l.ruleset.Conflicts()
		l.logConflicts(fresh)
		l.ruleset.Committed()
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
