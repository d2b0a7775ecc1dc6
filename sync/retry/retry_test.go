package retry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	b := Backoff{Min: 50 * time.Millisecond, Max: 30 * time.Second}
	for i := range 100 {
		want := b.Max
		if i < 10 {
			want = b.Min << i
		}
		if got := b.Next(); got != min(want, b.Max) || b.Failures() != i+1 {
			t.Errorf("pause %d is %s, want %s", i, got, want)
		}
	}
	b.Reset()
	if got := b.Next(); got != b.Min {
		t.Errorf("%s after a success", got)
	}
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		began := time.Now()
		if !Pause(ctx, time.Second) || time.Since(began) != time.Second {
			t.Errorf("paused for %s", time.Since(began))
		}
		if Pause(ctx, time.Hour) || time.Since(began) != time.Minute {
			t.Errorf("the end of the context ends the pause after %s", time.Since(began))
		}
	})
}
