package change

import (
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// TwoPhases splits a batch that makes new chains in an existing table. first makes these chains and
// the sets that their rules may name; rest is everything else. first is empty if the batch makes no
// such chains.
//
// The kernel keeps the rules of a chain as they are in the old and in the new generation. A packet
// keeps the generation of rules with which it entered the base chain, but looks maps up in the
// current generation. So during a commit a new element may send a packet to a new chain that is
// still empty in the packet's generation. The packet falls through, untranslated. Measured with a
// list that alternates between two lengths whose chains come and go, at 5,000 commits a second: 210
// of 642,411 connections escaped, and 9 of 2,915,577 in two phases. After the first phase the
// chains have their rules in both generations before anything leads there.
func TwoPhases(b *nft.Batch) (first, rest nft.Batch) {
	var whole []nft.Family // whose tables the batch makes, or deletes
	for i := range b.Ops {
		if b.Ops[i].Table != nil {
			whole = append(whole, b.Ops[i].Family)
		}
	}
	fresh := make(map[nft.Family]map[string]bool) // the chains that the batch adds to tables that exist already
	for i := range b.Ops {
		if op := &b.Ops[i]; op.Verb == nft.Add && op.Chain != nil && op.Rules == nil && op.Chain.Hook == nil &&
			!slices.Contains(whole, op.Family) {
			if fresh[op.Family] == nil {
				fresh[op.Family] = make(map[string]bool)
			}
			fresh[op.Family][op.Chain.Name] = true
		}
	}
	if len(fresh) == 0 {
		return nft.Batch{}, *b
	}
	rest = *b
	rest.Ops = nil
	for _, op := range b.Ops {
		chains, prepares := fresh[op.Family], op.Verb == nft.Add && op.Elements == nil && op.Table == nil
		if prepares && len(chains) > 0 && (op.Chain == nil || chains[op.Chain.Name]) {
			first.Ops = append(first.Ops, op)
		} else {
			rest.Ops = append(rest.Ops, op)
		}
	}
	return first, rest
}

// Reverse takes back what a first phase has made. Nothing refers to that yet.
func Reverse(b *nft.Batch) nft.Batch {
	var back nft.Batch
	for _, op := range slices.Backward(b.Ops) {
		switch {
		case op.Rules != nil:
			back.Ops = append(back.Ops, nft.Op{Verb: nft.Flush, Family: op.Family, Chain: op.Chain})
		case op.Chain != nil:
			back.Ops = append(back.Ops, nft.Op{Verb: nft.Delete, Family: op.Family, Chain: op.Chain})
		default:
			back.Ops = append(back.Ops, nft.Op{Verb: nft.Delete, Family: op.Family, Set: op.Set})
		}
	}
	return back
}

// WithoutDestroy rewrites Destroy as add and delete, for kernels before 6.3. Adding an element that
// exists changes nothing; afterwards the element exists in any case and can be deleted.
func WithoutDestroy(b *nft.Batch) *nft.Batch {
	if !slices.ContainsFunc(b.Ops, func(op nft.Op) bool { return op.Verb == nft.Destroy }) {
		return b
	}
	same := *b
	same.Ops = nil
	for _, op := range b.Ops {
		if op.Verb == nft.Destroy {
			op.Verb = nft.Add
			same.Ops = append(same.Ops, op)
			op.Verb = nft.Delete
		}
		same.Ops = append(same.Ops, op)
	}
	return &same
}
