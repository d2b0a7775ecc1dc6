package services

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// ownedRuleset commits a ruleset whose tables belong to k. Kernels before 6.9 cannot.
func ownedRuleset(t *testing.T, k *kernel.Client) *Ruleset {
	t.Helper()
	features, err := k.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !features.OwnerPersist {
		lab.SkipOrFail(t, "this kernel cannot let a table outlive its owner")
	}
	r := ownableRuleset(true)
	syncWith(t, k, r)
	return r
}

// ownableRuleset returns a ruleset whose tables are to have an owner, or none.
func ownableRuleset(owned bool) *Ruleset {
	config := testConfig()
	config.Owned = owned
	r := NewRuleset(config)
	r.Apply(cluster(10, 2))
	return r
}

// syncWith does what a start does: it reads, adopts and writes what differs.
func syncWith(t *testing.T, k *kernel.Client, r *Ruleset) nft.Batch {
	t.Helper()
	have, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b := change.Diff(have, r.Want())
	commit(t, k, b)
	return b
}

// TestAdoptionWithoutBaseChains: the next start replaces a table whose owner ended before there were all base
// chains. The kernel takes no base chain in the batch that gives a table an owner.
func TestAdoptionWithoutBaseChains(t *testing.T) {
	lab.New(t)
	first, err := kernel.Open()
	if err != nil {
		t.Fatal(err)
	}
	ownedRuleset(t, first)
	commit(t, first, nft.Batch{Ops: []nft.Op{
		{Verb: nft.Flush, Family: nft.IP, Chain: &nft.Chain{Name: "nat-output"}},
		{Verb: nft.Delete, Family: nft.IP, Chain: &nft.Chain{Name: "nat-output"}},
	}})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	next := lab.Open(t, kernel.Open)
	r := ownableRuleset(true)
	syncWith(t, next, r)
	have, _, err := next.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b := change.Diff(have, r.Want()); !b.Empty() || have[nft.IP].Orphaned || have[nft.IP].Chains["nat-output"] == nil {
		t.Errorf("orphaned %v, base chain there: %v, %d operations are left", have[nft.IP].Orphaned,
			have[nft.IP].Chains["nat-output"] != nil, len(b.Ops))
	}
}

func TestOwnedTableIsForItsOwner(t *testing.T) {
	lab.New(t)
	owner := lab.Open(t, kernel.Open)
	other := lab.Open(t, kernel.Open)
	ownedRuleset(t, owner)
	const want = "table ip kube-nft: delete chain services: operation not permitted (the table belongs to another " +
		"program until that ends; nft list tables tells its name); nothing was changed"
	err := other.Commit(t.Context(),
		nft.Batch{Ops: []nft.Op{{Verb: nft.Delete, Family: nft.IP, Chain: &nft.Chain{Name: "services"}}}})
	if !errors.Is(err, unix.EPERM) || err.Error() != want {
		t.Errorf("another program's batch: %v, want %s", err, want)
	}
	lab.Run(t, "", "nft", "flush", "ruleset")
	have, _, err := other.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !have[nft.IP].Owned || have[nft.IP].Orphaned || len(have[nft.IP].Sets[clusterMap].Map) != 20 {
		t.Errorf("owned %v, orphaned %v, %d endpoints; want all of it to belong to its owner",
			have[nft.IP].Owned, have[nft.IP].Orphaned, len(have[nft.IP].Sets[clusterMap].Map))
	}
}

func TestOrphanIsAdopted(t *testing.T) {
	lab.New(t)
	first, err := kernel.Open()
	if err != nil {
		t.Fatal(err)
	}
	r := ownedRuleset(t, first)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := lab.Open(t, kernel.Open)
	if b := syncWith(t, second, r); len(b.Ops) != 2 || b.Ops[0].Table == nil || b.Ops[1].Table == nil {
		t.Errorf("%d operations, want the adoption of two tables and nothing else", len(b.Ops))
	}
	if b := syncWith(t, second, r); !b.Empty() {
		t.Errorf("%d operations for tables that are ours already", len(b.Ops))
	}
	if text := lab.Run(t, "", "nft", "list", "table", "ip", "kube-nft"); !strings.Contains(text, "flags owner") {
		t.Errorf("the table has no owner:\n%s", text)
	}
}

// TestOrphanCanBeFlushed is why an administrator can remove the tables of a daemon that has ended without kube-nft.
func TestOrphanCanBeFlushed(t *testing.T) {
	lab.New(t)
	owner, err := kernel.Open()
	if err != nil {
		t.Fatal(err)
	}
	ownedRuleset(t, owner)
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "", "nft", "flush", "ruleset")
	if text := lab.Run(t, "", "nft", "list", "ruleset"); text != "" {
		t.Errorf("left:\n%s", text)
	}
}

func TestOwnershipIsGivenUpAndTaken(t *testing.T) {
	lab.New(t)
	k, other := lab.Open(t, kernel.Open), lab.Open(t, kernel.Open)
	ownedRuleset(t, k)
	for _, owned := range []bool{false, true, false} {
		syncWith(t, k, ownableRuleset(owned))
		err := other.Commit(t.Context(),
			nft.Batch{Ops: []nft.Op{{Verb: nft.Add, Family: nft.IP, Chain: &nft.Chain{Name: "foreign"}}}})
		if (err != nil) != owned {
			t.Errorf("owned %v: another program's batch: %v", owned, err)
		}
	}
}
