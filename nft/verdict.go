package nft

import (
	"strconv"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// A Verdict ends a rule, or is what a verdict map holds for a key. It is a statement.
type Verdict struct {
	Kind  VerdictKind
	Chain string // of VerdictGoto and VerdictJump
}

// VerdictKind is the kernel's code of a verdict. A foreign rule or element may hold other codes
// than those named here. Source: enum nft_verdicts in linux/netfilter/nf_tables.h, NF_DROP and
// NF_ACCEPT in linux/netfilter.h.
type VerdictKind int32

// The kinds that we write or meet.
const (
	VerdictDrop   VerdictKind = 0  // discards the packet without an answer
	VerdictAccept VerdictKind = 1  // ends the walk through this hook's chain
	VerdictJump   VerdictKind = -3 // goes on in Chain and comes back after its last rule
	VerdictGoto   VerdictKind = -4 // goes on in Chain and does not come back
	VerdictReturn VerdictKind = -5 // goes back to the chain that jumped here; in a base chain, to the policy
)

func (k VerdictKind) known() bool {
	return k == VerdictDrop || k == VerdictAccept || VerdictReturn <= k && k <= VerdictJump
}

// Drop, Accept and Return are verdicts without a chain.
var (
	Drop   = Verdict{Kind: VerdictDrop}
	Accept = Verdict{Kind: VerdictAccept}
	Return = Verdict{Kind: VerdictReturn}
)

// Goto is the verdict that goes on in a chain and does not come back to this one.
func Goto(chain string) Verdict { return Verdict{VerdictGoto, chain} }

// Jump is the verdict that goes on in a chain and comes back to this one after its last rule.
func Jump(chain string) Verdict { return Verdict{VerdictJump, chain} }

// String returns the verdict as nft prints it.
func (v Verdict) String() string {
	switch v.Kind {
	case VerdictDrop:
		return "drop"
	case VerdictAccept:
		return "accept"
	case VerdictReturn:
		return "return"
	case VerdictJump:
		return "jump " + v.Chain
	case VerdictGoto:
		return "goto " + v.Chain
	}
	return "verdict " + strconv.Itoa(int(v.Kind))
}

func (v Verdict) text(Family) string { return v.String() }

func (v Verdict) expressions(Family) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictKind(v.Kind), Chain: v.Chain}}
}

func (Verdict) parse(_ Family, x []expr.Any) (Stmt, int) {
	if v := at[*expr.Verdict](x, 0); v != nil && VerdictKind(v.Kind).known() {
		return Verdict{VerdictKind(v.Kind), v.Chain}, 1
	}
	return nil, 0
}

func (v Verdict) trace(t *tracer, step int) flow {
	switch v.Kind {
	case VerdictDrop:
		return t.seal("drop")
	case VerdictAccept: // no rule or element of ours says so
		t.foreign(step)
		return t.seal("accept")
	case VerdictReturn:
		return leave
	case VerdictJump, VerdictGoto:
		if t.chain(v.Chain) == done {
			return done
		}
		if v.Kind == VerdictGoto {
			return leave
		}
		return next
	}
	return t.foreign(step)
}

// VerdictFrom takes the map's verdict for Key. If the map has none, the rule does not apply. A Key
// with OriginalPort must follow a ProtocolIs: nft requires a known protocol.
type VerdictFrom struct {
	Key []Part
	Map string
}

func (s VerdictFrom) text(f Family) string { return keyText(f, s.Key) + " vmap @" + s.Map }

func (s VerdictFrom) expressions(f Family) []expr.Any {
	return append(load(f, s.Key...), &expr.Lookup{
		SourceRegister: register(0), SetName: s.Map,
		IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT,
	})
}

func (VerdictFrom) parse(f Family, x []expr.Any) (Stmt, int) {
	key, n := parseKey(f, x)
	if l := at[*expr.Lookup](x, n); l != nil && l.IsDestRegSet && l.DestRegister == unix.NFT_REG_VERDICT {
		return VerdictFrom{Key: key, Map: l.SetName}, n + 1
	}
	return nil, 0
}

func (s VerdictFrom) trace(t *tracer, step int) flow {
	held := t.table.Sets[s.Map]
	if held == nil {
		return skip
	}
	key, _ := t.key(s.Key)
	element, ok := held.Map[key]
	if !ok || element.Verdict == nil {
		return skip
	}
	t.decided(step, held, key)
	return element.Verdict.trace(t, step)
}
