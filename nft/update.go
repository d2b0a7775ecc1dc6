package nft

import (
	"fmt"
	"time"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Update adds or refreshes the entry Key -> destination in a dynamic map. The destination is that
// of the packet, where it has been rewritten; Key names the client by OriginalSource, which
// connection tracking keeps of the first packet. If the map is full, the rule ends there.
type Update struct {
	Key     []Part
	Map     string
	Timeout uint64 // seconds
}

func (s Update) text(f Family) string {
	return fmt.Sprintf("update @%s { %s timeout %s : %s }",
		s.Map, keyText(f, s.Key), DurationText(s.Duration()), Destination.text(f))
}

func (s Update) expressions(f Family) []expr.Any {
	return dynset(f, s.Key, expr.Dynset{SetName: s.Map, Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: s.Duration()})
}

func (Update) parse(f Family, x []expr.Any) (Stmt, int) {
	d, key, n := parseDynset(f, x, unix.NFT_DYNSET_OP_UPDATE)
	if n == 0 {
		return nil, 0
	}
	return Update{Key: key, Map: d.SetName, Timeout: uint64(d.Timeout.Seconds())}, n
}

// trace passes the statement over, as if the map had room: a trace changes nothing.
func (Update) trace(*tracer, int) flow { return next }

// Forget removes the entry of Key from a dynamic map, whatever it holds; none is as good.
type Forget struct {
	Key []Part
	Map string
}

func (s Forget) text(f Family) string {
	return fmt.Sprintf("delete @%s { %s : %s }", s.Map, keyText(f, s.Key), Destination.text(f))
}

func (s Forget) expressions(f Family) []expr.Any {
	return dynset(f, s.Key, expr.Dynset{SetName: s.Map, Operation: opDelete})
}

func (Forget) parse(f Family, x []expr.Any) (Stmt, int) {
	d, key, n := parseDynset(f, x, opDelete)
	if n == 0 {
		return nil, 0
	}
	return Forget{Key: key, Map: d.SetName}, n
}

// trace passes the statement over: a trace changes nothing.
func (Forget) trace(*tracer, int) flow { return next }

// opDelete is NFT_DYNSET_OP_DELETE of linux/netfilter/nf_tables.h.
const opDelete = 2

// dynset loads a key and the destination, and does an operation with them.
func dynset(f Family, key []Part, d expr.Dynset) []expr.Any {
	words := 0
	for _, p := range key {
		words += p.words(f)
	}
	// The data begins in a register of four words, as with nft.
	d.SrcRegKey, d.SrcRegData = register(0), register((words+3)&^3)
	return append(load(f, key...), Destination.load(f, d.SrcRegData), &d)
}

// parseDynset reads what dynset wrote; n is 0 for anything else.
func parseDynset(f Family, x []expr.Any, operation uint32) (d *expr.Dynset, key []Part, n int) {
	key, n = parseKey(f, x)
	d = at[*expr.Dynset](x, n)
	if d == nil || d.Operation != operation || len(key) < 2 {
		return nil, nil, 0
	}
	return d, key[:len(key)-1], n + 1
}

// Duration is the timeout.
func (s Update) Duration() time.Duration { return time.Duration(s.Timeout) * time.Second }
