package main

import (
	"context"
	"errors"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestUntilDone: the end that was asked for is one line and no error, whatever is under way.
func TestUntilDone(t *testing.T) {
	failure := errors.New("broken")
	for name, tt := range map[string]struct {
		asked bool
		wait  func() error
		want  error
		lines int
	}{
		"asked while busy":  {true, func() error { <-t.Context().Done(); return nil }, nil, 1},
		"asked and failing": {true, func() error { return failure }, nil, 1},
		"fails":             {false, func() error { return failure }, failure, 0},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		if tt.asked {
			cancel()
		}
		core, logs := observer.New(zapcore.InfoLevel)
		d := daemon{log: zap.New(core)}
		if err := d.untilDone(ctx, tt.wait); err != tt.want {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if n := logs.FilterMessage("ending; the rules stay").Len(); n != tt.lines || logs.Len() != n {
			t.Errorf("%s: log %v", name, logs.All())
		}
		cancel()
	}
}
