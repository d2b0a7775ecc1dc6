package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// VerdictFrom takes the verdict that the map has for Key; without one, the rule does not
// apply. A Key with OriginalPort must follow a ProtocolIs: nft wants to know the protocol.
type VerdictFrom struct {
	Key []Part
	Map string
}

func (s VerdictFrom) text(f Family) string { return keyText(f, s.Key) + " vmap @" + s.Map }

func (s VerdictFrom) encode(e *encoder) {
	e.load(s.Key...)
	e.add(&expr.Lookup{
		SourceRegister: register(0), SetName: s.Map,
		IsDestRegSet: true, DestRegister: unix.NFT_REG_VERDICT,
	})
}

// Jump goes on in Chain and comes back after its last rule.
type Jump struct{ Chain string }

func (s Jump) text(Family) string { return "jump " + s.Chain }

func (s Jump) encode(e *encoder) { e.add(&expr.Verdict{Kind: expr.VerdictJump, Chain: s.Chain}) }

// Goto goes on in Chain and does not come back.
type Goto struct{ Chain string }

func (s Goto) text(Family) string { return "goto " + s.Chain }

func (s Goto) encode(e *encoder) { e.add(&expr.Verdict{Kind: expr.VerdictGoto, Chain: s.Chain}) }

// Drop discards the packet without an answer.
type Drop struct{}

func (Drop) text(Family) string { return "drop" }

func (Drop) encode(e *encoder) { e.add(&expr.Verdict{Kind: expr.VerdictDrop}) }

// Return goes back to the chain that jumped here; in a base chain, to the policy.
type Return struct{}

func (Return) text(Family) string { return "return" }

func (Return) encode(e *encoder) { e.add(&expr.Verdict{Kind: expr.VerdictReturn}) }

// RejectTCP answers TCP with a reset and does not apply to anything else. The kernel wants
// the protocol tested, nft lists the test as part of the statement.
type RejectTCP struct{}

func (RejectTCP) text(Family) string { return "reject with tcp reset" }

func (RejectTCP) encode(e *encoder) {
	ProtocolIs{unix.IPPROTO_TCP}.encode(e)
	e.add(&expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

// Reject answers with an ICMP or ICMPv6 port unreachable.
type Reject struct{}

func (Reject) text(Family) string { return "reject" }

func (Reject) encode(e *encoder) {
	const (
		portUnreachable4 = 3 // ICMP_PORT_UNREACH in linux/icmp.h
		portUnreachable6 = 4 // ICMPV6_PORT_UNREACH in linux/icmpv6.h
	)
	code := uint8(portUnreachable4)
	if e.family == IP6 {
		code = portUnreachable6
	}
	e.add(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
}
