package retry

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	for _, tt := range []struct {
		b        Backoff
		min, max time.Duration
	}{
		{Backoff{Min: time.Second, Max: time.Minute}, time.Second, time.Minute},
		{Backoff{}, 50 * time.Millisecond, 30 * time.Second},
	} {
		b := tt.b
		for i := range 100 {
			want := min(tt.min<<min(i, 20), tt.max)
			if got := b.Next(); got != want || b.Failures() != i+1 {
				t.Errorf("%+v: pause %d is %s, want %s", tt.b, i, got, want)
			}
		}
		b.Reset()
		if got := b.Next(); got != tt.min {
			t.Errorf("%+v: %s after a success", tt.b, got)
		}
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
