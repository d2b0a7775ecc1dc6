package sync

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
	"github.com/kube-nft/kube-nft/nft/kernel"
	"github.com/kube-nft/kube-nft/nft/layout"
	"github.com/kube-nft/kube-nft/nft/services"
	"github.com/kube-nft/kube-nft/tracker"
)

// A slowReader reads entries as they were before packets replaced them.
type slowReader struct {
	*kernel.Client
	held map[string]nft.Element
}

func (r slowReader) Elements(context.Context, nft.Family, *nft.Set) (map[string]nft.Element, error) {
	return r.held, nil
}

func (r slowReader) Lookup(_ context.Context, _ nft.Family, _ *nft.Set, key string) (nft.Element, bool, error) {
	entry, ok := r.held[key]
	return entry, ok, nil
}

// TestReplacedEntriesStayInKernel removes entries of an endpoint that has left. One client has got
// another endpoint since its entry was read: it keeps that.
func TestReplacedEntriesStayInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, kernel.Open)
	if _, err := k.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := services.NewRuleset(services.Config{Families: nft.Families[:], MasqueradeBit: 14, AffinitySize: 1024})
	port := affine("web", 1, 1, 2)
	r.Apply(tracker.Delta{Changed: map[tracker.PortID]*tracker.ServicePort{port.ID: port}})
	group := r.EntriesChanged()[0]
	var set *nft.Set
	for _, s := range r.AffinityMaps(nft.IP) {
		if s.Name == layout.AffinityMap(group.Number) {
			set = s
		}
	}
	entry := func(client byte, endpoint netip.Addr) nft.KeyedElement {
		return nft.KeyedElement{Key: nft.NumberedKey(nft.IP, group.Number, netip.AddrFrom4([4]byte{192, 0, 2, client})),
			Element: nft.Element{Data: nft.AddrKey(endpoint), Life: &nft.Life{Timeout: time.Hour, Expires: time.Minute}}}
	}
	gone := pod(9)
	first, second, third := entry(1, gone), entry(2, gone), entry(3, pod(1))
	batch := change.Diff(nil, r.Want())
	batch.Ops = append(batch.Ops, nft.Op{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{first, entry(2, pod(2)), third}})
	if err := k.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	a := newAffinityEntries(&Options{Log: zap.NewNop()})
	a.reader = slowReader{k, map[string]nft.Element{first.Key: first.Element, second.Key: second.Element, third.Key: third.Element}}
	a.committed(r.EntriesChanged(), 1)
	go func() { // in place of the loop
		for request := range a.changes {
			request.change(r)
			request.answer <- k.Commit(context.Background(), r.Changes())
		}
	}()
	err := a.cleanMap(t.Context(), nft.IP, set, nil, func(ops []nft.Op) error { return k.Commit(t.Context(), nft.Batch{Ops: ops}) }, 1)
	if err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the entry of the endpoint that has left is gone", func() bool {
		entries, err := k.Elements(t.Context(), nft.IP, set)
		if err != nil {
			t.Fatal(err)
		}
		if entries[second.Key].Data != nft.AddrKey(pod(2)) || entries[third.Key].Data != third.Data {
			t.Fatalf("entries %+v: one of them names an endpoint that stays", entries)
		}
		_, there := entries[first.Key]
		return !there
	})
}
