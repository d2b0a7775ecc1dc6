package nft

import (
	"github.com/kube-nft/kube-nft/nft/attr"
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
func AddrLen(f Family) int {
	if f == IP6 {
		return 16
	}
	return 4
}

// TableName is the name of our table in each family.
const TableName = "kube-nft"

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
