package conntrack

import (
	"context"
	"errors"

	"github.com/kube-nft/kube-nft/tracker"
)

// table is what a Reconciler needs of *Table.
type table interface {
	Flows(ctx context.Context, filter Filter, keep func(*Flow) bool) ([]Flow, error)
	Delete(ctx context.Context, flows []Flow, still func(*Flow) bool) (int, error)
}

// A Reconciler deletes stale flows. It belongs to one goroutine, as its table does.
type Reconciler struct{ table table }

// NewReconciler returns a Reconciler for t.
func NewReconciler(t *Table) *Reconciler { return &Reconciler{table: t} }

// A Result counts what a clean-up did.
type Result struct {
	Requests int // dumps requested from the kernel
	Examined int // flows that the kernel reported
	Stale    int // flows found stale; those not in Deleted ended or were right again meanwhile, or see the error
	Deleted  int
	Deleted6 int // the IPv6 flows among Deleted
}

// Clean deletes the flows that changes, already committed, made stale, and no others.
// Desired is the state after the latest commit: it may be ahead of the changes, and go on
// while the flows are read. A flow is held against it once more right before it is deleted.
// Everything that can be done is done before an error is returned; to try again, repeat the
// call with the same changes.
func (r *Reconciler) Clean(ctx context.Context, changes []tracker.FlowChange, desired Desired) (Result, error) {
	set := newChangeSet(changes, desired)
	return r.clean(ctx, set.filters(), set.stale)
}

// Full deletes all flows that contradict desired, and those that changes made stale: after a
// start or restart, and when the Service CIDRs or the node-port addresses changed. Frontends
// that vanished unseen, other than at addresses of Service CIDRs, are unknown here: they need
// a FlowChange.
func (r *Reconciler) Full(ctx context.Context, changes []tracker.FlowChange, desired Desired) (Result, error) {
	var filters []Filter
	for _, family := range tracker.Families {
		filters = append(filters, staleFilters(family, true, true, desired.AnyResets())...)
	}
	set := newChangeSet(changes, desired)
	return r.clean(ctx, filters, func(flow *Flow) bool { return stale(flow, desired) || set.stale(flow) })
}

// clean reads what each filter selects and deletes what is stale.
func (r *Reconciler) clean(ctx context.Context, filters []Filter, stale func(*Flow) bool) (result Result, err error) {
	for _, filter := range filters {
		result.Requests++
		flows, failed := r.table.Flows(ctx, filter, func(flow *Flow) bool {
			result.Examined++
			return stale(flow)
		})
		deleted, refused := r.table.Delete(ctx, flows, stale)
		result.Stale += len(flows)
		result.Deleted += deleted
		if filter.Family == tracker.IPv6 {
			result.Deleted6 += deleted
		}
		err = errors.Join(err, failed, refused)
	}
	return result, err
}
