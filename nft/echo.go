package nft

import (
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// EchoRequest matches echo requests of ICMP, or of ICMPv6 in a table of IPv6.
type EchoRequest struct{}

func (EchoRequest) text(f Family) string {
	return "icmp" + map[Family]string{IP6: "v6"}[f] + " type echo-request"
}

// echoRequest returns the protocol and the type of an echo request: RFC 792 and RFC 4443, section 4.1.
func echoRequest(f Family) (protocol, kind uint8) {
	if f == IP6 {
		return unix.IPPROTO_ICMPV6, 128
	}
	return unix.IPPROTO_ICMP, 8
}

func (EchoRequest) expressions(f Family) []expr.Any {
	protocol, kind := echoRequest(f)
	return append(ProtocolIs{protocol}.expressions(f),
		&expr.Payload{DestRegister: register(0), Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1},
		compare(false, []byte{kind}))
}

func (EchoRequest) parse(f Family, x []expr.Any) (Stmt, int) {
	protocol, kind := echoRequest(f)
	test, n := ProtocolIs{}.parse(f, x)
	loaded, compared := at[*expr.Payload](x, n), at[*expr.Cmp](x, n+1)
	if n == 0 || test != (ProtocolIs{protocol}) || loaded == nil || compared == nil || compared.Op != expr.CmpOpEq ||
		loaded.Base != expr.PayloadBaseTransportHeader || loaded.Offset != 0 || loaded.Len != 1 ||
		string(compared.Data) != string([]byte{kind}) {
		return nil, 0
	}
	return EchoRequest{}, n + 2
}

// trace takes every packet of the protocol for an echo request: a Packet has no type.
func (EchoRequest) trace(t *tracer, _ int) flow {
	protocol, _ := echoRequest(t.table.Family)
	return matched(t.packet.Protocol == protocol, false)
}

// Redirect sends the packet to this node itself: to an address of the interface that it arrived on, or
// to the loopback address if this node sends it. Replies come from the original destination.
type Redirect struct{}

func (Redirect) text(Family) string { return "redirect" }

func (Redirect) expressions(Family) []expr.Any { return []expr.Any{&expr.Redir{}} }

func (Redirect) parse(_ Family, x []expr.Any) (Stmt, int) {
	if r := at[*expr.Redir](x, 0); r != nil && *r == (expr.Redir{}) {
		return Redirect{}, 1
	}
	return nil, 0
}

func (Redirect) trace(t *tracer, _ int) flow { return t.seal("redirect") }
