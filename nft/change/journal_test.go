package change_test

import (
	"fmt"
	"testing"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/change"
)

// TestSetThatComesBack: a set that goes with all that it holds, and comes back before the commit, has the elements that
// it has then.
func TestSetThatComesBack(t *testing.T) {
	set := &nft.Set{Name: "lists", Key: []nft.Field{nft.FieldIndex}, Data: []nft.Field{nft.FieldAddr}}
	key := func(i int) string { return nft.IndexedKey("", i) }
	put := func(j *change.Journal, from, to int, data string) {
		for i := from; i < to; i++ {
			j.Put(set.Name, key(i), nft.Element{Data: data})
		}
	}
	j := change.NewJournal(nft.NewTable(nft.IP))
	j.PutSet(set)
	put(j, 0, 100, "aaaa")
	j.PutChain(&nft.Chain{Name: "first"})
	if work := j.Work(); work != (change.Work{}) {
		t.Errorf("before the first commit: %+v", work)
	}
	j.Committed()
	put(j, 0, 2, "bbbb") // not committed
	work := j.Work().Elements
	j.RemoveSet(set.Name)
	if got := j.Work().Elements - work; got < 1 || got > 100/2 {
		t.Errorf("a set of 100 elements is %d elements' work", got)
	}
	if ops := j.Changes(nil); len(ops) != 1 || ops[0].Verb != nft.Delete || ops[0].Set != set || ops[0].Elements != nil {
		t.Fatalf("a set that goes: %d operations, first: %s", len(ops), ops[0].Text())
	}
	j.PutSet(set)
	put(j, 1, 3, "bbbb")
	put(j, 3, 98, "aaaa")
	put(j, 200, 201, "cccc")
	did := make(map[string]int)
	for _, op := range j.Changes(nil) {
		did[fmt.Sprint(op.Verb)] += len(op.Elements)
		if op.Elements == nil {
			t.Errorf("want elements alone: %s", op.Text())
		}
	}
	if del, add := did[fmt.Sprint(nft.Delete)], did[fmt.Sprint(nft.Add)]; del != 5 || add != 3 { // 0 to 2, 98, 99
		t.Errorf("%d elements are deleted and %d added, want 5 and 3", del, add)
	}
	j.Committed()
	if ops := j.Changes(nil); len(ops) != 0 {
		t.Errorf("after the commit: %d operations", len(ops))
	}
}
