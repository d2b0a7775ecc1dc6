package sync

import (
	"context"
	"fmt"
	"maps"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/services"
)

// An affinityDebt takes care of the entries of affinity maps, which packets make: it lists
// what a batch has to change of them, and tries again when a commit has left stale ones.
type affinityDebt struct {
	kernel  client
	log     *zap.Logger
	retry   backoff // its failures are those since the debt came up; 0 if there is none
	refused error   // by the kernel, with the batch of this sync, which goes without the entries
	logged  string  // the latest complaint: one that goes on is not repeated
}

// ops returns the operations for tasks, given the entries that the kernel has now.
func (d *affinityDebt) ops(ctx context.Context, tasks []services.AffinityTask) (ops []nft.Op, err error) {
	for _, task := range tasks {
		entries, err := d.kernel.Elements(ctx, task.Family, task.Source())
		if err != nil {
			return nil, fmt.Errorf("read affinity map %s: %w", task.From, err)
		}
		ops = append(ops, task.Ops(entries)...)
	}
	return ops, nil
}

// opsFor is ops for tables that have been read with their entries. There are none while the
// kernel refuses them.
func (d *affinityDebt) opsFor(have nft.Tables, tasks []services.AffinityTask) (ops []nft.Op) {
	for _, task := range tasks {
		if table := have[task.Family]; d.refused == nil && table != nil && table.Sets[task.From] != nil {
			ops = append(ops, task.Ops(entriesFor(&task, table))...)
		}
	}
	return ops
}

// entriesFor returns the entries that a task is about. The map that it is to fill from another
// one may exist, if the kernel did an earlier batch and its answer was lost: the clients that
// packets have put there since stay where they are. To add them again is refused.
func entriesFor(task *services.AffinityTask, table *nft.Table) map[string]nft.Element {
	entries, into := table.Sets[task.From].Map, table.Sets[task.Map.Name]
	if !task.Seeds() || into == nil {
		return entries
	}
	entries = maps.Clone(entries)
	maps.DeleteFunc(entries, func(client string, _ nft.Element) bool {
		_, known := into.Map[client]
		return known
	})
	return entries
}

// settle removes the entries that packets made for a leaving endpoint between our reading of
// the map and the commit. After the commit, no more of them can be made. If that fails, a later
// sync reads the tables and looks at all affinity maps, as a full one has done.
func (d *affinityDebt) settle(ctx context.Context, tasks []services.AffinityTask, full bool) {
	err := d.refused
	if err == nil {
		err = d.removeStale(ctx, tasks)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		pause := d.retry.failed()
		if text := err.Error(); text != d.logged {
			d.logged = text
			d.log.Warn("session affinity: entries of removed endpoints stay until a later sync",
				zap.Error(err), zap.Duration("retry_in", pause))
		}
	case full:
		d.retry.failures, d.logged = 0, ""
	}
}

func (d *affinityDebt) removeStale(ctx context.Context, tasks []services.AffinityTask) error {
	for i := range tasks {
		tasks[i] = tasks[i].Rest()
	}
	ops, err := d.ops(ctx, tasks)
	if err != nil || len(ops) == 0 {
		return err
	}
	return d.kernel.Commit(ctx, nft.Batch{Ops: ops})
}
