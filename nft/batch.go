package nft

import (
	"fmt"
	"slices"
)

// Verb is what an operation does.
type Verb uint8

// The verbs, as nft spells them.
const (
	Add Verb = iota + 1
	Delete
	Flush
	// Destroy is Delete that passes over a missing element. Its elements are whole: for kernels
	// before 6.3 WithoutDestroy adds them first.
	Destroy
)

// String returns the verb in nft's words.
func (v Verb) String() string {
	switch v {
	case Add:
		return "add"
	case Delete:
		return "delete"
	case Flush:
		return "flush"
	case Destroy:
		return "destroy"
	}
	return fmt.Sprintf("verb-%d", uint8(v))
}

// An Op is one operation of a Batch. Exactly one of these shapes occurs:
//
//	Add, Delete  Table            the table itself, empty
//	Add, Delete  Set              a set definition without elements
//	Add, Delete  Chain            a chain without rules
//	Flush        Chain            all rules of a chain
//	Add          Chain, Rules     rules, appended to a chain in order
//	Add, Delete  Set, Elements    elements of a set, of which Delete uses the keys only
//	Destroy      Set, Elements    elements of a set, present or not
type Op struct {
	Verb     Verb
	Family   Family
	Table    *Table
	Set      *Set
	Chain    *Chain
	Rules    []Rule
	Elements []KeyedElement
}

// A KeyedElement is an element with its key.
type KeyedElement struct {
	Key string
	Element
}

// A Batch is a sequence of operations that the kernel applies as one, or not at all.
type Batch struct {
	Ops []Op
	// Foreign is what happens to tables of others in the same transaction, after Ops.
	Foreign []ForeignMessage
	// Check asks the kernel only whether it would take the batch: nothing changes. The kernel does
	// not check hooks and loops of chains before it really applies a batch.
	Check bool
	// Generation, if not zero, is the generation that the batch is based on. The kernel refuses the
	// batch (ERESTART) if another program has committed to nf_tables since. Source: NFNL_BATCH_GENID.
	Generation uint32
}

// Empty reports whether the batch would change nothing.
func (b *Batch) Empty() bool { return len(b.Ops) == 0 && len(b.Foreign) == 0 }

// Remakes reports whether the batch deletes a table, whether or not it makes it anew. Such a batch
// must be the difference of whole tables.
func (b *Batch) Remakes() bool {
	return slices.ContainsFunc(b.Ops, func(op Op) bool { return op.Verb == Delete && op.Table != nil })
}

// Makes reports whether the batch adds a table.
func (b *Batch) Makes() bool {
	return slices.ContainsFunc(b.Ops, func(op Op) bool { return op.Verb == Add && op.Table != nil })
}

// ElementCount is the number of elements that the batch adds and deletes.
func (b *Batch) ElementCount() (n int) {
	for i := range b.Ops {
		n += len(b.Ops[i].Elements)
	}
	return n
}

// A ForeignMessage is a message of nf_tables about a table that is not ours, to be sent in the same
// transaction as a Batch. It lacks its sequence number only.
type ForeignMessage struct {
	Type, Flags uint16
	Data        []byte // a nfgenmsg and attributes
}
