package sync

import (
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
	"github.com/kube-nft/kube-nft/tracker"
)

// A SafetyError says why the safety check stops a commit: it would remove Services. The loop checks again after
// a pause. Options.Foreign may return one, too.
type SafetyError struct{ Err error }

func (e *SafetyError) Error() string { return e.Err.Error() }
func (e *SafetyError) Unwrap() error { return e.Err }

// safetyPause is the pause before the safety check is repeated; retry.Rest of the last one, if that is more.
const safetyPause = 2 * time.Second

// A sourceCheck keeps a start from emptying tables that the last process left and that serve.
type sourceCheck struct {
	trust bool
	since time.Time // of the first look

	stopped bool // the last look stopped the commit
	kept    int  // the frontends that it found in the source
}

// look returns a *SafetyError if want removes nearly all frontends of have, until tracker.SafetyPeriod has passed. A
// source may get its objects one by one after an error. So look stops a commit, too, if it stopped the last one and the
// source has more frontends now: a part of them would remove the rest.
func (d *sourceCheck) look(have, want nft.Tables, now time.Time) error {
	if d.since.IsZero() {
		d.since = now
	}
	left := tracker.SafetyPeriod - now.Sub(d.since)
	if d.trust || left <= 0 {
		return nil
	}
	before, after := readback.NewAnswers(have, nil), readback.NewAnswers(want, nil)
	kept := 0
	for frontend := range before.Frontends() {
		if answer := after.Of(frontend); answer == readback.Served || answer == readback.NotLocal {
			kept++
		}
	}
	fills := d.stopped && kept > d.kept
	d.stopped, d.kept = fills || tracker.TooFew(kept, before.Total), kept
	if !d.stopped {
		return nil
	}
	return &SafetyError{fmt.Errorf("our tables serve %d frontends, and the source has %d of them; check that it is the "+
		"right source, with all Services and EndpointSlices; kube-nft writes nothing", before.Total, kept)}
}
