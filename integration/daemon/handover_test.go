package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/lab"
)

// TestHandOverInKernel replaces kube-nft by the next one again and again, as a DaemonSet that
// surges does, while probes ask all the time: each of them is answered with 200.
func TestHandOverInKernel(t *testing.T) {
	lab.Require(t)
	for _, takeover := range []string{"never", "auto"} { // auto looks for kube-proxy before the first commit
		t.Run(takeover, func(t *testing.T) { handOver(t, "--takeover="+takeover) })
	}
}

func handOver(t *testing.T, takeover string) {
	binary := lab.Program(t)
	ns, err := lab.NewNamespace()
	if err != nil {
		lab.SkipOrFail(t, "%v", err)
	}
	defer ns.Close()
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(objects, fmt.Appendf(nil, servedObjects, true), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func() (p *lab.Process) {
		t.Helper()
		err := ns.Do(func() (err error) {
			p, err = lab.StartProcess(binary, takeover, "--hostname-override=node-a", "--manifests", objects)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Kill)
		return p
	}
	await := func(p *lab.Process, address, path string) {
		t.Helper()
		if err := ns.Do(func() error { awaitCode(t, p, address, path, 200); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	err = ns.Do(func() error {
		lab.Run(t, "", "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p := start()
	await(p, "127.0.0.1:10256", "/readyz")
	await(p, "192.0.2.1:31000", "/")

	var probing sync.WaitGroup
	var stop atomic.Bool
	var answered, failed atomic.Int64
	for _, target := range [][2]string{{"192.0.2.1:10256", "/healthz"}, {"192.0.2.1:10256", "/livez"}, {"192.0.2.1:31000", "/"}, {"192.0.2.1:31000", "/"}} {
		probing.Go(func() {
			if err := ns.Join(); err != nil {
				t.Error(err)
				return
			}
			for !stop.Load() {
				switch code, _, err := fetch(target[0], target[1]); {
				case err == nil && code == 200:
					answered.Add(1)
				case failed.Add(1) <= 5:
					t.Errorf("%s%s: %d, %v", target[0], target[1], code, err)
				}
			}
		})
	}
	began := time.Now()
	const rounds = 5
	for range rounds {
		next := start()
		next.AwaitLog(t, "another kube-nft programs this network namespace")
		await(p, "127.0.0.1:10256", "/readyz?newest")
		p.Stop(t)
		next.AwaitLog(t, "the last kube-nft handed its listening sockets over")
		await(next, "127.0.0.1:10256", "/readyz")
		p = next
	}
	stop.Store(true)
	probing.Wait()
	t.Logf("%d hand-overs, %d probes answered in %s, %d failed", rounds, answered.Load(), time.Since(began).Round(time.Millisecond), failed.Load())
	p.Stop(t)
}

// TestHandOverOfOtherAddresses: the next kube-nft has another address for its metrics than the one before,
// as after a change of the DaemonSet. It answers there, without a complaint, and nobody has the old one.
func TestHandOverOfOtherAddresses(t *testing.T) {
	lab.New(t)
	binary := lab.Program(t)
	objects := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(objects, fmt.Appendf(nil, servedObjects, true), 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(metrics string) *lab.Process {
		return lab.Start(t, binary, "--takeover=never", "--hostname-override=node-a", "--manifests", objects, "--metrics-bind-address", metrics, "--bind-address-hard-fail")
	}
	lab.Run(t, "", "ip", "address", "add", "192.0.2.1/32", "dev", "lo")
	p := start("127.0.0.1:10249")
	awaitCode(t, p, "127.0.0.1:10249", "/metrics", 200)
	awaitCode(t, p, "127.0.0.1:10256", "/readyz", 200)
	for _, address := range []string{"0.0.0.0:10249", "127.0.0.1:10249", "192.0.2.1:9000"} {
		next := start(address)
		next.AwaitLog(t, "another kube-nft programs this network namespace")
		awaitCode(t, p, "127.0.0.1:10256", "/readyz?newest", 200)
		p.Stop(t)
		p = next
		awaitCode(t, p, strings.Replace(address, "0.0.0.0", "192.0.2.1", 1), "/metrics", 200)
		awaitCode(t, p, "127.0.0.1:10256", "/readyz", 200)
		if log := p.Stderr(); strings.Contains(log, `"level":"error"`) {
			t.Errorf("%s: it complains:\n%s", address, log)
		}
	}
	lab.Eventually(t, "a refusal at the address that nobody serves any more", func() bool {
		_, _, err := fetch("127.0.0.1:10249", "/metrics")
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	p.Stop(t)
}
