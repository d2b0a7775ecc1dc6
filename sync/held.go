package sync

import (
	"errors"
	"fmt"
	"time"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/readback"
)

// A HeldError says why nothing is committed although there is something to commit: it would take
// Services away. The loop looks again after a pause. Options.Foreign may return one, too.
type HeldError struct{ Err error }

func (e *HeldError) Error() string { return e.Err.Error() }
func (e *HeldError) Unwrap() error { return e.Err }

// heldPause is the pause before a commit that is held back is looked at again; heldRatio times the
// duration of the last look, if that is more.
const (
	heldPause = 2 * time.Second
	heldRatio = 10
)

// When a start is held back: tables that the last process left serve at least doubtFrom frontends,
// and the source keeps less than one in doubtKept of them. Clusters seldom lose that much while no
// kube-nft runs; a wiped API server, a wrong one and an empty directory do it at once. What is
// deleted while kube-nft runs is followed whatever it is.
const (
	doubtFrom = 20
	doubtKept = 10
)

// DoubtFor is how long a start is held back. Then the source is right: the rules of a cluster that was
// emptied must not stay for good.
const DoubtFor = 10 * time.Minute

// A doubt keeps a start from emptying tables that serve.
type doubt struct {
	trust bool
	since time.Time // of the first look
}

// look returns a *HeldError if want gives up nearly all that have serves, until DoubtFor has passed.
func (d *doubt) look(have, want nft.Tables, now time.Time) error {
	if d.since.IsZero() {
		d.since = now
	}
	left := DoubtFor - now.Sub(d.since)
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
	if before.Total < doubtFrom || kept*doubtKept >= before.Total {
		return nil
	}
	return &HeldError{fmt.Errorf("our tables serve %d frontends, and the source has %d of them: is it the right one, with all Services and EndpointSlices? "+
		"Nothing is written", before.Total, kept)}
}

// held reports whether err holds a commit back.
func held(err error) bool {
	var h *HeldError
	return errors.As(err, &h)
}
