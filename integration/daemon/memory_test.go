package daemon

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-nft/kube-nft/integration/apiserver"
	"github.com/kube-nft/kube-nft/integration/lab"
)

var quota = flag.Int("quota", 100_000, "elements that the namespace of TestMemoryAtQuota asks for")

// TestMemoryAtQuota: a start and a restart need no more memory than docs/limits.md says, beside which the limit of the
// manifests was chosen, and they give a part of it back. A namespace uses its whole quota, others have Services of ten
// endpoints.
func TestMemoryAtQuota(t *testing.T) {
	t.Parallel()
	lab.New(t)
	server := apiserver.New()
	t.Cleanup(server.Close)
	if _, err := server.Start("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := server.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server.Apply(lab.Node(lab.NodeName))
	apply := func(namespace string, i int, first string, endpoints int) {
		name, ip := fmt.Sprint("service-", i), lab.After(netip.MustParseAddr(first), i)
		server.Apply(lab.Service(namespace, name, ip), lab.Slice(namespace, name, 0, corev1.IPv4Protocol,
			lab.Addresses(lab.After(netip.MustParseAddr("10.128.0.0"), 10*i), endpoints)))
	}
	others, large := *quota*3/100, *quota/1016
	for i := range others {
		apply(fmt.Sprint("shop-", i%30), i, "10.96.1.0", 10)
	}
	for i := range large {
		apply("large", i, "10.112.1.0", 1000)
	}
	bound := 40<<20 + others*10*12*1024/10 + *quota*1024
	for _, log := range []string{
		"kube-nft started and programmed the Services", "kube-nft started: the kernel had all Services already",
	} {
		p := lab.Start(t, lab.Program(t), "--hostname-override", lab.NodeName, "--kubeconfig", kubeconfig,
			"--takeover=auto", "--namespace-quota", strconv.Itoa(*quota))
		p.AwaitLog(t, log)
		size := func(name string) int {
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
			if err != nil {
				t.Fatal(err)
			}
			_, after, _ := strings.Cut(string(status), name+":")
			kib, err := strconv.Atoi(strings.Fields(after)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
		lab.Eventually(t, "a tenth of the memory of a start is given back", func() bool {
			return size("VmRSS") < size("VmHWM")*9/10
		})
		highest := size("VmHWM")
		t.Logf("%d and %d Services, %s: %d MiB at most", others, large, log, highest>>10)
		if highest<<10 > bound {
			t.Errorf("the process had %d MiB, want at most %d", highest>>10, bound>>20)
		}
		if strings.Contains(p.Stderr(), "quota") {
			t.Error("the quota leaves out a Service")
		}
		p.Stop(t)
	}
}
