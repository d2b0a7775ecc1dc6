package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		p := new(pulse)
		go p.run(ctx)
		time.Sleep(time.Second + beat/2)
		stop()
		synctest.Wait()
		if p.now() != time.Second || p.stoodStill() != 0 {
			t.Errorf("after a second: %s, stood still for %s", p.now(), p.stoodStill())
		}
		p.add(3 * time.Second)
		if p.now() != time.Second+longestBeat || p.stoodStill() != 3*time.Second-longestBeat {
			t.Errorf("after it stood still: %s, stood still for %s", p.now(), p.stoodStill())
		}
	})
}
