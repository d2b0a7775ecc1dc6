package daemon

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/integration/lab"
	proxysync "github.com/kube-nft/kube-nft/sync"
	"github.com/kube-nft/kube-nft/sync/localhost"
)

// TestLocalhostIsRoutedAfterTheCommit: before it, nothing keeps other hosts away from what
// listens on loopback addresses.
func TestLocalhostIsRoutedAfterTheCommit(t *testing.T) {
	lab.New(t)
	commits := 0
	settings := proxysync.Options{Committed: func(proxysync.Report) {
		if commits++; commits == 1 && routeLocalnet(t) != "0" {
			t.Error("loopback addresses are routed before the first commit")
		}
	}}
	d := daemon{log: zap.NewNop(), config: &config.Config{LocalhostNodePorts: true}}
	d.serveLocalhost(t.Context(), &settings)
	settings.Committed(proxysync.Report{})
	settings.Committed(proxysync.Report{})
	if got := routeLocalnet(t); got != "1" || commits != 2 {
		t.Errorf("route_localnet is %s after %d commits, want 1 after 2", got, commits)
	}
}

// TestExposureIsTold once the flag is given up, by a daemon without it.
func TestExposureIsTold(t *testing.T) {
	lab.New(t)
	for _, value := range []string{"0", "1"} {
		lab.Sysctl(t, "net.ipv4.conf.all.route_localnet", value)
		var want []string
		if value == "1" {
			want = []string{localhost.Exposure(sysctlRoot)}
		}
		core, logs := observer.New(zap.WarnLevel)
		settings := proxysync.Options{Committed: func(proxysync.Report) {}}
		d := daemon{log: zap.New(core), config: new(config.Config)}
		d.serveLocalhost(t.Context(), &settings)
		settings.Committed(proxysync.Report{})
		var logged []string
		for _, entry := range logs.All() {
			logged = append(logged, entry.ContextMap()["notice"].(string))
		}
		if !slices.Equal(logged, want) {
			t.Errorf("with %s, logged %q, want %q", value, logged, want)
		}
		if got := routeLocalnet(t); got != value {
			t.Errorf("route_localnet became %s, was %s", got, value)
		}
	}
}

func routeLocalnet(t *testing.T) string {
	t.Helper()
	value, err := os.ReadFile("/proc/sys/net/ipv4/conf/all/route_localnet")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}

// TestOOMScoreThatIsRefused: a score that protects is as good as the one that was asked for.
func TestOOMScoreThatIsRefused(t *testing.T) {
	for given, want := range map[string]zapcore.Level{"-500\n": zap.InfoLevel, "100\n": zap.WarnLevel, "?": zap.WarnLevel} {
		path := filepath.Join(t.TempDir(), "oom_score_adj")
		if err := os.WriteFile(path, []byte(given), 0o600); err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.DebugLevel)
		noteScore(path, -999, os.ErrPermission, zap.New(core))
		if logs.Len() != 1 || logs.All()[0].Level != want {
			t.Errorf("with score %q, logged %v, want one line of level %s", given, logs.All(), want)
		}
	}
}
