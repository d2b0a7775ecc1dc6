package nft

import (
	"context"
	"slices"
)

// withoutDestroy says with other verbs what Destroy says, for kernels that do not know it
// (before 6.3): to add an element that is there already changes nothing, and after that it
// can be deleted whether it was there or not.
func (b *Batch) withoutDestroy() *Batch {
	if !slices.ContainsFunc(b.Ops, func(op Op) bool { return op.Verb == Destroy }) {
		return b
	}
	same := *b
	same.Ops = nil
	for _, op := range b.Ops {
		if op.Verb != Destroy {
			same.Ops = append(same.Ops, op)
			continue
		}
		op.Verb = Add
		same.Ops = append(same.Ops, op)
		op.Verb = Delete
		same.Ops = append(same.Ops, op)
	}
	return &same
}

// probeDestroy finds out whether the kernel knows Destroy.
func (k *Kernel) probeDestroy(ctx context.Context) (ok bool, err error) {
	set := &Set{Name: "addresses", Key: []Field{FieldAddr}}
	p := probe{sets: []*Set{set}}
	b := Batch{Ops: append(p.ops(IP),
		Op{Verb: Destroy, Family: IP, Set: set, Elements: []KeyedElement{{Key: "\x7f\x00\x00\x01"}}},
		Op{Verb: Delete, Family: IP, Table: &Table{}})}
	return succeeded(k.commitProbe(ctx, &b, 0))
}
