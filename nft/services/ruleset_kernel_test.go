package services

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
)

// TestRulesetInKernel holds whole rulesets of made-up worlds against the kernel: the batch
// from nothing lists as the text, the text lists as itself, the kernel reads back as what is
// wanted, and it takes every change.
func TestRulesetInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	for seed := range uint64(4) {
		lab.Run(t, "", "nft", "flush", "ruleset")
		w, r := newWorld(t, seed), NewRuleset(testConfig())
		for range 20 {
			w.change()
		}
		r.SetNodePortAddresses(nodeAddresses)
		r.Apply(w.everything())
		commit(t, k, change.Diff(nft.Tables{}, r.Want()))
		r.Committed()
		want := r.Want().Text()
		if diff := cmp.Diff(lines(want), lines(lab.Listing(t, want))); diff != "" {
			t.Fatalf("seed %d: after our batch (-want +got):\n%s", seed, diff)
		}
		lab.Run(t, "flush ruleset\n"+want, "nft", "-f", "-")
		if diff := cmp.Diff(lines(want), lines(lab.Listing(t, want))); diff != "" {
			t.Fatalf("seed %d: after our text (-want +got):\n%s", seed, diff)
		}
		checkNothingToWrite(t, k, r)
		lab.Run(t, want, "nft", "--check", "-f", "-") // a saved listing loads over the tables that it was made of
		for range 20 {
			r.Apply(w.change())
			commit(t, k, r.Changes())
			r.Committed()
		}
		checkNothingToWrite(t, k, r)
	}
}

func commit(t testing.TB, k *kernel.Client, b nft.Batch) {
	t.Helper()
	if err := k.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

func lines(s string) []string { return strings.Split(s, "\n") }

// checkNothingToWrite compares what the kernel reads back with what is wanted.
func checkNothingToWrite(t *testing.T, k *kernel.Client, r *Ruleset) {
	t.Helper()
	have, _, err := k.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if batch := change.Diff(have, r.Want()); !batch.Empty() {
		t.Errorf("%d operations to write, first: %s", len(batch.Ops), batch.Ops[0].Text())
	}
}
