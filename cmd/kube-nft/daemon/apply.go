package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/kube-nft/kube-nft/cmd/kube-nft/config"
	"github.com/kube-nft/kube-nft/nft/migrate"
)

// errApplied ends the daemon of Apply when the takeover is done.
var errApplied = errors.New("the takeover is done")

// An apply ends a daemon with its takeover.
type apply struct {
	record func(migrate.Entry)
	end    func(error) // ends the daemon; with nil, because the takeover is done
	waits  atomic.Pointer[string]
}

// Apply runs the daemon until it has taken this node over from kube-proxy, or until a step fails. It
// leaves our tables in force. journal gets the steps of the takeover, and the daemon's warnings.
func Apply(ctx context.Context, reader *config.Reader, c *config.Config, journal io.Writer) error {
	lines := zapcore.Lock(zapcore.AddSync(journal))
	d := newDaemon(c, c.Log(lines).WithOptions(zap.IncreaseLevel(zap.WarnLevel)))
	write := migrate.WriteJournal(lines)
	d.apply = &apply{end: func(err error) { d.group.Go(func() error { return cmp.Or(err, errApplied) }) }}
	d.apply.record = func(e migrate.Entry) {
		d.apply.waits.Store(nil)
		if e.Event == migrate.Waits {
			d.apply.waits.Store(&e.Text)
		}
		write(e)
	}
	err := d.run(ctx, reader)
	waits := d.apply.waits.Load()
	switch {
	case errors.Is(err, errApplied):
		return nil
	case ctx.Err() != nil && waits != nil:
		return fmt.Errorf("kube-proxy, %s, is still running: %w; its rules are in place; stop it on this node and run this "+
			"again", *waits, context.Cause(ctx))
	case ctx.Err() != nil:
		return fmt.Errorf("the takeover is not complete: %w; run this again", context.Cause(ctx))
	}
	return err
}

// failed ends the daemon if the first commit fails.
func (a *apply) failed(t *takeover, err error) {
	if !t.over {
		a.end(fmt.Errorf("commit: %w", err))
	}
}

// safetyStop ends the daemon if the first commit must wait.
func (a *apply) safetyStop(t *takeover, err error) {
	switch {
	case t.over || migrate.IsLoss(err): // entered ends it after a loss
	case t.needed:
		a.end(fmt.Errorf("commit: %w; --force skips this check", err))
	default: // nothing has to be decided here
		a.record(migrate.Entry{Step: "commit", Event: migrate.Done, Text: "our tables stay as they are: " + err.Error() +
			"; the daemon waits for a while, --force skips this check"})
		a.end(nil)
	}
}

// entered ends the daemon if the takeover has entered a state in which it does not go on by itself soon.
func (a *apply) entered(t *takeover, s migrate.State, err error) {
	var tables *migrate.TablesError
	switch {
	case s == migrate.Taken && t.needed, s == migrate.Draining: // the daemon that follows sees to the rest
		a.end(nil)
	case err != nil && !errors.As(err, &tables):
		a.end(err)
	}
}
