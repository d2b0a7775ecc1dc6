package nft

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
)

func TestAffinityUsageInKernel(t *testing.T) {
	lab.New(t)
	k := openKernel(t)
	set := &Set{Name: "affinity-x-8080", Key: []Field{FieldAddr}, Data: []Field{FieldAddr}, Dynamic: true, Size: 4}
	empty := &Set{Name: "affinity-y-8080", Key: []Field{FieldAddr}, Data: []Field{FieldAddr}, Dynamic: true, Size: 8}
	fixed := &Set{Name: "fixed", Key: []Field{FieldAddr}}
	life := &Life{Timeout: time.Hour}
	commit(t, k, Batch{Ops: []Op{
		{Verb: Add, Family: IP6, Table: NewTable(IP6)},
		{Verb: Add, Family: IP, Table: NewTable(IP)},
		{Verb: Add, Family: IP, Set: set},
		{Verb: Add, Family: IP, Set: empty},
		{Verb: Add, Family: IP, Set: fixed},
		{Verb: Add, Family: IP, Set: set, Elements: []KeyedElement{
			{"\x0a\x00\x00\x01", Element{Data: "\x0a\x00\x00\x02", Life: life}},
			{"\x0a\x00\x00\x02", Element{Data: "\x0a\x00\x00\x02", Life: life}},
		}},
	}})
	want := map[string]Usage{set.Name: {Count: 2, Size: 4}, empty.Name: {Size: 8}}
	got, err := k.AffinityUsage(t.Context(), IP, 100)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, usage (-want +got):\n%s", err, diff)
	}
	if sent := k.Sent(); sent.Batches != 1 || sent.Messages != 8 || sent.Bytes < 100 {
		t.Errorf("sent %+v, want 1 batch of 6 messages between begin and end", sent)
	}
}

func TestLengths(t *testing.T) {
	w := newWorld(1)
	r := NewRuleset(testConfig())
	for range 50 {
		r.Apply(w.change())
	}
	lengths := r.Lengths()
	for f, table := range r.Want() {
		for name, n := range lengths[f] {
			if want := len(table.Sets[name].Map); n != want {
				t.Errorf("%s %s: %d, want %d", f, name, n, want)
			}
		}
		if lengths[f][servicesMap] == 0 {
			t.Errorf("%s: nothing in %s", f, servicesMap)
		}
	}
}

func TestAffinityUsageOfKernelsThatDoNotCount(t *testing.T) {
	sets := make(map[string]*Elements)
	for _, name := range []string{"a", "b", "c", "d"} {
		sets[name] = &Elements{Set: &Set{Name: name, Dynamic: true, Size: 8}}
	}
	sets["fixed"] = &Elements{Set: &Set{Name: "fixed"}}
	var read []string
	three := map[string]Element{"1": {}, "2": {}, "3": {}}
	got, err := affinityUsage(sets, map[string]uint32{"d": 7}, 4, func(s *Set) (map[string]Element, error) {
		read = append(read, s.Name)
		return three, nil
	})
	want := map[string]Usage{"a": {3, 8}, "b": {3, 8}, "d": {7, 8}} // after b, the limit is reached
	if diff := cmp.Diff(want, got); diff != "" || err != nil || !slices.Equal(read, []string{"a", "b"}) {
		t.Errorf("error %v, read %q, usage (-want +got):\n%s", err, read, diff)
	}
	if _, err := affinityUsage(sets, nil, 1, func(*Set) (map[string]Element, error) { return nil, unix.EPERM }); err != unix.EPERM {
		t.Errorf("got %v, want the error of reading", err)
	}
}
