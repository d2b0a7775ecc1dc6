package kernel

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/integration/lab"
	"github.com/kube-nft/kube-nft/nft"
)

func TestDynamicFillInKernel(t *testing.T) {
	lab.New(t)
	k := lab.Open(t, Open)
	set := &nft.Set{Name: "affinity-x-8080", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr},
		Dynamic: true, Size: 4}
	empty := &nft.Set{Name: "affinity-y-8080", Key: []nft.Field{nft.FieldAddr}, Data: []nft.Field{nft.FieldAddr},
		Dynamic: true, Size: 8}
	fixed := &nft.Set{Name: "fixed", Key: []nft.Field{nft.FieldAddr}}
	life := &nft.Life{Timeout: time.Hour}
	commit(t, k, nft.Batch{Ops: []nft.Op{
		{Verb: nft.Add, Family: nft.IP6, Table: nft.NewTable(nft.IP6)},
		{Verb: nft.Add, Family: nft.IP, Table: nft.NewTable(nft.IP)},
		{Verb: nft.Add, Family: nft.IP, Set: set},
		{Verb: nft.Add, Family: nft.IP, Set: empty},
		{Verb: nft.Add, Family: nft.IP, Set: fixed},
		{Verb: nft.Add, Family: nft.IP, Set: set, Elements: []nft.KeyedElement{
			{Key: "\x0a\x00\x00\x01", Element: nft.Element{Data: "\x0a\x00\x00\x02", Life: life}},
			{Key: "\x0a\x00\x00\x02", Element: nft.Element{Data: "\x0a\x00\x00\x02", Life: life}},
		}},
	}})
	want := map[string]Fill{set.Name: {Count: 2, Size: 4}, empty.Name: {Size: 8}}
	got, err := k.DynamicFill(t.Context(), nft.IP, 100)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, fill (-want +got):\n%s", err, diff)
	}
	if n, known, err := k.Count(t.Context(), nft.IP, set); err != nil || known && n != 2 {
		t.Errorf("%d elements, known %v, %v, want 2", n, known, err)
	}
	if n, _, err := k.Count(t.Context(), nft.IP6, set); !errors.Is(err, unix.ENOENT) {
		t.Errorf("%d elements, %v, want ENOENT", n, err)
	}
	if sent := k.Sent(); sent.Batches != 1 || sent.Messages != 8 || sent.Bytes < 100 {
		t.Errorf("sent %+v, want 1 batch of 6 messages between begin and end", sent)
	}
}

func TestDynamicFillOfKernelsThatDoNotCount(t *testing.T) {
	sets := make(map[string]*nft.Elements)
	for _, name := range []string{"a", "b", "c", "d"} {
		sets[name] = &nft.Elements{Set: &nft.Set{Name: name, Dynamic: true, Size: 8}}
	}
	sets["fixed"] = &nft.Elements{Set: &nft.Set{Name: "fixed"}}
	var read []string
	three := map[string]nft.Element{"1": {}, "2": {}, "3": {}}
	got, err := dynamicFill(sets, map[string]uint32{"d": 7}, 4, func(s *nft.Set) (map[string]nft.Element, error) {
		read = append(read, s.Name)
		return three, nil
	})
	// after b, the limit is reached
	want := map[string]Fill{"a": {Count: 3, Size: 8}, "b": {Count: 3, Size: 8}, "d": {Count: 7, Size: 8}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil || !slices.Equal(read, []string{"a", "b"}) {
		t.Errorf("error %v, read %q, fill (-want +got):\n%s", err, read, diff)
	}
	if _, err := dynamicFill(sets, nil, 1, func(*nft.Set) (map[string]nft.Element, error) {
		return nil, unix.EPERM
	}); err != unix.EPERM {
		t.Errorf("got %v, want the error of reading", err)
	}
}
