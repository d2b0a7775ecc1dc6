package main

import (
	"os"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
)

// TestOOMScoreThatIsRefused: a score that protects is as good as the one that was asked for.
func TestOOMScoreThatIsRefused(t *testing.T) {
	before, err := os.ReadFile(oomScore)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.WriteFile(oomScore, before, 0) })
	const outOfRange = 5000 // which the kernel refuses whoever asks
	o := &options{Config: &config.Config{OOMScoreAdj: outOfRange}}
	for given, want := range map[string]zapcore.Level{"-500": zap.InfoLevel, "100": zap.WarnLevel} {
		if err := os.WriteFile(oomScore, []byte(given), 0); err != nil {
			t.Skipf("needs CAP_SYS_RESOURCE: %v", err)
		}
		core, logs := observer.New(zap.DebugLevel)
		o.tuneOOM(zap.New(core))
		if logs.Len() != 1 || logs.All()[0].Level != want {
			t.Errorf("with score %s, logged %v, want one line of level %s", given, logs.All(), want)
		}
	}
}
