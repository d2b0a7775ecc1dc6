package nft

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables/expr"
)

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

// A Table is the content of our table in one family: wanted, read from the kernel, or the part of
// either that a change touches.
type Table struct {
	Family  Family
	Comment string // the marker of the schema: a table without one is replaced
	// Owned says that only the socket that owns the table can change it while that socket is open,
	// and that the table outlives it (flags owner and persist). Orphaned says of a table that was read that the
	// socket is closed.
	Owned, Orphaned bool

	Sets   map[string]*Elements
	Chains map[string]*Chain
}

// NewTable returns an empty table of family f with our marker.
func NewTable(f Family) *Table {
	return &Table{Family: f, Comment: tableComment, Sets: make(map[string]*Elements), Chains: make(map[string]*Chain)}
}

// Elements returns what a set holds, by key; nothing if there is no such set.
func (t *Table) Elements(set string) map[string]Element {
	if held := t.Sets[set]; held != nil {
		return held.Map
	}
	return nil
}

// Rules returns the rules of a chain; none if there is no such chain.
func (t *Table) Rules(chain string) []Rule {
	if c := t.Chains[chain]; c != nil {
		return c.Rules
	}
	return nil
}

// tableComment marks a table of ours. Its number grows with every change of the fixed sets and base
// chains that requires a new table; the definitions show such a change too.
const (
	markerHead   = "Kubernetes Services, written by kube-nft (schema "
	tableComment = markerHead + "1)"
)

// Marked reports whether t has the same marker as another table, whatever the schema number.
func (t *Table) Marked(as *Table) bool {
	return t.Comment == as.Comment || isMarker(t.Comment) && isMarker(as.Comment)
}

// isMarker reports whether some version of kube-nft writes this comment to its tables.
func isMarker(comment string) bool {
	rest, ours := strings.CutPrefix(comment, markerHead)
	number, closed := strings.CutSuffix(rest, ")")
	_, err := strconv.ParseUint(number, 10, 32)
	return ours && closed && err == nil
}

// Equal reports whether two hooks are the same; nil is no hook.
func (h *Hook) Equal(other *Hook) bool {
	if h == nil || other == nil {
		return h == other
	}
	return *h == *other
}

// Tables holds our tables by family. A family without a table is missing.
type Tables map[Family]*Table

// A Stmt is one statement of a rule. Its four faces stand in one file: nft text, kernel
// expressions, how it is read back from those, and what it does to a packet.
type Stmt interface {
	// text returns the statement as nft list prints it.
	text(f Family) string
	// expressions are what the kernel evaluates for the statement.
	expressions(f Family) []expr.Any
	// parse reads a statement of the same type from the beginning of a list of expressions. It
	// returns how many it has read; 0 if they are not such a statement. It may skip details: the
	// comparison of whole rules finds them.
	parse(f Family, x []expr.Any) (Stmt, int)
	// trace evaluates the statement for the tracer's packet. step is the index of the rule's step in
	// the trace.
	trace(t *tracer, step int) flow
}

// A Rule is a sequence of statements, evaluated in order until one does not match.
type Rule []Stmt

// Text returns the rule as nft list prints it in a table of family f. nft joins a test for one
// protocol with a port test that follows it ("tcp dport 53"). No rule of ours holds both, so each
// statement is rendered alone.
func (r Rule) Text(f Family) string {
	parts := make([]string, len(r))
	for i, stmt := range r {
		parts[i] = stmt.text(f)
	}
	return strings.Join(parts, " ")
}

// An Element is what a set holds under a key. The key is not part of it. A plain set holds zero
// Elements.
type Element struct {
	// Data is the raw data of a map.
	Data string
	// Verdict belongs to a verdict map; nil in other sets. It is shared and must not be changed.
	Verdict *Verdict
	// Comment is shown by nft list; at most 127 bytes, printable, without double quotes.
	Comment string
	// Life belongs to elements that expire; nil for all others.
	Life *Life
}

// Equal reports whether e and f are the same, ages aside.
func (e Element) Equal(f Element) bool {
	return e.Data == f.Data && e.Comment == f.Comment &&
		(e.Verdict == f.Verdict || e.Verdict != nil && f.Verdict != nil && *e.Verdict == *f.Verdict)
}

// Life is the age of an element that expires. The kernel counts milliseconds
// (NFTA_SET_ELEM_TIMEOUT, NFTA_SET_ELEM_EXPIRATION).
type Life struct {
	Timeout time.Duration // lifetime after a refresh
	Expires time.Duration // remaining lifetime; zero means all of Timeout
}

// Elements is a set together with what it holds. A Dynamic set holds what the packet path put
// there; Diff never compares that.
type Elements struct {
	Set *Set
	Map map[string]Element
}

// covering returns the interval that contains key, field by field; empty if none does.
func (e *Elements) covering(f Family, key string) string {
	n := e.Set.KeyLen(f)
	if len(key) != n {
		return ""
	}
	for interval := range e.Map {
		if len(interval) == 2*n && inside(f, e.Set.Key, interval, key) {
			return interval
		}
	}
	return ""
}

func inside(f Family, fields []Field, interval, key string) bool {
	low, high := interval[:len(key)], interval[len(key):]
	for _, field := range fields {
		n := field.padded(f, len(fields) > 1)
		if key[:n] < low[:n] || key[:n] > high[:n] {
			return false
		}
		key, low, high = key[n:], low[n:], high[n:]
	}
	return true
}

// Counted is what a set holds, with the packets that each element's counter has seen.
type Counted struct {
	Elements map[string]Element
	Packets  map[string]uint64 // by key; nil if the set does not count
}

// List reads the endpoints back that stand under the indexes of a key, up to the first that is missing.
func (e *Elements) List(key string) (endpoints []netip.AddrPort) {
	if e == nil {
		return nil
	}
	for {
		ep, ok := AddrPortOf(e.Map[IndexedKey(key, len(endpoints))].Data)
		if !ok {
			return endpoints
		}
		endpoints = append(endpoints, ep)
	}
}

// Port reads the port back that stands under a key of a map of ports; 0 if there is none.
func (e *Elements) Port(key string) uint16 {
	if e == nil {
		return 0
	}
	return PortIn(e.Map[key].Data)
}
