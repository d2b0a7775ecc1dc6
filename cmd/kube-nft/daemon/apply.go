package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// errApplied ends the daemon of Apply when the takeover is done.
var errApplied = errors.New("the takeover is done")

// An apply ends a daemon with its takeover.
type apply struct {
	journal func(migrate.Entry)
	end     context.CancelCauseFunc
}

// Apply runs the daemon until it has taken this node over from kube-proxy, or until a step fails. It
// leaves our tables in force. journal gets the steps of the takeover, and the daemon's warnings.
func Apply(ctx context.Context, reader *config.Reader, c *config.Config, journal io.Writer) error {
	lines := zapcore.Lock(zapcore.AddSync(journal))
	d := newDaemon(c, c.Log(lines).WithOptions(zap.IncreaseLevel(zap.WarnLevel)))
	running, end := context.WithCancelCause(ctx)
	defer end(nil)
	err := d.run(running, reader, &apply{journal: migrate.WriteJournal(lines), end: end})
	switch cause, takeover := context.Cause(running), d.takeover.progress(); {
	case errors.Is(cause, errApplied):
		return nil
	case ctx.Err() != nil && takeover.state == migrate.Waiting:
		return fmt.Errorf("kube-proxy, %s, is still running: %w; its rules are in place; stop it on this node and run this "+
			"again", takeover.awaits, context.Cause(ctx))
	case ctx.Err() != nil:
		return fmt.Errorf("the takeover is not complete: %w; run this again", context.Cause(ctx))
	default:
		return cmp.Or(err, cause)
	}
}

// failed ends migrate apply if the first commit fails.
func (t *takeover) failed(err error) {
	if t.apply != nil && !t.over {
		t.apply.end(fmt.Errorf("commit: %w", err))
	}
}

// safetyStop ends migrate apply if the first commit must wait.
func (t *takeover) safetyStop(err error) {
	switch {
	case t.apply == nil || t.over || migrate.IsLoss(err): // endAfter ends it after a loss
	case t.needed:
		t.apply.end(fmt.Errorf("commit: %w; --force skips this check", err))
	default: // nothing has to be decided here
		t.apply.journal(migrate.Entry{Step: "commit", Event: migrate.Done, Text: "our tables stay as they are: " +
			err.Error() + "; the daemon waits for a while, --force skips this check"})
		t.apply.end(errApplied)
	}
}

// endAfter ends migrate apply when the takeover has entered a state that it does not leave soon by itself. err led
// there.
func (t *takeover) endAfter(s migrate.State, err error) {
	switch {
	case s == migrate.Taken && t.needed, s == migrate.Draining: // the daemon that follows sees to the rest
		t.apply.end(errApplied)
	case err != nil && !errors.As(err, new(*migrate.TablesError)):
		t.apply.end(err)
	}
}
