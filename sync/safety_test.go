package sync

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A filled kernel holds tables from an earlier run.
type filled struct {
	table
	have nft.Tables
}

func (k *filled) ReadUnless(ctx context.Context, changed func(before, after uint32) bool) (nft.Tables, uint32, error) {
	_, generation, err := k.table.ReadUnless(ctx, changed)
	return k.have, generation, err
}

// portsFrom are n Service ports.
func portsFrom(n int) (ports []*tracker.ServicePort) {
	for i := range byte(n) {
		ports = append(ports, portWith("service-"+string(rune('a'+i)), i, i))
	}
	return ports
}

// filledWith is a kernel whose tables serve n Service ports.
func filledWith(n int) *filled {
	ruleset := services.NewRuleset(services.Config{Families: []nft.Family{nft.IP}, AffinitySize: 16})
	delta := tracker.Delta{Changed: portsFrom(n)}
	ruleset.Apply(delta)
	return &filled{have: ruleset.Want()}
}

// TestSafetyCheckOfEmptySource: a start does not empty tables that serve, unless they serve little, the
// source stays empty for tracker.SafetyPeriod, or the user trusts it.
func TestSafetyCheckOfEmptySource(t *testing.T) {
	for _, tt := range []struct {
		name         string
		have, source int
		trust        bool
		held         bool
	}{
		{"nothing left", 60, 0, false, true},
		{"nearly nothing left", 60, 5, false, true},
		{"one in ten left", 60, 6, false, false},
		{"little there", 19, 0, false, false},
		{"the user trusts the source", 60, 0, true, false},
		{"the first start", 0, 0, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := filledWith(tt.have)
				var told []string
				b := newBubble(k, Options{Trust: tt.trust}, portsFrom(tt.source)...)
				b.loop.options.SafetyCheck = func(err error) {
					text := "over"
					if err != nil {
						text = err.Error()
					}
					told = append(told, text)
				}
				b.run(t)
				if (len(b.reports) == 0) != tt.held || (len(told) > 0) != tt.held {
					t.Fatalf("%d batches, told %q; want it held back: %v", len(k.batches), told, tt.held)
				}
				if !tt.held {
					return
				}
				b.pass(tracker.SafetyPeriod - time.Second)
				if len(k.batches) != 0 || len(b.reports) != 0 {
					t.Errorf("%d batches before %s have passed", len(k.batches), tracker.SafetyPeriod)
				}
				if looks := len(told); looks > int(tracker.SafetyPeriod/safetyPause)+1 {
					t.Errorf("looked %d times", looks)
				}
				b.pass(time.Second + safetyPause)
				if len(k.batches) != 1 || told[len(told)-1] != "over" {
					t.Errorf("%d batches after %s, told %q", len(k.batches), tracker.SafetyPeriod, told[len(told)-1])
				}
				if b.logged("sync failed") != 0 {
					t.Error("a start that is held back counts as failed")
				}
			})
		})
	}
}

// TestSafetyCheckPasses: the loop commits when the source has enough and does not grow any more. From then on it
// follows each deletion at once.
func TestSafetyCheckPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := filledWith(60)
		b := start(t, k, Options{})
		for range 10 { // changes do not hurry it
			b.change()
		}
		if reads, _ := k.seen(); reads > 2 {
			t.Errorf("%d reads for changes while it is held back", reads)
		}
		for _, n := range []int{30, 59} {
			b.feed.set(portsFrom(n)...)
			b.pass(safetyPause)
			if len(k.batches) != 0 {
				t.Fatalf("%d batches while the source fills: it has %d", len(k.batches), n)
			}
		}
		b.pass(safetyPause)
		if len(k.batches) != 1 {
			t.Fatalf("%d batches once the source is there", len(k.batches))
		}
		removed := tracker.Delta{Removed: make(map[tracker.PortID]bool)}
		for _, p := range portsFrom(59) {
			removed.Removed[p.ID] = true
		}
		b.feed.deltas = append(b.feed.deltas, removed)
		b.change()
		if len(k.batches) != 2 {
			t.Errorf("%d batches after everything was deleted", len(k.batches))
		}
	})
}

// TestForeignMayStopFirstCommit: messages about tables of others may hold the first batch back.
func TestForeignMayStopFirstCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(table)
		refusal := error(&SafetyError{errors.New("no")})
		b := start(t, k, Options{Foreign: func(_ context.Context, want nft.Tables) ([]nft.ForeignMessage, uint32, error) {
			if want[nft.IP] == nil {
				t.Error("it does not get the wanted tables")
			}
			return []nft.ForeignMessage{{Type: 1}}, 7, refusal
		}})
		b.pass(time.Minute)
		if len(k.batches) != 0 {
			t.Fatalf("%d batches", len(k.batches))
		}
		refusal = nil
		b.pass(2 * safetyPause)
		if len(k.batches) != 1 || len(k.batches[0].Foreign) != 1 {
			t.Errorf("%d batches once it does not hold any more", len(k.batches))
		}
	})
}
