package integration

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-nft/kube-nft/integration/netns"
	"github.com/kube-nft/kube-nft/nft"
)

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 15 s", what)
		}
	}
}

// logs waits until a process has written a text to its log.
func logs(t testing.TB, p *netns.Process, text string) {
	t.Helper()
	eventually(t, "log "+text, func() bool { return strings.Contains(p.Stderr(), text) })
}

// holds reports whether the kernel's tables have a cluster IP.
func holds(t testing.TB, k *nft.Kernel, addr netip.Addr) bool {
	t.Helper()
	table := read(t, k)[nft.IP]
	if table == nil || table.Sets["cluster-ips"] == nil {
		return false
	}
	_, ok := table.Sets["cluster-ips"].Map[string(addr.AsSlice())]
	return ok
}

var (
	firstWeb  = netip.MustParseAddr("10.96.0.1")
	secondWeb = netip.MustParseAddr("10.96.0.2")
	webPods   = netip.MustParseAddr("10.244.0.5")
)

// startWeb starts kube-nft with Service web in a namespace of its own, and waits until the
// kernel has it.
func startWeb(t *testing.T) (*nft.Kernel, directory, *netns.Process) {
	t.Helper()
	netns.New(t)
	k, objects := openKernel(t), newDirectory(t)
	objects.write(t, "web.yaml", webObjects("web", firstWeb, addressesFrom(webPods, 3)))
	p := objects.start(t)
	eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	return k, objects, p
}

// TestDrift lets nft do its worst beside a running kube-nft.
func TestDrift(t *testing.T) {
	t.Parallel()
	k, _, p := startWeb(t)
	want := read(t, k)
	for _, command := range []string{
		"flush ruleset",
		"delete table ip kube-nft",
		"delete element ip kube-nft services { 10.96.0.1 . tcp . 80 }",
		"flush map ip kube-nft endpoints",
		"flush chain ip kube-nft services",
		"insert rule ip kube-nft services drop",
		"add chain ip6 kube-nft foreign",
		"add table ip kube-nft { flags dormant; }",
	} {
		netns.Run(t, "", append([]string{"nft"}, strings.Fields(command)...)...)
		eventually(t, "repair after nft "+command, func() bool {
			batch := nft.Diff(read(t, k), want)
			return batch.Empty()
		})
	}
	logs(t, p, "repaired our tables")
	logs(t, p, "nft (pid ")
	stop(t, p)
}

// TestSecondInstanceWaits starts another kube-nft beside a running one, as the upgrade of a
// DaemonSet may: it waits, says for whom, and takes over.
func TestSecondInstanceWaits(t *testing.T) {
	t.Parallel()
	k, _, first := startWeb(t)
	newer := newDirectory(t)
	newer.write(t, "web.yaml", webObjects("web", secondWeb, addressesFrom(webPods, 3)))
	second := newer.start(t, "--healthz-bind-address", "127.0.0.1:10356", "--metrics-bind-address", "127.0.0.1:10349")
	logs(t, second, "another kube-nft programs this network namespace: waiting until it ends")
	logs(t, second, `"process":"kube-nft, pid `)
	if !holds(t, k, firstWeb) || holds(t, k, secondWeb) {
		t.Error("the second instance did not wait")
	}
	if err := first.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second instance's commit", func() bool { return holds(t, k, secondWeb) && !holds(t, k, firstWeb) })
	stop(t, second)
}

// TestOwnership runs kube-nft with tables of its own, kills and restarts it, and releases them.
func TestOwnership(t *testing.T) {
	t.Parallel()
	netns.New(t)
	k, objects := openKernel(t), newDirectory(t)
	features, err := k.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !features.OwnerPersist {
		netns.SkipOrFail(t, "this kernel cannot let a table outlive its owner")
	}
	objects.write(t, "web.yaml", webObjects("web", firstWeb, addressesFrom(webPods, 3)))
	p := objects.start(t, "--table-ownership", "auto")
	eventually(t, "the first commit", func() bool { return holds(t, k, firstWeb) })
	netns.Run(t, "", "nft", "flush", "ruleset")
	if !holds(t, k, firstWeb) {
		t.Error("nft flush ruleset emptied a table that is owned")
	}
	kill(t, p)
	p = objects.start(t, "--table-ownership", "auto")
	eventually(t, "adoption", func() bool { return read(t, k)[nft.IP].Owner != 0 })
	release(t, "the tables belong to nobody now\n")
	releaseAgain(t, k)
	netns.Run(t, "", "nft", "flush", "ruleset")
	eventually(t, "repair", func() bool { return holds(t, k, firstWeb) && !read(t, k)[nft.IP].Owned })
	stop(t, p)
	p = objects.start(t, "--table-ownership", "never")
	objects.write(t, "more.yaml", webObjects("more", secondWeb, addressesFrom(webPods, 3)))
	eventually(t, "the next commit", func() bool { return holds(t, k, secondWeb) })
	releaseAgain(t, k)
	stop(t, p)
}

// release runs kube-nft release and compares what it prints.
func release(t *testing.T, want string) {
	t.Helper()
	if got := netns.Run(t, "", buildProxy(t), "release"); got != want {
		t.Errorf("release: %q, want %q", got, want)
	}
}

// releaseAgain releases tables that belong to nobody, which changes nothing.
func releaseAgain(t *testing.T, k *nft.Kernel) {
	t.Helper()
	before, err := k.Generation(t.Context())
	release(t, "the tables belong to nobody already\n")
	if after, againErr := k.Generation(t.Context()); err != nil || againErr != nil || after != before {
		t.Errorf("the generation of nf_tables went from %d to %d, %v, %v", before, after, err, againErr)
	}
}
