package conntrack

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/tracker"
)

// allCases returns the flows of staleCases, each with a source of its own, as the kernel
// holds no two with the same addresses.
func allCases() (flows []Flow, stale []string) {
	for i, tt := range staleCases {
		f := tt.flow
		if f.Original.Protocol == 1 { // the kernel wants more than ports to create these
			continue
		}
		f = from(f, i)
		flows = append(flows, f)
		if tt.stale {
			stale = append(stale, f.Original.String())
		}
	}
	return flows, stale
}

// from returns f as the flow number i of its client.
func from(f Flow, i int) Flow {
	source := netip.AddrPortFrom(f.Original.Source.Addr(), uint16(1000+i))
	f.Original.Source, f.Reply.Destination = source, source
	return f
}

// TestFullInKernel deletes what TestStale calls stale from a real table, and no more.
func TestFullInKernel(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	flows, stale := allCases()
	create(t, table, flows...)
	result, err := NewReconciler(table).Full(t.Context(), nil, desired)
	if err != nil || result.Deleted != len(stale) || result.Stale != len(stale) {
		t.Errorf("got %+v, %v, want %d deleted", result, err, len(stale))
	}
	left, err := table.Flows(t.Context(), Filter{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(sources(flows), func(s string) bool { return slices.Contains(stale, s) })
	if got := sources(left); !slices.Equal(got, want) {
		t.Errorf("left\n%q\nwant\n%q", got, want)
	}
}

// TestCleanInKernel runs each case of TestChange in a table that holds all the others.
func TestCleanInKernel(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	reconciler := NewReconciler(table)
	bystanders, _ := allCases()
	for i, tt := range changeCases {
		f := from(tt.flow, 10_000+i)
		create(t, table, f)
		if _, err := reconciler.Clean(t.Context(), []tracker.FlowChange{tt.change}, desired); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		left, err := table.Flows(t.Context(), Filter{}, func(l *Flow) bool { return l.Original == f.Original })
		if err != nil || (len(left) == 0) != tt.stale {
			t.Errorf("%s: left %v, %v, want stale %t", tt.name, left, err, tt.stale)
		}
	}
	create(t, table, bystanders...)
	change := tracker.FlowChange{Frontend: at(tracker.UDP, "203.0.113.5:443"), Removed: served("10.244.9.9:8443")}
	result, err := reconciler.Clean(t.Context(), []tracker.FlowChange{change}, desired)
	if err != nil || result.Requests != 1 || result.Examined > len(bystanders) || result.Deleted != 2 ||
		result.Deleted6 != 0 {
		t.Errorf("among others: got %+v, %v, want 1 request and 2 deleted", result, err)
	}
}

// faulty is a table that reports one flow and cannot delete it.
type faulty struct{ flow Flow }

func (f *faulty) Flows(_ context.Context, filter Filter, keep func(*Flow) bool) ([]Flow, error) {
	if filter.Matches(&f.flow) && keep(&f.flow) {
		return []Flow{f.flow}, ErrInterrupted
	}
	return nil, nil
}

func (f *faulty) Delete(_ context.Context, flows []Flow, _ func(*Flow) bool) (int, error) {
	if len(flows) > 0 {
		return 0, errors.New("refused")
	}
	return 0, nil
}

func TestCleanReportsErrors(t *testing.T) {
	f := flow(tracker.UDP, client, "10.96.0.10:53", "10.244.9.9:5353", established)
	reconciler := &Reconciler{table: &faulty{flow: f}}
	result, err := reconciler.Full(t.Context(), nil, desired)
	if !errors.Is(err, ErrInterrupted) || err.Error() != ErrInterrupted.Error()+"\nrefused" {
		t.Errorf("got %v, want both errors", err)
	}
	if want := (Result{Requests: 8, Examined: 1, Stale: 1}); result != want {
		t.Errorf("got %+v, want %+v", result, want)
	}
}

// A returning table holds flows whose endpoint comes back while they are being read.
type returning struct {
	flows   []Flow
	deleted []Flow
	back    func()
}

func (r *returning) Flows(_ context.Context, _ Filter, keep func(*Flow) bool) (kept []Flow, _ error) {
	for _, f := range r.flows {
		if keep(&f) {
			kept = append(kept, f)
		}
	}
	r.flows = nil
	r.back()
	return kept, nil
}

func (r *returning) Delete(_ context.Context, flows []Flow, still func(*Flow) bool) (n int, _ error) {
	for _, f := range flows {
		if still(&f) {
			r.deleted = append(r.deleted, f)
		}
	}
	return len(r.deleted), nil
}

// TestOvertaken: a flow is judged by what is desired when it is deleted, not when it was read.
func TestOvertaken(t *testing.T) {
	dns := at(tracker.UDP, "203.0.113.9:53")
	back, gone := endpoints("10.244.0.5:53"), endpoints("10.244.0.6:53")
	for _, full := range []bool{false, true} {
		now := &cluster{endpoints: map[tracker.Frontend][]string{dns: {}}}
		r := &returning{back: func() { now.endpoints[dns] = []string{back[0].String()} }}
		for _, ep := range slices.Concat(back, gone) {
			r.flows = append(r.flows, flow(tracker.UDP, client, "203.0.113.9:53", ep.String(), established))
		}
		changes := []tracker.FlowChange{{Frontend: dns, Removed: []tracker.Served{{List: slices.Concat(back, gone)}},
			Gone: true}}
		clean := (&Reconciler{table: r}).Clean
		if full {
			clean = (&Reconciler{table: r}).Full
		}
		result, err := clean(t.Context(), changes, now)
		if err != nil || result.Stale != 2 || len(r.deleted) != 1 || r.deleted[0].Endpoint() != gone[0] {
			t.Errorf("full %t: %+v, %v, deleted %v; want the flow to %v alone", full, result, err, r.deleted, gone[0])
		}
	}
}

// TestDeleteAsks lets the table itself ask before it deletes.
func TestDeleteAsks(t *testing.T) {
	lab.New(t)
	table := openTable(t)
	create(t, table, mixed()...)
	flows, err := table.Flows(t.Context(), Filter{Protocol: tracker.UDP}, nil)
	if err != nil {
		t.Fatal(err)
	}
	n, err := table.Delete(t.Context(), flows, func(f *Flow) bool { return f.Original.Source.Port() == 1001 })
	if err != nil || n != 2 { // one of each family
		t.Errorf("deleted %d, %v, want 2", n, err)
	}
	if left := count(t, table); left != len(mixed())-2 {
		t.Errorf("%d are left, want %d", left, len(mixed())-2)
	}
}

// TestFullCleansChangesInTheSameDumps: changes do not ask for dumps of their own.
func TestFullCleansChangesInTheSameDumps(t *testing.T) {
	changes := []tracker.FlowChange{{Frontend: at(tracker.UDP, "203.0.113.9:53"), Removed: served("10.244.0.5:53"),
		Gone: true}}
	without := *desired
	without.resets = nil
	for _, tt := range []struct {
		desired  *cluster
		requests int
	}{{&without, 4}, {desired, 8}} {
		r := &returning{back: func() {},
			flows: []Flow{flow(tracker.UDP, client, "203.0.113.9:53", "10.244.0.5:53", established)}}
		result, err := (&Reconciler{table: r}).Full(t.Context(), changes, tt.desired)
		if err != nil || result.Requests != tt.requests || len(r.deleted) != 1 {
			t.Errorf("%+v, %v, deleted %v; want %d requests and the flow", result, err, r.deleted, tt.requests)
		}
	}
}
