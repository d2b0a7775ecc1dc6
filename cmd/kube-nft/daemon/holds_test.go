package daemon

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// TestHolds: what is held back is told once, again when the words change and once a minute, and when
// it is over.
func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		e, recorded := newTestEvents(t)
		metric := make(map[string]bool)
		h := &holds{log: zap.New(core), events: e, set: func(reason string, held bool) { metric[reason] = held }, told: make(map[string]telling)}
		h.tell(heldSource, nil) // nothing was
		for range 100 {
			h.tell(heldTakeover, errors.New("no Node"))
			h.tell(heldSource, errors.New("nothing left"))
			time.Sleep(time.Second)
		}
		h.tell(heldTakeover, errors.New("no Service"))
		if !metric[heldTakeover] || !metric[heldSource] {
			t.Errorf("metrics %v", metric)
		}
		h.tell(heldTakeover, nil)
		h.tell(heldTakeover, nil)
		if metric[heldTakeover] || !metric[heldSource] {
			t.Errorf("metrics %v once one is over", metric)
		}
		var got []string
		for _, line := range logs.All() {
			text, _ := line.ContextMap()["error"].(string)
			got = append(got, line.Level.String()+" "+text)
		}
		want := []string{"error no Node", "error nothing left", "error no Node", "error nothing left", "error no Service", "info "}
		if !slices.Equal(got, want) {
			t.Errorf("log %q, want %q", got, want)
		}
		if len(*recorded) != 3 { // events do not repeat within an hour
			t.Errorf("events %q", *recorded)
		}
	})
}
