package sync

import (
	"context"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
)

// A complaint is logged when its text changes, not with every sync that it goes on.
type complaint struct{ last string }

// news reports whether err says something else than the time before.
func (c *complaint) news(err error) bool {
	text := err.Error()
	news := text != c.last
	c.last = text
	return news
}

// A debt are entries of affinity maps that a commit should have changed and has not.
type debt struct {
	refused   error // by the kernel, with the batch of this sync; it goes without them
	attempts  int   // that have failed since it came up; 0 if there is none
	complaint complaint
}

// sweep removes the affinity entries that packets made for a leaving endpoint between our
// reading of the map and the commit. After the commit, no more of them can be made.
func (l *Loop) sweep(ctx context.Context, p *plan) {
	err := l.debt.refused
	if err == nil {
		err = l.sweepMaps(ctx, p.tasks)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		l.owe(err)
	case p.full:
		l.debt = debt{}
	}
}

// owe makes a later sync read the tables and look at all affinity maps, after a pause that
// doubles.
func (l *Loop) owe(err error) {
	pause := l.backoff(l.debt.attempts)
	l.debt.attempts++
	l.retry.Reset(pause)
	if l.debt.complaint.news(err) {
		l.options.Log.Warn("session affinity: entries of removed endpoints stay until a later sync",
			zap.Error(err), zap.Duration("retry_in", pause))
	}
}

func (l *Loop) sweepMaps(ctx context.Context, tasks []nft.AffinityTask) error {
	batch, err := l.sweepings(ctx, tasks)
	if err != nil || batch.Empty() {
		return err
	}
	return l.kernel.Commit(ctx, batch)
}

// sweepings are the operations of a sweep.
func (l *Loop) sweepings(ctx context.Context, tasks []nft.AffinityTask) (batch nft.Batch, err error) {
	for _, task := range tasks {
		task = task.Sweep()
		entries, err := l.kernel.Elements(ctx, task.Family, task.Map)
		if err != nil {
			return nft.Batch{}, err
		}
		batch.Ops = append(batch.Ops, task.Ops(entries)...)
	}
	return batch, nil
}
