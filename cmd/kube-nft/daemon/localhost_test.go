package daemon

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/sync/localhost"
	"github.com/kube-nft/kube-nft/tracker"
)

// TestLocalhostIsRoutedAfterTheCommit: before it, nothing keeps other hosts away from what
// listens on loopback addresses.
func TestLocalhostIsRoutedAfterTheCommit(t *testing.T) {
	lab.New(t)
	l := newLocalhostPorts(t.Context(), &config.Config{LocalhostNodePorts: true}, zap.NewNop())
	if got := routeLocalnet(t); got != "0" {
		t.Errorf("route_localnet is %s before the first commit", got)
	}
	l.committed(tracker.Delta{})
	if got := routeLocalnet(t); got != "1" {
		t.Errorf("route_localnet is %s after the first commit", got)
	}
	lab.Sysctl(t, "net.ipv4.conf.all.route_localnet", "0")
	l.committed(tracker.Delta{})
	if got := routeLocalnet(t); got != "0" {
		t.Errorf("route_localnet is %s: each commit sets it", got)
	}
}

// TestRouteLocalnetIsLogged once the flag is given up, by a daemon without it.
func TestRouteLocalnetIsLogged(t *testing.T) {
	lab.New(t)
	for _, value := range []string{"0", "1"} {
		lab.Sysctl(t, "net.ipv4.conf.all.route_localnet", value)
		var want []string
		if value == "1" {
			want = []string{localhost.Exposure(sysctlRoot)}
		}
		core, logs := observer.New(zap.WarnLevel)
		newLocalhostPorts(t.Context(), new(config.Config), zap.New(core)).committed(tracker.Delta{})
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
