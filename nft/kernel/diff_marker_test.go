package kernel

import (
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
)

func TestTablesOfOtherSchemasAreKept(t *testing.T) {
	want := services.NewRuleset(services.testConfig()).Want()
	for _, tt := range []struct {
		comment string
		kept    bool
	}{
		{nft.tableComment, true},
		{nft.markerHead + "0)", true},
		{nft.markerHead + "27)", true},
		{"", false},
		{"somebody else's", false},
		{nft.markerHead + ")", false},
		{nft.markerHead + "1", false},
		{nft.tableComment + " (flags 0x1)", false},
	} {
		have := services.NewRuleset(services.testConfig()).Want()
		have[nft.IP].Comment = tt.comment
		batch := nft.Diff(have, want)
		if kept := !batch.Remakes(); kept != tt.kept || kept != batch.Empty() {
			t.Errorf("comment %q: kept %v, want %v; %d operations", tt.comment, kept, tt.kept, len(batch.Ops))
		}
	}
}
