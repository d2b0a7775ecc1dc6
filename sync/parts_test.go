package sync

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/services"
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

// newPartsLoop returns a loop with more Services than go into one part.
func newPartsLoop(k client) (*Loop, *services.Ruleset) {
	ruleset := services.NewRuleset(services.Config{Families: nft.Families[:], AffinitySize: 65536})
	source := &feed{}
	source.deltas = append(source.deltas, manyServices(2*maxPart/12, 10))
	return New(source, ruleset, k, Options{Log: zap.NewNop()}), ruleset
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
	loop, _ := newPartsLoop(k)
	if err := loop.Once(ctx); !errors.Is(err, context.Canceled) || k.commits != 2 {
		t.Fatalf("%d commits and %v, want 2 and the end of the context", k.commits, err)
	}
	first := k.elements[0]
	*k = disturbed{Client: k.Client, before: func(int) {}}
	loop, ruleset := newPartsLoop(k)
	if err := loop.Once(t.Context()); err != nil {
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

// TestForeignCommitBetweenParts lets somebody else commit between two parts: what packets see is
// not let out before the tables have been read again.
func TestForeignCommitBetweenParts(t *testing.T) {
	lab.New(t)
	k := &disturbed{Client: lab.Open(t, kernel.Open)}
	k.before = func(commit int) {
		if commit == 2 {
			lab.Run(t, "", "nft", "add", "table", "ip", "other")
		}
	}
	loop, ruleset := newPartsLoop(k)
	if err := loop.Once(t.Context()); err != nil {
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
	loop, _ := newPartsLoop(k)
	err := loop.Once(t.Context())
	want := "part 2 of 3: commit to nf_tables: cannot allocate memory; nothing was changed; the parts before it stand, packets do not reach them"
	if err == nil || err.Error() != want || !errors.Is(err, unix.ENOMEM) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

func diffFromNothing(ruleset *services.Ruleset) int {
	whole := nft.Diff(nil, ruleset.Want())
	return whole.ElementCount()
}

func checkWhole(t *testing.T, k *kernel.Client, ruleset *services.Ruleset) {
	t.Helper()
	have, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if repair := nft.Diff(have, ruleset.Want()); !repair.Empty() {
		t.Errorf("%d operations are missing", len(repair.Ops))
	}
}
