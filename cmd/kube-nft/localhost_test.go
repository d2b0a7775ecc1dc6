package main

import (
	"os"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/integration/netns"
	proxysync "github.com/kube-nft/kube-nft/sync"
)

// TestLocalhostIsRoutedAfterTheCommit: before it, nothing keeps other hosts away from what
// listens on loopback addresses.
func TestLocalhostIsRoutedAfterTheCommit(t *testing.T) {
	netns.New(t)
	commits := 0
	settings := proxysync.Options{Committed: func(proxysync.Report) {
		if commits++; commits == 1 && routeLocalnet(t) != "0" {
			t.Error("loopback addresses are routed before the first commit")
		}
	}}
	d := daemon{log: zap.NewNop()}
	d.serveLocalhost(t.Context(), &settings)
	settings.Committed(proxysync.Report{})
	settings.Committed(proxysync.Report{})
	if got := routeLocalnet(t); got != "1" || commits != 2 {
		t.Errorf("route_localnet is %s after %d commits, want 1 after 2", got, commits)
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
