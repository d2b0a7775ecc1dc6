package change_test

import (
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/nfttest"
)

func TestTablesOfOtherSchemasAreKept(t *testing.T) {
	const head = "Kubernetes Services, written by kube-nft (schema "
	want := nfttest.StatementTables()
	for _, tt := range []struct {
		comment string
		kept    bool
	}{
		{head + "1)", true},
		{head + "0)", true},
		{head + "27)", true},
		{"", false},
		{"another program's", false},
		{head + ")", false},
		{head + "1", false},
		{head + "1) (flags 0x1)", false},
	} {
		have := nfttest.StatementTables()
		have[nft.IP].Comment = tt.comment
		batch := change.Diff(have, want)
		if kept := !batch.Remakes(); kept != tt.kept || kept != batch.Empty() {
			t.Errorf("comment %q: kept %v, want %v; %d operations", tt.comment, kept, tt.kept, len(batch.Ops))
		}
	}
}
