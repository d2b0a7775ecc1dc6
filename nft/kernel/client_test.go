package kernel

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

func sortedSets(t *nft.Table) []string { return nft.sortedNames(t.Sets) }

func sortedChains(t *nft.Table) []*nft.Chain {
	return slices.SortedFunc(maps.Values(t.Chains), nft.compareChains)
}

// openKernel opens a Kernel in the namespace of the calling goroutine.
func openKernel(t testing.TB) *Client {
	t.Helper()
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
}

func commit(t testing.TB, k *Client, b nft.Batch) {
	t.Helper()
	if err := k.Commit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
}

// checkTriangle holds tables against the kernel: our batch lists as our text, and our text
// loaded by nft lists as itself.
func checkTriangle(t *testing.T, k *Client, tables nft.Tables) {
	t.Helper()
	want := tables.Text()
	commit(t, k, creation(tables))
	if diff := cmp.Diff(lines(want), lines(lab.Listing(t, want))); diff != "" {
		t.Errorf("after our batch (-want +got):\n%s", diff)
	}
	lab.Run(t, "flush ruleset\n"+want, "nft", "-f", "-")
	if diff := cmp.Diff(lines(want), lines(lab.Listing(t, want))); diff != "" {
		t.Errorf("after our text (-want +got):\n%s", diff)
	}
}

func lines(s string) []string { return strings.Split(s, "\n") }

func TestStatementsInKernel(t *testing.T) {
	lab.New(t)
	checkTriangle(t, openKernel(t), statementTables())
}
