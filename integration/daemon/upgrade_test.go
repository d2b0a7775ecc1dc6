package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// A probed node runs one kube-nft after the other while probes of load balancers and of the kubelet
// ask all the time.
type probedNode struct {
	ns      *lab.Namespace
	binary  string
	objects string

	stop             atomic.Bool
	probing          sync.WaitGroup
	answered, failed atomic.Int64
	gap              atomic.Int64 // the longest time without an answer at one address, in ns
}

func newProbedNode(t *testing.T) *probedNode {
	t.Helper()
	lab.Require(t)
	n := &probedNode{binary: lab.Program(t), objects: filepath.Join(t.TempDir(), "objects.yaml")}
	var err error
	if n.ns, err = lab.NewNamespace(); err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	t.Cleanup(func() { n.ns.Close() })
	if err := os.WriteFile(n.objects, fmt.Appendf(nil, servedObjects, true), 0o600); err != nil {
		t.Fatal(err)
	}
	n.do(t, func() { lab.Run(t, "", "ip", "address", "add", "192.0.2.1/32", "dev", "lo") })
	return n
}

// do runs a job in the node's network.
func (n *probedNode) do(t *testing.T, job func()) {
	t.Helper()
	if err := n.ns.Do(func() error { job(); return nil }); err != nil {
		t.Fatal(err)
	}
}

func (n *probedNode) start(t *testing.T, flags ...string) (p *lab.Process) {
	t.Helper()
	argv := append([]string{n.binary, "--hostname-override=node-a", "--manifests", n.objects}, flags...)
	n.do(t, func() {
		var err error
		if p, err = lab.StartProcess(argv...); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(p.Kill)
	return p
}

// awaitReady waits until kube-nft ready ends with success, as a startup probe does.
func (n *probedNode) awaitReady(t *testing.T) {
	t.Helper()
	lab.Eventually(t, "kube-nft ready", func() (ready bool) {
		n.do(t, func() {
			out, err := lab.Execute(n.binary, "ready")
			ready = err == nil && out.Code == 0
		})
		return ready
	})
}

// probe sends probes until the function that it returns is called.
func (n *probedNode) probe(t *testing.T) (stop func()) {
	for _, target := range [][2]string{{"192.0.2.1:10256", "/healthz"}, {"192.0.2.1:10256", "/livez"},
		{"192.0.2.1:31000", "/"}, {"192.0.2.1:31000", "/"}} {
		n.probing.Go(func() {
			if err := n.ns.Join(); err != nil {
				t.Error(err)
				return
			}
			for last := time.Now(); !n.stop.Load(); {
				began := time.Now()
				code, _, err := fetch(target[0], target[1])
				if err != nil || code != 200 {
					if n.failed.Add(1) <= 5 {
						t.Logf("%s%s: %d, %v", target[0], target[1], code, err)
					}
					continue
				}
				if gap := began.Sub(last).Nanoseconds(); gap > n.gap.Load() {
					n.gap.Store(gap)
				}
				n.answered.Add(1)
				last = time.Now()
			}
		})
	}
	return func() {
		n.stop.Store(true)
		n.probing.Wait()
		t.Logf("%d probes answered, %d failed, longest time without an answer %s",
			n.answered.Load(), n.failed.Load(), time.Duration(n.gap.Load()).Round(time.Millisecond))
	}
}

// TestUpgradeAnswersAllProbes replaces kube-nft by the next one again and again, as a DaemonSet that surges
// does: no probe fails.
func TestUpgradeAnswersAllProbes(t *testing.T) {
	n := newProbedNode(t)
	p := n.start(t, "--takeover=never")
	n.awaitReady(t)
	n.do(t, func() { awaitCode(t, p, "192.0.2.1:31000", "/", 200) })
	stop := n.probe(t)
	// auto looks for kube-proxy before the first commit
	for _, takeover := range []string{"never", "auto", "never", "auto"} {
		next := n.start(t, "--takeover="+takeover)
		next.AwaitLog(t, "another kube-nft programs this network namespace")
		n.awaitReady(t)
		p.Stop(t)
		next.AwaitLog(t, "the other kube-nft has ended: taking over")
		n.awaitReady(t)
		p = next
	}
	stop()
	if n.failed.Load() > 0 {
		t.Error("an upgrade is no gap for load balancers")
	}
	p.Stop(t)
}

// mostGap bounds the time without an answer where there is one. It takes 20 to 100 ms on a quiet machine.
const mostGap = 10 * time.Second

// TestKilledBesideNext kills kube-nft while the next one waits: probes have no answer until that one has noticed.
func TestKilledBesideNext(t *testing.T) {
	n := newProbedNode(t)
	p := n.start(t, "--takeover=never")
	n.awaitReady(t)
	n.do(t, func() { awaitCode(t, p, "192.0.2.1:31000", "/", 200) })
	next := n.start(t, "--takeover=never")
	next.AwaitLog(t, "another kube-nft programs this network namespace")
	n.awaitReady(t)
	stop := n.probe(t)
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next.AwaitLog(t, "the other kube-nft has ended: taking over")
	n.do(t, func() { awaitCode(t, next, "192.0.2.1:31000", "/", 200) })
	n.awaitReady(t)
	stop()
	if gap := time.Duration(n.gap.Load()); gap > mostGap {
		t.Errorf("no answer for %s", gap)
	}
	next.Stop(t)
}

// TestRestartUnderProbes ends kube-nft and starts it again, as a service manager does: probes have no answer
// meanwhile.
func TestRestartUnderProbes(t *testing.T) {
	n := newProbedNode(t)
	p := n.start(t, "--takeover=never")
	n.awaitReady(t)
	n.do(t, func() { awaitCode(t, p, "192.0.2.1:31000", "/", 200) })
	stop := n.probe(t)
	p.Stop(t)
	p = n.start(t, "--takeover=never")
	n.awaitReady(t)
	n.do(t, func() { awaitCode(t, p, "192.0.2.1:31000", "/", 200) })
	stop()
	if gap := time.Duration(n.gap.Load()); gap > mostGap {
		t.Errorf("no answer for %s", gap)
	}
	p.Stop(t)
}

// TestUpgradeToOtherAddresses: the next kube-nft has another address for its metrics than the one before, as
// after a change of the DaemonSet. It answers there without an error, and the old address is closed.
func TestUpgradeToOtherAddresses(t *testing.T) {
	n := newProbedNode(t)
	p := n.start(t, "--metrics-bind-address=127.0.0.1:10249", "--bind-address-hard-fail")
	n.awaitReady(t)
	for _, address := range []string{"0.0.0.0:10249", "127.0.0.1:10249", "192.0.2.1:9000"} {
		next := n.start(t, "--metrics-bind-address="+address, "--bind-address-hard-fail")
		next.AwaitLog(t, "another kube-nft programs this network namespace")
		n.awaitReady(t)
		p.Stop(t)
		p = next
		n.do(t, func() {
			reached := map[string]string{"0.0.0.0:10249": "192.0.2.1:10249"}[address]
			if reached == "" {
				reached = address
			}
			awaitCode(t, p, reached, "/metrics", 200)
			awaitCode(t, p, "127.0.0.1:10256", "/readyz", 200)
		})
	}
	n.do(t, func() { awaitCode(t, p, "127.0.0.1:10249", "/metrics", 0) })
	p.Stop(t)
}
