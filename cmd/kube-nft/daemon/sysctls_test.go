package daemon

import (
	"os"
	"path/filepath"
	"testing"

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
