package migration

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// mostGap is how long probes may go unanswered when a daemon takes over from a kube-proxy that ends.
const mostGap = 2 * time.Second

// gapAfter is mostGap on a machine on which a daemon takes so long to start: a busy one does everything
// more slowly.
func gapAfter(start time.Duration) time.Duration { return max(mostGap, 10*start) }

// TestMigrateGapKernel ends a kube-proxy beside a daemon that waits for it, while probes ask every 5 ms.
// It shows for how long no health check is answered.
func TestMigrateGapKernel(t *testing.T) {
	t.Parallel()
	clients := newMigrationNet(t).client
	m := &migration{state: oldStates[1], shapes: shapesOf(30), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	m.source.Write(t, "balanced.yaml", balancedManifest("node-1"))
	m.program(t)
	proxy := startFakeProxy(t)
	var servers []*http.Server
	addresses := []string{"192.168.7.1:10256", "192.168.7.1:31000"}
	for _, address := range addresses {
		port, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})}
		go server.Serve(port)
		servers = append(servers, server)
	}
	began := time.Now()
	m.startDaemon(t).AwaitLog(t, "the takeover waits until kube-proxy on this node has ended")
	start := time.Since(began)
	var stop atomic.Bool
	var probing sync.WaitGroup
	gaps := make([]time.Duration, len(addresses))
	for i, address := range addresses {
		probing.Go(func() {
			if err := clients.Join(); err != nil {
				t.Error(err)
				return
			}
			for last := time.Now(); ; time.Sleep(5 * time.Millisecond) {
				if probe(address, "/healthz") == 200 {
					gaps[i] = max(gaps[i], time.Since(last))
					last = time.Now()
				} else if stop.Load() {
					gaps[i] = max(gaps[i], time.Since(last))
				}
				if stop.Load() {
					return
				}
			}
		})
	}
	time.Sleep(200 * time.Millisecond) // the servers answer some probes
	for _, server := range servers {
		server.Close()
	}
	proxy.Kill()
	awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
	time.Sleep(500 * time.Millisecond) // the daemon answers some
	stop.Store(true)
	probing.Wait()
	t.Logf("no answer at :10256 for %s, at the health-check node port for %s; a start took %s", gaps[0], gaps[1], start)
	for i, gap := range gaps {
		if most := gapAfter(start); gap > most {
			t.Errorf("%s: no answer for %s, want %s at most", addresses[i], gap, most)
		}
	}
}
