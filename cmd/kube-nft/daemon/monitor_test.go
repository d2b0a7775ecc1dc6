package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/events"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/ejection"
	"github.com/kube-nft/kube-nft/sync/health"
	"github.com/kube-nft/kube-nft/tracker"
)

// A recorder keeps events as text.
type recorder []string

func (r *recorder) Eventf(regarding, related runtime.Object, kind, reason, action, note string, args ...any) {
	about := regarding.(*corev1.ObjectReference)
	text := about.Kind + " " + about.Name
	if other, ok := related.(*corev1.ObjectReference); ok {
		text += " and " + other.Name
	}
	*r = append(*r, fmt.Sprintf("%s: %s %s %s: %s", text, kind, reason, action, fmt.Sprintf(note, args...)))
}

func newTestEvents() (*events.Recorder, *recorder) {
	recorded := new(recorder)
	return events.New(recorded, tracker.New(tracker.Config{}), "node"), recorded
}

// newTestMonitor returns the monitor of a daemon with these flags, and what it records.
func newTestMonitor(t *testing.T, args ...string) (*monitor, *recorder) {
	t.Helper()
	recorder, recorded := newTestEvents()
	m := &monitor{
		config: newTestConfig(t, args...), log: zap.NewNop(), metrics: newTestMetrics(), events: recorder,
		families: tracker.Families[:],
		proxy:    health.NewProxy(time.Minute, func() *tracker.Node { return new(tracker.Node) }, proxysync.NewQueue()),
	}
	m.services = health.NewServices(m.proxy.Healthy, m.healthCheckFailed, m.log)
	return m, recorded
}

// TestEjectionsBecomeEvents: one for each endpoint, also if it is left out again.
func TestEjectionsBecomeEvents(t *testing.T) {
	m, recorded := newTestMonitor(t)
	id := tracker.PortID{Namespace: "shop", Service: "web", Port: "http", Protocol: tracker.TCP, Family: tracker.IPv4}
	for _, endpoint := range []string{"10.244.0.5:8080", "10.244.0.5:8080", "10.244.0.6:8080"} {
		m.ejected(ejection.Endpoint{Port: id, Endpoint: netip.MustParseAddrPort(endpoint)})
	}
	for i, endpoint := range []string{"10.244.0.5:8080", "10.244.0.6:8080"} {
		want := "Service web: Warning EndpointEjected Program: endpoint " + endpoint +
			" gets no new connections from this node"
		if len(*recorded) != 2 || !strings.HasPrefix((*recorded)[i], want) {
			t.Errorf("got %q, want %s", *recorded, want)
		}
	}
}

func TestReportsBecomeEvents(t *testing.T) {
	winner := tracker.PortID{Namespace: "shop", Service: "web", Port: "http", Protocol: tracker.TCP, Family: tracker.IPv4}
	loser := winner
	loser.Service = "late"
	conflict := services.Conflict{
		Frontend: tracker.Frontend{Address: netip.MustParseAddr("192.0.2.1"), Protocol: tracker.TCP, Port: 80},
		Winner:   winner, Loser: loser,
	}
	for _, tt := range []struct {
		name   string
		report proxysync.Report
		want   string
	}{
		{"ordinary", proxysync.Report{Operations: 1}, ""},
		{"conflict", proxysync.Report{Conflicts: []services.Conflict{conflict}},
			"Service late and web: Warning FrontendConflict Program: " + conflict.String()},
		{"review", proxysync.Report{ReviewReason: "nft flushed the ruleset"}, ""},
		{"repair", proxysync.Report{ReviewReason: "nft flushed the ruleset", Operations: 1},
			"Node node: Warning TablesRepaired Program: kube-nft repaired its nftables tables: nft " +
				"flushed the ruleset"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m, recorded := newTestMonitor(t)
			m.recordReport(&tt.report)
			if got := strings.Join(*recorded, "\n"); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

func TestHealthCheckFailuresBecomeEvents(t *testing.T) {
	m, recorded := newTestMonitor(t)
	m.healthCheckFailed(health.Service{Namespace: "shop", Name: "web"}, errors.New("port 31000 is taken"))
	want := "Service web: Warning FailedToStartServiceHealthcheck Listen: port 31000 is taken"
	if got := strings.Join(*recorded, "\n"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestHealthCheckAddresses(t *testing.T) {
	reached := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
		netip.MustParseAddr("2001:db8::1")}
	for _, tt := range []struct{ nodePorts, want string }{
		{"", "[192.0.2.1 192.0.2.2 2001:db8::1]"},
		{"primary", "[192.0.2.1 192.0.2.2 2001:db8::1]"},
		{"192.0.2.0/24", "[192.0.2.1 192.0.2.2 ::]"},
		{"192.0.2.0/24,2001:db8::/64", "[192.0.2.1 192.0.2.2 2001:db8::1]"},
		{"0.0.0.0/0,::/0", "[0.0.0.0 ::]"},
	} {
		t.Run(tt.nodePorts, func(t *testing.T) {
			m, _ := newTestMonitor(t, "--nodeport-addresses="+tt.nodePorts)
			if got := fmt.Sprint(m.healthCheckAddresses(reached)); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// TestReadyAfterTheFirstCommit: a sync that fails makes nothing ready.
func TestReadyAfterTheFirstCommit(t *testing.T) {
	m, _ := newTestMonitor(t)
	m.safety = newSafetyCheck(m.log, m.events, func(string, bool) {})
	m.proxy.Start(m.families) // with everything to do
	m.failed(errors.New("refused by the kernel"))
	if m.proxy.Ready() {
		t.Error("ready after a failed sync")
	}
	m.committed(&proxysync.Report{Taken: time.Now(), ReviewReason: "a test", Operations: 1}, nil, kernel.Traffic{})
	if !m.proxy.Ready() || !m.proxy.Healthy() {
		t.Error("not ready after a sync")
	}
	if m.status().Ready {
		t.Error("ready though no health-check node port was tried")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var servers sync.WaitGroup
	servers.Go(func() { m.services.Run(ctx) })
	defer servers.Wait()
	defer cancel()
	lab.Eventually(t, "ready", func() bool { return m.status().Ready })
	if s := m.status(); s.Syncs != 1 || s.SyncFailures != 1 || s.Reviews != 1 || s.Repairs != 1 || s.LastSync.IsZero() {
		t.Errorf("status %+v", s)
	}
}

// TestMissingNodeIsLogged: each time that the Node is deleted.
func TestMissingNodeIsLogged(t *testing.T) {
	core, logs := observer.New(zapcore.InfoLevel)
	m := &monitor{config: configOf(t, "--hostname-override", "node-9"), log: zap.New(core)}
	tr := tracker.New(m.config.Tracker())
	m.config.WarnNode(m.log)
	commit := func(want int) {
		t.Helper()
		m.logNode(tr.Take().Node)
		if logs.Len() != want {
			t.Errorf("%d lines, want %d: %v", logs.Len(), want, logs.All())
		}
	}
	commit(1)
	if err := tr.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9"}}); err != nil {
		t.Fatal(err)
	}
	commit(1)
	tr.DeleteNode("node-9")
	commit(2)
	if err := tr.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-9"}}); err != nil {
		t.Fatal(err)
	}
	tr.DeleteNode("node-8")
	commit(2)
	for i, want := range []string{
		"no such Node: node ports keep the primary addresses that the tables have already, and /healthz ",
		"the Node was deleted: kube-nft uses its last addresses, zone and labels until a Node of this name exists again",
	} {
		if line := logs.All()[i]; !strings.HasPrefix(line.Message, want) || line.ContextMap()["node"] != "node-9" {
			t.Errorf("%s %v", line.Message, line.ContextMap())
		}
	}
}

// TestNodeOf: without an API server the Node need not exist, but may go away.
func TestNodeOf(t *testing.T) {
	for args, missing := range map[string]bool{"--manifests=m": false, "--master=m": true} {
		c := configOf(t, args, "--hostname-override", "n")
		tr := tracker.New(c.Tracker())
		node := nodeOf(c, tr)
		if got := node() == nil; got != missing {
			t.Errorf("%s: missing is %v", args, got)
		}
		leaving := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", DeletionTimestamp: new(metav1.Now())}}
		if err := tr.SetNode(leaving); err != nil {
			t.Fatal(err)
		}
		if node().Ineligible == "" {
			t.Errorf("%s: the Node is about to be deleted", args)
		}
	}
}
