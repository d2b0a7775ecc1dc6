package migration

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestKeptTableKernel looks, all the time, as Calico's Felix does with nftablesMode Auto: whether table ip kube-proxy
// has chains. With --keep-kube-proxy-table it has some before, during and after a takeover and a restart; nothing takes
// it for kube-proxy's then, and cleanup deletes it.
func TestKeptTableKernel(t *testing.T) {
	t.Parallel()
	m := newMigration(t, lab.Program(t), oldStates[2], shapesOf(60))
	felix := watchChains(t)
	daemon := m.startDaemon(t, "--keep-kube-proxy-table")
	awaitMetric(t, `kube_nft_takeover{state="done"} 1`)
	awaitMetric(t, "kube_nft_foreign_proxy 0")
	const kept = "table ip kube-proxy {\n\tchain kept-by-kube-nft {\n\t}\n}"
	if tables := lab.Run(t, "", "nft", "list", "ruleset"); !strings.Contains(tables, kept) ||
		strings.Contains(tables, "table ip6 kube-proxy") {
		t.Errorf("after the takeover:\n%s", proxys(tables))
	}
	if plan := m.plan(t); !strings.Contains(plan, "nothing of kube-proxy's is left") || strings.Contains(plan, "Calico") {
		t.Errorf("plan:\n%s", plan)
	}
	daemon.Stop(t)
	m.startDaemon(t, "--keep-kube-proxy-table").AwaitLog(t, "kube-nft started: the kernel had all Services already")
	awaitMetric(t, "kube_nft_foreign_proxy 0")
	m.load.await(t, 50)
	m.load.check(t)
	if looks, none := felix(); looks < 100 || none > 0 {
		t.Errorf("%d of %d looks found no chain", none, looks)
	}
}

// TestKeptTableIsRemovedKernel: cleanup deletes the table, but not one in which kube-proxy has chains.
func TestKeptTableIsRemovedKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[2], shapes: shapesOf(5), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	for _, beside := range []bool{false, true} {
		daemon := m.startDaemon(t, "--keep-kube-proxy-table")
		daemon.AwaitLog(t, "kube-nft started")
		daemon.Stop(t)
		if beside {
			m.program(t)
		}
		lab.Run(t, "", m.binary, "cleanup")
		if there := strings.Contains(lab.Run(t, "", "nft", "list", "tables"), "table ip kube-proxy"); there != beside {
			t.Errorf("kube-proxy has chains: %v; its table is there after cleanup: %v", beside, there)
		}
	}
}

// TestKeptTableComesBackKernel: nft flush ruleset takes the table away with ours, and a repair brings both back.
func TestKeptTableComesBackKernel(t *testing.T) {
	t.Parallel()
	newMigrationNet(t)
	m := &migration{state: oldStates[2], shapes: shapesOf(5), binary: lab.Program(t), source: lab.NewDirectory(t)}
	m.source.Write(t, "objects.yaml", migrationManifest(m.shapes))
	daemon := m.startDaemon(t, "--keep-kube-proxy-table")
	daemon.AwaitLog(t, "kube-nft started")
	lab.Run(t, "", "nft", "flush", "ruleset")
	daemon.AwaitLog(t, `"repaired our tables"`)
	lab.Eventually(t, "table ip kube-proxy is back", func() bool {
		return strings.Contains(lab.Run(t, "", "nft", "list", "tables"), "table ip kube-proxy")
	})
}

// watchChains counts, on a goroutine, the chains of table ip kube-proxy again and again. The function that it returns
// ends that, and says how often it looked, and how often there was no chain.
func watchChains(t *testing.T) func() (looks, none int) {
	t.Helper()
	client, err := kernel.Open()
	if err != nil {
		t.Fatal(err)
	}
	var all, without atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer client.Close()
		for ctx.Err() == nil {
			found := false
			err := client.Dump(ctx, unix.NFT_MSG_GETCHAIN, nft.IP, func(*attr.Writer) {}, func(r attr.Reply) {
				found = found || attr.Name(attr.Find(r.Attributes(), unix.NFTA_CHAIN_TABLE)) == "kube-proxy"
			})
			if err != nil { // interrupted by a commit: nft looks again, too
				continue
			}
			all.Add(1)
			if !found {
				without.Add(1)
			}
		}
	}()
	t.Cleanup(cancel)
	return func() (int, int) {
		cancel()
		<-done
		return int(all.Load()), int(without.Load())
	}
}
