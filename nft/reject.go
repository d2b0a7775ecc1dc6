package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// RejectTCP answers TCP with a reset and does not apply to other protocols. The kernel requires a
// test of the protocol; nft lists the test as part of the statement.
type RejectTCP struct {
	MidFlow bool // only segments that open no connection
}

const tcpFlags, tcpSYN = 13, 0x02 // the byte of the header, and a bit of it: RFC 9293, section 3.1

func (s RejectTCP) text(Family) string {
	return map[bool]string{true: "tcp flags ! syn "}[s.MidFlow] + "reject with tcp reset"
}

func (s RejectTCP) expressions(f Family) []expr.Any {
	x := ProtocolIs{unix.IPPROTO_TCP}.expressions(f)
	if s.MidFlow {
		x = append(x, &expr.Payload{DestRegister: register(0), Base: expr.PayloadBaseTransportHeader, Offset: tcpFlags,
			Len: 1},
			maskWith([]byte{tcpSYN}), compare(false, []byte{0}))
	}
	return append(x, &expr.Reject{Type: unix.NFT_REJECT_TCP_RST})
}

func (RejectTCP) parse(f Family, x []expr.Any) (Stmt, int) {
	_, n := ProtocolIs{}.parse(f, x)
	flags := at[*expr.Payload](x, n)
	midFlow := n > 0 && flags != nil && flags.Offset == tcpFlags
	if midFlow {
		n += 3
	}
	if r := at[*expr.Reject](x, n); n > 0 && r != nil && r.Type == unix.NFT_REJECT_TCP_RST {
		return RejectTCP{MidFlow: midFlow}, n + 1
	}
	return nil, 0
}

func (s RejectTCP) trace(t *tracer, _ int) flow {
	if s.MidFlow || t.packet.Protocol != unix.IPPROTO_TCP { // a packet that is traced opens a connection
		return skip
	}
	return t.seal("reject")
}

// Reject answers with an ICMP or ICMPv6 port unreachable.
type Reject struct{}

func (Reject) text(Family) string { return "reject" }

func (Reject) expressions(f Family) []expr.Any {
	const (
		portUnreachable4 = 3 // ICMP_PORT_UNREACH in linux/icmp.h
		portUnreachable6 = 4 // ICMPV6_PORT_UNREACH in linux/icmpv6.h
	)
	code := uint8(portUnreachable4)
	if f == IP6 {
		code = portUnreachable6
	}
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}

func (Reject) parse(_ Family, x []expr.Any) (Stmt, int) {
	if at[*expr.Reject](x, 0) != nil {
		return Reject{}, 1
	}
	return nil, 0
}

func (Reject) trace(t *tracer, _ int) flow { return t.seal("reject") }
