package nft

import (
	"github.com/kube-nft/kube-nft/nft/attr"

	"fmt"
	"slices"
	"time"
)

// Family is the family of a table. Rules are declared once and rendered for either.
type Family = attr.Family

// The families of our tables.
const (
	IP  = attr.IPv4
	IP6 = attr.IPv6
)

// Families lists both families in the order in which the kernel lists their tables.
var Families = attr.Families

// addrLen is the length of an address of the family in bytes.
func addrLen(f Family) int {
	if f == IP6 {
		return 16
	}
	return 4
}

// TableName is the name of our table in each family.
const TableName = "kube-nft"

// A Field is one part of the key of a set or of the data of a map.
type Field uint8

// The fields that our sets are made of.
const (
	FieldAddr     Field = iota + 1 // ipv4_addr or ipv6_addr, network order
	FieldProtocol                  // inet_proto, one byte
	FieldPort                      // inet_service, two bytes, network order
	FieldIndex                     // a 32-bit index in host order: typeof numgen random mod 65536
)

// A Set is the definition of a set or, with Data or Verdicts, of a map. Key and data are
// raw bytes as the kernel holds them: a concatenation pads each field to four bytes.
type Set struct {
	Name     string
	Key      []Field
	Data     []Field // of a map; nil for a set and for a verdict map
	Verdicts bool    // a verdict map
	Interval bool    // elements are ranges: their Key is the first key followed by the last
	Dynamic  bool    // the packet path adds elements, with a timeout (flags dynamic,timeout)
	Size     uint32  // a hard limit on the number of elements; 0: none
	Counters bool    // each element counts the packets that matched it
}

// Equal reports whether s and t define the same set.
func (s *Set) Equal(t *Set) bool {
	return s.Name == t.Name && slices.Equal(s.Key, t.Key) && slices.Equal(s.Data, t.Data) &&
		s.Verdicts == t.Verdicts && s.Interval == t.Interval && s.Dynamic == t.Dynamic &&
		s.Size == t.Size && s.Counters == t.Counters
}

// keyLen is the length in bytes of one key of the set in a table of family f: the sum of
// its fields, each padded to a register of four bytes if there is more than one.
func (s *Set) keyLen(f Family) int { return fieldsLen(f, s.Key) }

// dataLen is the length in bytes of the data of the map in a table of family f.
func (s *Set) dataLen(f Family) int { return fieldsLen(f, s.Data) }

func fieldsLen(f Family, fields []Field) (n int) {
	for _, field := range fields {
		n += field.padded(f, len(fields) > 1)
	}
	return n
}

// len is the length of the field in bytes in a table of family f.
func (d Field) len(f Family) int {
	switch d {
	case FieldAddr:
		return addrLen(f)
	case FieldProtocol:
		return 1
	case FieldPort:
		return 2
	default:
		return 4
	}
}

func (d Field) padded(f Family, concatenated bool) int {
	n := d.len(f)
	if concatenated {
		n = (n + 3) &^ 3
	}
	return n
}

// An Element is what a set holds under a key; the key itself is the map key that leads to
// it. The zero Element is that of a plain set.
type Element struct {
	// Data is the raw data of a map.
	Data string
	// Verdict is that of a verdict map; nil in other sets. It is shared and must not be changed.
	Verdict *Verdict
	// Comment is shown by nft list; at most 127 bytes, printable, without double quotes.
	Comment string
	// Life is set for elements that expire; nil for the lasting ones.
	Life *Life
}

// Equal reports whether e and f are the same, ages aside.
func (e Element) Equal(f Element) bool {
	return e.Data == f.Data && e.Comment == f.Comment &&
		(e.Verdict == f.Verdict || e.Verdict != nil && f.Verdict != nil && *e.Verdict == *f.Verdict)
}

// Life is the age of an element that expires. Units are those of the kernel, which counts
// milliseconds (NFTA_SET_ELEM_TIMEOUT, NFTA_SET_ELEM_EXPIRATION).
type Life struct {
	Timeout time.Duration // how long it lives when it is refreshed
	Expires time.Duration // how long it has still to live; zero means all of Timeout
}

// A Hook makes a chain a base chain.
type Hook struct {
	Type     string // "nat"
	Point    string // "prerouting", "input", "output" or "postrouting"
	Priority int32
}

// A Chain is a named list of rules; with a Hook a base chain of policy accept.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
}

// Elements is a set together with what it holds. For a Dynamic set that is what the
// packet path put there; Diff never compares it.
type Elements struct {
	Set *Set
	Map map[string]Element
}

// A Table is the content of our table in one family: what should be there, what is there,
// or the part of either that a change touches.
type Table struct {
	Family  Family
	Comment string // the marker of the schema: a table without one is replaced
	// Owned says that nobody but one socket can change the table as long as that is open, and
	// that the table outlives it (flags owner and persist). Owner is the port of that socket,
	// as it was read; 0 if it is closed.
	Owned  bool
	Owner  uint32
	Sets   map[string]*Elements
	Chains map[string]*Chain
}

// NewTable returns an empty table of family f with our marker.
func NewTable(f Family) *Table {
	return &Table{Family: f, Comment: tableComment, Sets: make(map[string]*Elements), Chains: make(map[string]*Chain)}
}

// tableComment marks a table of ours. The number grows with every change of the fixed sets
// and base chains for which a table has to be made anew; that, the definitions show too.
const (
	markerHead   = "Kubernetes Services, written by kube-nft (schema "
	tableComment = markerHead + "1)"
)

// Tables are our tables by family. A missing family is one without a table.
type Tables map[Family]*Table

// Verb is what an operation does.
type Verb uint8

// The verbs, as nft spells them.
const (
	Add Verb = iota + 1
	Delete
	Flush
	// Destroy is Delete that does not mind a missing element. Kernels before 6.3 need the
	// element whole for it.
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
//	Destroy      Set, Elements    elements of a set that may have gone already
type Op struct {
	Verb     Verb
	Family   Family
	Table    *Table
	Set      *Set
	Chain    *Chain
	Rules    []Rule
	Elements []KeyedElement
	// Packets is what the counters of elements that are added start from, by key, where that
	// is not zero. Commit sets it.
	Packets map[string]uint64
}

// A KeyedElement is an element with its key.
type KeyedElement struct {
	Key string
	Element
}

// A Batch is a sequence of operations that the kernel applies as one, or not at all.
type Batch struct {
	Ops []Op
	// Beside is what happens to tables of others in the same transaction, after Ops.
	Beside []Message
	// Check asks the kernel only whether it would take the batch: nothing changes. Hooks and
	// loops of chains are not looked into before a batch is really done.
	Check bool
	// Generation, if not zero, makes the kernel refuse the batch (ERESTART) when anybody
	// has committed to nf_tables since that generation. Source: NFNL_BATCH_GENID.
	Generation uint32
}

// Empty reports whether the batch would change nothing.
func (b *Batch) Empty() bool { return len(b.Ops) == 0 && len(b.Beside) == 0 }

// Remakes reports whether the batch deletes a table, to make it anew or not. Such a batch has
// to be the difference of whole tables.
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
