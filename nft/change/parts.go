package change

import (
	"slices"

	"github.com/kube-nft/kube-nft/nft"
)

// Parts takes apart a large batch that fills tables which no packet reaches yet: their base
// chains are among what it adds. Each part is a batch of its own. Those before the last have at
// most so many elements, or a few more: a frontend stays together with its lists. Sets and chains
// of these tables come first, then elements, a verdict never before the list that it leads to.
// The last part has the base chains, and everything else that the batch does. So packets see the
// same as when all is one batch: nothing, then everything.
//
// The kernel lets no other process commit during a batch, and lets no process end that waits for one;
// it works on 100,000 elements for 0.3 s (measured). Both find their turn between two parts. What
// stands after some of the parts does no harm, and a batch that is based on a reading goes on
// from there.
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
	p := partition{most: most, parts: make([]nft.Batch, 1)}
	var elements, verdicts []nft.Op
	for _, op := range b.Ops {
		switch {
		case !unseen[op.Family] || op.Chain != nil && op.Chain.Hook != nil:
			last.Ops = append(last.Ops, op)
		case op.Elements == nil:
			p.parts[0].Ops = append(p.parts[0].Ops, op)
		case op.Set.Verdicts:
			verdicts = append(verdicts, op)
		default:
			elements = append(elements, op)
		}
	}
	lists := make([][]nft.Op, len(verdicts))
	for _, op := range elements {
		at := slices.IndexFunc(verdicts, func(v nft.Op) bool { return v.Family == op.Family && listsOf(op.Set, v.Set) })
		if at < 0 {
			p.add(op)
		} else {
			lists[at] = append(lists[at], op)
		}
	}
	for i, op := range verdicts {
		p.addTogether(lists[i], op)
	}
	if len(p.parts[0].Ops) == 0 {
		return nil, *b
	}
	if b.Generation != 0 {
		p.parts[0].Generation = b.Generation
		last.Generation += uint32(len(p.parts))
	}
	return p.parts, last
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

// listsOf reports whether the set holds, under an index behind each key of a verdict map, what
// the verdict leads to.
func listsOf(s, verdicts *nft.Set) bool {
	n := len(verdicts.Key)
	return len(s.Key) == n+1 && s.Key[n] == nft.FieldIndex && slices.Equal(s.Key[:n], verdicts.Key)
}

// A partition is a list of batches that grows by elements.
type partition struct {
	most     int
	parts    []nft.Batch
	elements int // in the last part
}

// room returns how many elements the last part has room for, after it has begun a new one if
// that is none.
func (p *partition) room() int {
	if p.elements >= p.most {
		p.parts, p.elements = append(p.parts, nft.Batch{}), 0
	}
	return p.most - p.elements
}

// put adds some of the elements of an operation to the last part.
func (p *partition) put(op nft.Op, elements []nft.KeyedElement) {
	if len(elements) == 0 {
		return
	}
	op.Elements = elements
	last := &p.parts[len(p.parts)-1]
	last.Ops = append(last.Ops, op)
	p.elements += len(elements)
}

// add appends the elements of an operation.
func (p *partition) add(op nft.Op) {
	for list := op.Elements; len(list) > 0; {
		n := min(len(list), p.room())
		p.put(op, list[:n])
		list = list[n:]
	}
}

// addTogether appends the elements of a verdict map and of the lists that its verdicts lead to.
// An element and its lists stay in one part: a start that ends in between leaves whole frontends.
func (p *partition) addTogether(lists []nft.Op, verdicts nft.Op) {
	put, seen := make([]int, len(lists)), make([]int, len(lists)) // of each list
	from := 0
	flush := func(to int) {
		for i, list := range lists {
			p.put(list, list.Elements[put[i]:seen[i]])
			put[i] = seen[i]
		}
		p.put(verdicts, verdicts.Elements[from:to])
		from = to
	}
	room, waiting := p.room(), 0
	for n, element := range verdicts.Elements {
		if waiting >= room {
			flush(n)
			room, waiting = p.room(), 0
		}
		waiting++
		for i, list := range lists {
			before := seen[i]
			for seen[i] < len(list.Elements) && list.Elements[seen[i]].Key[:len(element.Key)] <= element.Key {
				seen[i]++
			}
			waiting += seen[i] - before
		}
	}
	flush(len(verdicts.Elements))
	for i, list := range lists {
		list.Elements = list.Elements[seen[i]:]
		p.add(list)
	}
}
