package main

import (
	"context"
	"sync/atomic"
	"time"
)

// A pulse is a clock that stands still while this machine does, or has no time for us: what
// takes long then is nobody's fault. Make it with new; it starts with run.
type pulse struct{ time, lost atomic.Int64 } // in nanoseconds

// What a beat may take, and what of it counts.
const (
	beat        = 10 * time.Millisecond
	longestBeat = 100 * time.Millisecond
)

// run beats until ctx ends.
func (p *pulse) run(ctx context.Context) {
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			now := time.Now()
			p.add(now.Sub(last))
			last = now
		}
	}
}

// add counts the time between two beats.
func (p *pulse) add(d time.Duration) {
	counts := min(d, longestBeat)
	p.time.Add(int64(counts))
	p.lost.Add(int64(d - counts))
}

// now returns the time that has passed.
func (p *pulse) now() time.Duration { return time.Duration(p.time.Load()) }

// stoodStill returns the time that does not count.
func (p *pulse) stoodStill() time.Duration { return time.Duration(p.lost.Load()) }
