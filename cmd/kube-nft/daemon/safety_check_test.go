package daemon

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/daemon/peer"
)

// TestSafetyCheckIsReported: the safety check is reported once, again when its reason changes and once a minute, and
// when it is over.
func TestSafetyCheckIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		e, recorded := newTestEvents()
		metric := make(map[string]bool)
		c := newSafetyCheck(zap.New(core), e, func(reason string, active bool) { metric[reason] = active })
		c.report(peer.SafetySource, nil) // nothing was
		for range 100 {
			c.report(peer.SafetyTakeover, errors.New("no Node"))
			c.report(peer.SafetySource, errors.New("nothing left"))
			time.Sleep(time.Second)
		}
		c.report(peer.SafetyTakeover, errors.New("no Service"))
		if !metric[peer.SafetyTakeover] || !metric[peer.SafetySource] {
			t.Errorf("metrics %v", metric)
		}
		c.report(peer.SafetyTakeover, nil)
		c.report(peer.SafetyTakeover, nil)
		if metric[peer.SafetyTakeover] || !metric[peer.SafetySource] {
			t.Errorf("metrics %v once one is over", metric)
		}
		var got []string
		for _, line := range logs.All() {
			text, _ := line.ContextMap()["error"].(string)
			got = append(got, line.Level.String()+" "+text)
		}
		want := []string{"error no Node", "error nothing left", "error no Node", "error nothing left", "error no Service",
			"info "}
		if !slices.Equal(got, want) {
			t.Errorf("log %q, want %q", got, want)
		}
		if len(*recorded) != 3 { // events do not repeat within an hour
			t.Errorf("events %q", *recorded)
		}
	})
}
