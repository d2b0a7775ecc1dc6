package nft

import "testing"

func TestTablesOfOtherSchemasAreKept(t *testing.T) {
	want := NewRuleset(testConfig()).Want()
	for _, tt := range []struct {
		comment string
		kept    bool
	}{
		{tableComment, true},
		{markerHead + "0)", true},
		{markerHead + "27)", true},
		{"", false},
		{"somebody else's", false},
		{markerHead + ")", false},
		{markerHead + "1", false},
		{tableComment + " (flags 0x1)", false},
	} {
		have := NewRuleset(testConfig()).Want()
		have[IP].Comment = tt.comment
		batch := Diff(have, want)
		if kept := !batch.Remakes(); kept != tt.kept || kept != batch.Empty() {
			t.Errorf("comment %q: kept %v, want %v; %d operations", tt.comment, kept, tt.kept, len(batch.Ops))
		}
	}
}
