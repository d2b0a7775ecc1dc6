package daemon

import (
	"context"
	"errors"
	"testing"
)

// TestReleaser: it makes the tables anew once, and tries again after an error.
func TestReleaser(t *testing.T) {
	outcomes := []error{errors.New("no memory\nat all"), nil}
	r := releaser{owned: true, disown: func(context.Context) (err error) {
		err, outcomes = outcomes[0], outcomes[1:]
		return err
	}}
	for _, want := range []string{"no memory; at all", answerDone, answerAlready} {
		if got := r.release(t.Context()); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	never := releaser{}
	if got := never.release(t.Context()); got != answerAlready {
		t.Errorf("of tables that belong to nobody: %q", got)
	}
}
