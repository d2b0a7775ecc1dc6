package sync

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// A plan is what one attempt is going to send.
type plan struct {
	batch nft.Batch
	tasks []nft.AffinityTask
	full  bool
	flows []nft.FlowChange
	// allFlows asks to look at every connection: those that matter are not known.
	allFlows bool
}

// plan takes in what changed and computes the batch for it: against what was committed
// last, or against what the kernel says it holds.
func (l *Loop) plan(ctx context.Context) (plan, error) {
	if l.known {
		moved := l.apply()
		if batch := l.ruleset.Changes(); !batch.Remakes() {
			batch.Generation = l.guard.since(&batch)
			p, err := l.planChange(ctx, batch)
			p.allFlows = moved || l.reason != ""
			return p, err
		}
		l.known = false // a table takes more to make anew than what has changed of it
	}
	have, generation, err := l.read(ctx)
	if err != nil {
		return plan{}, err
	}
	if !l.adopted {
		l.ruleset.Adopt(have)
		l.adopted = true
	}
	l.apply()
	p := plan{batch: nft.Diff(have, l.ruleset.Want()), tasks: l.ruleset.AllAffinityTasks(), full: true, allFlows: true}
	p.flows = append(l.ruleset.Vanished(have), l.ruleset.FlowChanges()...)
	l.addTasks(&p, have)
	p.batch.Ops = append(nft.Adoption(have, l.ruleset.Want()), p.batch.Ops...)
	p.batch.Generation = generation
	return p, l.addBeside(ctx, &p.batch)
}

// addTasks adds what is to be done to the entries of affinity maps that the kernel holds,
// unless it has refused that.
func (l *Loop) addTasks(p *plan, have nft.Tables) {
	if l.debt.refused != nil {
		return
	}
	for _, task := range append(p.tasks, l.ruleset.AffinityTasks()...) {
		if table := have[task.Family]; table != nil && table.Sets[task.From] != nil {
			p.batch.Ops = append(p.batch.Ops, task.Ops(entriesFor(&task, table))...)
		}
	}
}

// entriesFor returns the entries that a task is about. The map that it is to fill from another
// one may exist, if the kernel did an earlier batch and its answer was lost: the clients that
// packets have put there since stay where they are. To add them again is refused.
func entriesFor(task *nft.AffinityTask, table *nft.Table) map[string]nft.Element {
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

// read returns what the kernel holds, with what packets have put into affinity maps.
func (l *Loop) read(ctx context.Context) (nft.Tables, uint32, error) {
	have, generation, err := l.kernel.Read(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("read the tables back: %w", err)
	}
	for family, table := range have {
		for name, held := range table.Sets {
			if !held.Set.Dynamic {
				continue
			}
			if held.Map, err = l.kernel.Elements(ctx, family, held.Set); err != nil {
				return nil, 0, fmt.Errorf("read affinity map %s: %w", name, err)
			}
		}
	}
	return have, generation, nil
}

// planChange completes the batch for what changed since the last commit.
func (l *Loop) planChange(ctx context.Context, batch nft.Batch) (plan, error) {
	p := plan{batch: batch, tasks: l.ruleset.AffinityTasks(), flows: l.ruleset.FlowChanges()}
	for _, task := range p.tasks {
		entries, err := l.kernel.Elements(ctx, task.Family, task.Source())
		if err != nil {
			l.known = false
			return plan{}, fmt.Errorf("read affinity map %s: %w", task.From, err)
		}
		p.batch.Ops = append(p.batch.Ops, task.Ops(entries)...)
	}
	return p, nil
}

// apply moves what the source has into the ruleset. It reports whether addresses have
// moved in or out of our care as a whole: Service CIDRs, or those of node ports.
func (l *Loop) apply() (moved bool) {
	delta := l.source.Take()
	l.poison.note(l.ruleset, &delta)
	l.ruleset.Apply(delta)
	node := l.source.NodeAddresses()
	l.ruleset.SetNodePortAddresses(l.options.NodePorts.Select(node, l.local))
	reached := l.options.NodePorts.Reached(node, l.local)
	moved = delta.CIDRsChanged || !slices.Equal(reached, l.nodePortAddrs)
	l.nodePortAddrs = reached
	l.waiting.Merge(delta)
	return moved
}
