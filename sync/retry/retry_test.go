package retry

import (
	"context"
	"errors"
	"slices"
	"sync"
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

// TestRepeat: work comes after a wake and after its own time, rests, and backs off after errors.
func TestRepeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		began, wake := time.Now(), NewWake()
		passed := func() time.Duration { return time.Since(began) }
		type result struct {
			takes, again time.Duration
			err          error
		}
		var mu sync.Mutex
		next := result{takes: time.Second, again: Never}
		var starts []time.Duration
		becomes := func(r result) {
			mu.Lock()
			defer mu.Unlock()
			next = r
		}
		go Repeat(ctx, wake, 10*time.Second, passed, func() (time.Duration, error) {
			mu.Lock()
			starts = append(starts, passed())
			r := next
			mu.Unlock()
			time.Sleep(r.takes)
			return r.again, r.err
		})
		want := func(starting ...time.Duration) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(starts, starting) {
				t.Errorf("work at %s, want %s", starts, starting)
			}
			starts = nil
		}
		time.Sleep(time.Minute)
		want(10 * time.Second)
		wake.Notify()
		synctest.Wait()
		wake.Notify()
		becomes(result{again: 5 * time.Second})
		time.Sleep(11 * time.Second) // one second of work, three of rest, then the second notice
		want(60*time.Second, 64*time.Second, 69*time.Second)
		becomes(result{again: 0, err: errors.New("broken")})
		time.Sleep(3*time.Second + 200*time.Millisecond)
		want(74*time.Second, 74*time.Second+50*time.Millisecond, 74*time.Second+150*time.Millisecond)
		stop()
		time.Sleep(time.Minute)
		want()
	})
}
