package daemon

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// Sizes of the test below: the first batch has 200,000 elements, and the program commits at most
// 50,000 of them at once.
const (
	stopServices  = 50_000
	stopEndpoints = 2
	stopCommits   = 4 // at least, of a start without other commits
)

// stopPatience bounds the waits for a start, which reads 50,000 Services and what stands, on a machine
// that is busy with other things.
const stopPatience = 5 * time.Minute

// TestStopDuringStart ends kube-nft at random moments of its first start, with SIGTERM and with
// SIGKILL. It does not go on to commit, what stands is out of reach of packets and has no half list, and the next
// start finishes the work.
func TestStopDuringStart(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	lab.New(t)
	k, server := lab.Open(t, kernel.Open), apiserver.New()
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server.Apply(lab.Node(lab.NodeName))
	for i := range stopServices {
		name := fmt.Sprintf("service-%d", i)
		pods := lab.Addresses(lab.After(netip.MustParseAddr("10.128.0.0"), i*stopEndpoints), stopEndpoints)
		server.Apply(lab.Service("shop", name, lab.After(netip.MustParseAddr("10.96.1.0"), i)),
			lab.Slice("shop", name, 0, corev1.IPv4Protocol, pods))
	}
	for _, tt := range []struct {
		name, ownership string
		signal          syscall.Signal
	}{
		{"SIGTERM", "never", syscall.SIGTERM}, {"SIGKILL", "never", syscall.SIGKILL},
		{"SIGTERM", "auto", syscall.SIGTERM}, {"SIGKILL", "auto", syscall.SIGKILL},
	} {
		lab.Run(t, "", "nft", "flush", "ruleset")
		argv := []string{lab.Program(t), "--hostname-override", lab.NodeName, "--kubeconfig", kubeconfig, "--table-ownership",
			tt.ownership}
		p := lab.Start(t, argv...)
		p.AwaitLog(t, "HTTP server") // it has looked at the kernel by then, with commits of its own
		before, first := generation(t, k), 1+rand.Uint32N(stopCommits-1)
		await(t, p, "some commits", func() bool { return generation(t, k) >= before+first })
		time.Sleep(rand.N(20 * time.Millisecond)) // for another moment each time
		began := time.Now()
		signal(t, p, tt.signal)
		stopped := generation(t, k) // after the signal: before it, this thread may have to wait for a processor
		lab.Eventually(t, "the end", func() bool { return p.Running() != nil })
		if wanted := tt.signal == syscall.SIGTERM; p.State().Success() != wanted {
			t.Errorf("on %s: %s\n%s", tt.name, p.State(), p.Stderr())
		}
		commits := generation(t, k) - stopped
		t.Logf("%s with ownership %s after %d commits: ended in %s, %d commits later", tt.name, tt.ownership, stopped-before,
			time.Since(began), commits)
		if commits > 2 { // one was under way, and one may have begun before the signal arrived
			t.Errorf("%d commits after the signal", commits)
		}
		stood := read(t, k)[nft.IP]
		checkStopped(t, stood)
		t.Logf("%d Services stand, with %d chains", len(stood.Sets["services"].Map), len(stood.Chains))
		p = lab.Start(t, argv...)
		await(t, p, "the next start", func() bool {
			return strings.Contains(p.Stderr(), "kube-nft started")
		})
		p.Stop(t)
		table := read(t, k)[nft.IP]
		checkStopped(t, table)
		if got := len(table.Sets["services"].Map); got != stopServices || table.Chains["nat-output"] == nil {
			t.Errorf("%d Services after the next start, want %d and the base chains", got, stopServices)
		}
	}
}

// await waits until a condition holds.
func await(t *testing.T, p *lab.Process, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Since(began) > stopPatience {
			t.Fatal(p.Failure(fmt.Errorf("%s: not within %s", what, stopPatience)))
		}
	}
}

// checkStopped fails the test if a packet can reach less than everything, or if a frontend has half of its list.
func checkStopped(t *testing.T, table *nft.Table) {
	t.Helper()
	if table == nil {
		return
	}
	frontends, endpoints := table.Sets["services"].Map, table.Sets["endpoints-tcp"].Map
	least := 0
	for name, chain := range table.Chains {
		if chain.Hook == nil {
			continue
		}
		if least = stopEndpoints; len(frontends) < stopServices {
			t.Errorf("base chain %s leads to %d Services, want %d", name, len(frontends), stopServices)
		}
	}
	for key := range frontends {
		n := 0
		for i := range stopEndpoints {
			if endpoints[nft.IndexedKey(key, i)].Data != "" {
				n++
			}
		}
		if n < least || n > 0 && n < stopEndpoints {
			t.Fatalf("frontend %x has %d of %d endpoints", key, n, stopEndpoints)
		}
	}
}

func generation(t *testing.T, k *kernel.Client) uint32 {
	t.Helper()
	generation, err := k.Generation(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return generation
}
