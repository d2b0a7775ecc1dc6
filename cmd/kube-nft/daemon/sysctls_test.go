package daemon

import (
	"math"
	"os"
	"path/filepath"
	"runtime/debug"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestOOMScoreThatIsRefused: a score that protects the process may replace the one of the settings.
func TestOOMScoreThatIsRefused(t *testing.T) {
	for given, want := range map[string]zapcore.Level{"-500\n": zap.InfoLevel, "100\n": zap.WarnLevel,
		"?": zap.WarnLevel} {
		path := filepath.Join(t.TempDir(), "oom_score_adj")
		if err := os.WriteFile(path, []byte(given), 0o600); err != nil {
			t.Fatal(err)
		}
		core, logs := observer.New(zap.DebugLevel)
		logScore(path, -999, os.ErrPermission, zap.New(core))
		if logs.Len() != 1 || logs.All()[0].Level != want {
			t.Errorf("with score %q, logged %v, want one line of level %s", given, logs.All(), want)
		}
	}
}

// TestMemoryOfContainer: three quarters of the container's limit are for the process, and all of an unlimited one.
func TestMemoryOfContainer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	t.Setenv("GOMEMLIMIT", "") // restores it
	os.Unsetenv("GOMEMLIMIT")
	unlimited := func() (uint64, error) { return 0, memlimit.ErrNoLimit }
	unknown := func() (uint64, error) { return 0, os.ErrPermission }
	for _, tt := range []struct {
		container memlimit.Provider
		want      int64
		lines     int
	}{{memlimit.Limit(2 << 30), 3 << 29, 0}, {unknown, 3 << 29, 1}, {unlimited, math.MaxInt64, 0}} {
		core, logs := observer.New(zap.DebugLevel)
		limitMemory(tt.container, zap.New(core))
		if got := debug.SetMemoryLimit(-1); got != tt.want || logs.Len() != tt.lines {
			t.Errorf("a limit of %d bytes, want %d; logged %v", got, tt.want, logs.All())
		}
	}
}
