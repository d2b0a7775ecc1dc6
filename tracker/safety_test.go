package tracker

import "testing"

func TestTooFew(t *testing.T) {
	for _, tt := range []struct {
		kept, of int
		want     bool
	}{{0, 0, false}, {0, 19, false}, {0, 20, true}, {1, 20, true}, {2, 20, false}, {20, 20, false}, {99, 1000, true},
		{100, 1000, false}} {
		if got := TooFew(tt.kept, tt.of); got != tt.want {
			t.Errorf("%d of %d: %t", tt.kept, tt.of, got)
		}
	}
}
