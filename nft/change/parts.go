package change

import "github.com/kube-nft/kube-nft/nft"

// Parts takes apart a large batch that fills tables which no packet reaches yet: their base
// chains are among what it adds. Each part is a batch of its own. Those before the last have at
// most so many elements, or a few more: a list of endpoints stays together. Sets and chains of these
// tables come first, then the elements of verdict maps, then all others.
// The last part has the base chains, and everything else that the batch does. So packets see the
// same as when all is one batch: nothing, then everything.
//
// The kernel lets no other process commit during a batch, and lets no process end that waits for one;
// it works on 100,000 elements for 0.3 s (measured). Both find their turn between two parts. What
// stands after some of the parts does no harm, and a batch that is based on a reading goes on
// from there. A reading finds lists by the frontends that have them, and their elements by their indexes: so
// frontends come before their lists, and no list stands half.
//
// The first part is bound to the batch's Generation. The last part is bound to the generation
// that results if no other program commits: what it lets packets see is what was wanted. Parts in
// between are not bound, so that others who commit hold none of them up.
//
// Otherwise all of the batch is last if it is not large, if it only asks (Check), and if it deletes
// something of the tables that it adds base chains to: packets may see that.
func Parts(b *nft.Batch, most int) (before []nft.Batch, last nft.Batch) {
	if b.Check || b.ElementCount() <= most {
		return nil, *b
	}
	unseen := unseenBy(b)
	last = *b
	last.Ops = nil
	var structure, verdicts, others []nft.Op
	for _, op := range b.Ops {
		switch {
		case !unseen[op.Family] || op.Chain != nil && op.Chain.Hook != nil:
			last.Ops = append(last.Ops, op)
		case op.Elements == nil:
			structure = append(structure, op)
		case op.Set.Verdicts:
			verdicts = append(verdicts, op)
		default:
			others = append(others, op)
		}
	}
	if len(structure)+len(verdicts)+len(others) == 0 {
		return nil, *b
	}
	before = []nft.Batch{{Ops: structure, Generation: b.Generation}}
	room := most
	for _, op := range append(verdicts, others...) {
		for left := op.Elements; len(left) > 0; {
			if room <= 0 {
				before, room = append(before, nft.Batch{}), most
			}
			n := min(len(left), room)
			for n < len(left) && sameList(op.Set, left[n-1].Key, left[n].Key) {
				n++
			}
			op.Elements, left = left[:n], left[n:]
			part := &before[len(before)-1]
			part.Ops, room = append(part.Ops, op), room-n
		}
	}
	if b.Generation != 0 {
		last.Generation += uint32(len(before))
	}
	return before, last
}

// unseenBy returns the families in whose tables the batch changes nothing that a packet can see
// before its last part: it adds base chains there and deletes nothing.
func unseenBy(b *nft.Batch) map[nft.Family]bool {
	unseen := make(map[nft.Family]bool)
	for i := range b.Ops {
		if op := &b.Ops[i]; op.Chain != nil && op.Chain.Hook != nil && op.Rules == nil {
			unseen[op.Family] = true
		}
	}
	for i := range b.Ops {
		if b.Ops[i].Verb != nft.Add {
			delete(unseen, b.Ops[i].Family)
		}
	}
	return unseen
}

// sameList reports whether two keys of a set differ in an index alone.
func sameList(s *nft.Set, a, b string) bool {
	const indexLen = 4
	return s.Key[len(s.Key)-1] == nft.FieldIndex && a[:len(a)-indexLen] == b[:len(b)-indexLen]
}
