package inspect

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// statusOf returns the answer of a daemon that works, after a change.
func statusOf(change func(*peer.Status)) DaemonStatus {
	d := DaemonStatus{
		Reached: true, Version: "v1.2.3", Commit: "abc", LogLevel: "info",
		Started: new(time.Unix(1_700_000_000, 0).UTC()), UptimeSeconds: new(int64(60)),
		Status: &peer.Status{
			Synced: true, Ready: true, Healthy: true, NodeEligible: true,
			LastSync: time.Unix(1_700_000_000, 0).UTC(), Syncs: 7, SyncFailures: 2, Reviews: 4, Repairs: 3, Conflicts: 1,
			RefusedFields: 6,
		},
	}
	change(d.Status)
	return d
}

func TestStatusOfDaemon(t *testing.T) {
	const build = `  version           v1.2.3, commit abc
  up                1m0s, since 2023-11-14T22:13:20Z
  log level         info
  settings          the defaults
`
	const counts = `Last sync           2023-11-14T22:13:20Z, 1m0s ago
Syncs               7
  failed            2
Reviews             4
  with a repair     3
Conflicts           1
Refused fields      6
`
	const healthy = "Daemon              healthy\n"
	const waits = "Daemon              has not synced since its start; it waits for a running kube-proxy to end: pid 7\n"
	for name, tt := range map[string]struct {
		change func(*peer.Status)
		want   string
		works  bool
	}{
		"healthy": {func(*peer.Status) {}, healthy + build + counts, true},
		"takeover held back": {func(s *peer.Status) {
			s.SafetyCheck = map[string]string{peer.SafetyTakeover: "no Node"}
		},
			healthy + build + "Takeover            not done, because most Services would be removed: no Node\n" + counts, true},
		"list held back": {func(s *peer.Status) {
			s.SafetyCheck = map[string]string{peer.SafetyList: "300 are gone"}
		},
			healthy + build + "Source              the daemon keeps objects that a list lacks: 300 are gone\n" + counts, true},
		"no Node": {func(s *peer.Status) { s.NodeMissing, s.NodeEligible = true, false },
			"Daemon              healthy; load balancers should not send traffic here: the Node is going away or\n            " +
				"        is missing\n" + build +
				"Node                no Node object has this node's name; the daemon keeps the last known addresses\n            " +
				"        and zone\n" + counts, true},
		"unhealthy": {func(s *peer.Status) { s.Healthy = false },
			"Daemon              unhealthy: a change has waited for too long\n" + build + counts, false},
		"waits": {func(s *peer.Status) { s.Ready, s.Syncs, s.WaitingFor = false, 0, "a running kube-proxy to end: pid 7" },
			waits + build + strings.Replace(counts, "Syncs               7", "Syncs               0", 1), false},
		"opens its ports": {func(s *peer.Status) { s.Ready, s.WaitingFor = false, "its ports to open" },
			"Daemon              has synced; it waits for its ports to open\n" + build + counts, false},
		"shadow": {func(s *peer.Status) {
			s.Shadow = &peer.Shadow{Compared: time.Unix(1_700_000_058, 5e8), Seconds: 0.0125, Frontends: 1, Differences: 2,
				Passing: 3, Problem: "cannot read kube-proxy's rules: x",
				First: []migrate.Difference{
					{Kind: migrate.Endpoints, Frontend: "10.0.0.1:80/tcp of a/b", Detail: "kube-proxy lacks x"}}}
		}, "Daemon              healthy, in the shadow mode: it compares with kube-proxy's rules and changes\n" +
			"                    nothing\n" + build +
			"Compared            2023-11-14T22:14:18Z, 2s ago; 1 frontend of kube-proxy's; it took 13ms\n" +
			"  not now           cannot read kube-proxy's rules: x\n" +
			"Differences         2; 3 more may pass with kube-proxy's next sync\n" +
			"                    endpoints: 10.0.0.1:80/tcp of a/b: kube-proxy lacks x\n" +
			"                    and 1 more\n" + counts, true},
		"not served": {func(s *peer.Status) {
			s.SkippedPorts, s.UnmetAnnotations, s.UnservedServices, s.UnservedChecks, s.WaitingServices = 1, 2, 3, 4, 5
		}, healthy + build + counts +
			"Skipped ports       1\nUnmet annotations   2\nUnserved Services   3\nUnserved checks     4\nWaiting Services    " +
			"5\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := Status{Daemon: statusOf(tt.change)}
			if got := s.Daemon.Works(); got != tt.works {
				t.Errorf("works: %v", got)
			}
			var b bytes.Buffer
			if err := s.write(&b, time.Unix(1_700_000_060, 0)); err != nil {
				t.Fatal(err)
			}
			got, _, _ := strings.Cut(b.String(), "\n\n")
			got += "\n"
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestStatusKeys: scripts read these keys of -o json.
func TestStatusKeys(t *testing.T) {
	var fields map[string]any
	text, err := json.Marshal(statusOf(func(s *peer.Status) {
		s.SafetyCheck = map[string]string{peer.SafetyList: "gone"}
	}))
	if err == nil {
		err = json.Unmarshal(text, &fields)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{
		"reached", "version", "commit", "started", "uptimeSeconds", "logLevel", "synced", "ready", "healthy", "nodeEligible",
		"nodeMissing",
		"lastSync", "syncs", "syncFailures", "reviews", "repairs", "conflicts", "refusedFields", "safetyCheck",
		"skippedPorts", "unmetAnnotations", "unservedServices", "waitingServices", "unservedHealthChecks",
	} {
		if _, ok := fields[key]; !ok {
			t.Errorf("no %s in %s", key, text)
		}
	}
	text, err = json.Marshal(DaemonStatus{Problems: []string{"none"}})
	if err != nil || string(text) != `{"reached":false,"problems":["none"]}` {
		t.Errorf("%s, %v: what is not known has no value", text, err)
	}
}
