package shadow

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/nft/migrate"
)

// TestShadowReport: the log names differences once a minute at most, once an hour if they stay the same, and says once
// that there are none any more.
func TestShadowReport(t *testing.T) {
	core, lines := observer.New(zap.InfoLevel)
	s := &Comparer{Log: zap.New(core), Warn: func(string, string) {}}
	now := time.Unix(0, 0)
	one, other := migrate.Difference{Frontend: "one"}, migrate.Difference{Frontend: "other"}
	for i, step := range []struct {
		after   time.Duration
		lasting []migrate.Difference
		lines   int
	}{
		{0, nil, 0},
		{time.Second, []migrate.Difference{one}, 1},
		{time.Second, []migrate.Difference{one}, 0},
		{time.Second, []migrate.Difference{other}, 0}, // within a minute
		{time.Minute, []migrate.Difference{other}, 1},
		{2 * time.Minute, []migrate.Difference{other}, 0},
		{time.Hour, []migrate.Difference{other}, 1},
		{time.Second, nil, 1},
		{time.Second, nil, 0},
		{time.Second, []migrate.Difference{one}, 0}, // it comes and goes
		{time.Second, nil, 0},
		{time.Minute, []migrate.Difference{one, other}, 1},
	} {
		now = now.Add(step.after)
		s.report(now, step.lasting)
		if n := len(lines.TakeAll()); n != step.lines {
			t.Errorf("step %d: %d lines, want %d", i, n, step.lines)
		}
	}
}
