package sync

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/services"
)

// TestClockMayJump holds every time that a pause or a duration is reckoned from to carry the
// monotonic clock, which goes on evenly while another program sets the wall clock. Timers follow the
// former anyway.
func TestClockMayJump(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var report Report
	changes := new(feed)
	changes.add("web")
	loop := New(changes, services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}}), &inspected{generation: 8},
		Options{Log: zap.NewNop(), AuditInterval: time.Hour})
	monitor := &ear{news: make(chan *change.ForeignChange, 1)}
	defer close(monitor.news)
	loop.Watch(monitor)
	loop.options.Committed = func(r Report) {
		report = r
		if !loop.drift.suspected.IsZero() {
			stop()
			return
		}
		monitor.news <- &change.ForeignChange{Lost: true}
	}
	if err := loop.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]time.Time{
		"end of the last sync": loop.ended, "suspicion": loop.drift.suspected, "start of the sync": report.Taken,
	} {
		if at == at.Round(0) { // which takes the monotonic clock off
			t.Errorf("%s: %v follows a clock that is set", name, at)
		}
	}
}
