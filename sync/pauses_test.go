package sync

import (
	"testing"
	"time"
)

// TestRest has changes without a pause: each line is how long syncs take, how long is between
// them at least, and the pauses that follow.
func TestRest(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	for _, tt := range []struct {
		takes, least time.Duration
		pauses       []time.Duration
	}{
		{0, ms, []time.Duration{ms, ms, ms}},
		{100 * us, ms, []time.Duration{ms, ms, ms}},
		{2 * ms, ms, []time.Duration{ms, ms, ms, ms, 6 * ms, 6 * ms}},
		{time.Minute, ms, []time.Duration{ms, 19 * ms, 20 * ms}},
		{10 * ms, ms, []time.Duration{ms, 19 * ms, 20 * ms, 20 * ms}},
		{2 * ms, time.Second, []time.Duration{time.Second, time.Second}},
		{time.Second, 0, []time.Duration{0, 0, 0}},
	} {
		var rest rest
		now := time.Unix(1000, 0)
		for i, want := range tt.pauses {
			rest.note(now, now.Add(tt.takes))
			now = now.Add(tt.takes)
			if pause := max(0, rest.next(tt.least).Sub(now)); pause != want {
				t.Errorf("pause %d after syncs of %v, at least %v, is %v; want %v", i, tt.takes, tt.least, pause, want)
			}
			now = now.Add(want)
		}
	}
}
