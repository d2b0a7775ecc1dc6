package sync

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A disturbed kernel is one in which something happens before a commit.
type disturbed struct {
	*kernel.Client
	commits  int
	before   func(commit int)
	elements []int // of each commit
}

func (k *disturbed) Commit(ctx context.Context, batch nft.Batch) error {
	k.commits++
	k.before(k.commits)
	k.elements = append(k.elements, batch.ElementCount())
	return k.Client.Commit(ctx, batch)
}

// newPartsLoop returns a loop with more Services than go into one part, and with further ports.
func newPartsLoop(k client, further ...*tracker.ServicePort) (*Loop, *services.Ruleset, *observer.ObservedLogs) {
	ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], AffinitySize: 65536})
	source := &feed{}
	source.deltas = append(source.deltas, manyServices(2*maxPart/12, 10))
	source.set(further...)
	core, logs := observer.New(zap.WarnLevel)
	return New(source, ruleset, k, Options{Log: zap.New(core)}), ruleset, logs
}

// TestEndBetweenParts ends the loop while the kernel works on a part: no further part is
// committed, and the next loop does the rest only.
func TestEndBetweenParts(t *testing.T) {
	lab.New(t)
	ctx, stop := context.WithCancel(t.Context())
	k := &disturbed{Client: lab.Open(t, kernel.Open)}
	k.before = func(commit int) {
		if commit == 2 {
			stop()
		}
	}
	loop, _, _ := newPartsLoop(k)
	if err := loop.once(ctx); !errors.Is(err, context.Canceled) || k.commits != 2 {
		t.Fatalf("%d commits and %v, want 2 and the end of the context", k.commits, err)
	}
	first := k.elements[0]
	*k = disturbed{Client: k.Client, before: func(int) {}}
	loop, ruleset, _ := newPartsLoop(k)
	if err := loop.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	rest := 0
	for _, n := range k.elements {
		rest += n
	}
	if whole := diffFromNothing(ruleset); first < maxPart || rest != whole-first {
		t.Errorf("%d elements were committed, and after the end %d of %d", first, rest, whole)
	}
	checkWhole(t, k.Client, ruleset)
}

// TestForeignCommitBetweenParts lets another program commit between two parts: what packets see is
// not let out before the tables have been read again.
func TestForeignCommitBetweenParts(t *testing.T) {
	lab.New(t)
	k := &disturbed{Client: lab.Open(t, kernel.Open)}
	k.before = func(commit int) {
		if commit == 2 {
			lab.Run(t, "", "nft", "add", "table", "ip", "other")
		}
	}
	loop, ruleset, _ := newPartsLoop(k)
	if err := loop.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(k.elements[2:], 0) || k.commits < 4 {
		t.Errorf("commits of %v elements: the last part was not refused", k.elements)
	}
	checkWhole(t, k.Client, ruleset)
}

// TestErrorOfPart: an error between two parts says what stands.
func TestErrorOfPart(t *testing.T) {
	k := &table{answers: []error{nil, &kernel.BatchError{Err: unix.ENOMEM}}}
	loop, _, _ := newPartsLoop(k)
	err := loop.once(t.Context())
	want := "part 2 of 3: commit to nf_tables: cannot allocate memory; nothing was changed; the parts before it stand, " +
		"packets do not reach them"
	if err == nil || err.Error() != want || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestTableDeletedBetweenParts deletes our table between two parts, and in the fake lets the kernel
// refuse a part after the first in another way: neither session affinity nor a Service is to blame.
func TestTableDeletedBetweenParts(t *testing.T) {
	fake := &table{answers: []error{nil, nil, &kernel.OpError{Family: nft.IP, Set: "services", Err: unix.ENOENT}}}
	loop, _, logs := newPartsLoop(fake)
	if err := loop.once(t.Context()); err != nil || logs.Len() != 0 || fake.reads != 2 {
		t.Errorf("%v after %d reads, log %v; want the tables read again and no more", err, fake.reads, logs.All())
	}
	if slices.ContainsFunc(fake.batches, func(b nft.Batch) bool { return b.Check }) {
		t.Error("the loop looked for a Service port to blame")
	}
	for _, commit := range []int{2, 3} {
		t.Run(fmt.Sprint("before part ", commit), func(t *testing.T) {
			lab.New(t)
			k := &disturbed{Client: lab.Open(t, kernel.Open)}
			k.before = func(n int) {
				if n == commit {
					lab.Run(t, "", "nft", "delete", "table", "ip", "kube-nft")
				}
			}
			loop, ruleset, logs := newPartsLoop(k)
			if err := loop.once(t.Context()); err != nil || logs.Len() != 0 || len(loop.skips.skipped) != 0 {
				t.Errorf("%v; %d ports skipped; log %v", err, len(loop.skips.skipped), logs.All())
			}
			if k.commits != commit+3 {
				t.Errorf("%d commits, want three after the one that was refused", k.commits)
			}
			checkWhole(t, k.Client, ruleset)
		})
	}
}

// TestRefusalInLaterPart hands the kernel a Service that it refuses in a part after the first. Another
// program commits before that part. The loop skips that Service alone.
func TestRefusalInLaterPart(t *testing.T) {
	lab.New(t)
	bad, good := portWith("bad", 1, 1), portWith("good", 2, 2)
	bad.ClusterIP, good.ClusterIP = netip.MustParseAddr("10.96.200.1"), netip.MustParseAddr("10.96.200.2")
	bad.Cluster = []netip.AddrPort{netip.MustParseAddrPort("[fd00::1]:8080")}
	k := &disturbed{Client: lab.Open(t, kernel.Open)}
	k.before = func(commit int) {
		if commit == 2 {
			lab.Run(t, "", "nft", "add", "table", "ip", "other")
		}
	}
	loop, ruleset, _ := newPartsLoop(k, bad, good)
	if err := loop.once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if k.elements[0] < maxPart || loop.skips.skipped[serviceOf(bad.ID)] == nil || len(loop.skips.skipped) != 1 ||
		ruleset.Port(good.ID) == nil {
		t.Errorf("commits of %v elements; skipped %v", k.elements, loop.skips.skipped)
	}
	checkWhole(t, k.Client, ruleset)
}

func diffFromNothing(ruleset *services.Ruleset) int {
	whole := change.Diff(nil, ruleset.Want())
	return whole.ElementCount()
}

func checkWhole(t *testing.T, k *kernel.Client, ruleset *services.Ruleset) {
	t.Helper()
	have, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if repair := change.Diff(have, ruleset.Want()); !repair.Empty() {
		t.Errorf("%d operations are missing", len(repair.Ops))
	}
}
