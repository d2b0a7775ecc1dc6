package kernel

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
	"github.com/kube-nft/kube-nft/nft/attr"
)

func TestDecodePacketEvent(t *testing.T) {
	ipv4 := []byte{0x45, 0, 0, 60, 0, 0, 0, 0, 64, 6, 0, 0, 203, 0, 113, 7, 10, 96, 0, 80}
	ipv6 := append([]byte{0x60, 0, 0, 0, 0, 20, 17, 64}, append(netip.MustParseAddr("fd00::7").AsSlice(),
		netip.MustParseAddr("fd00:10:96::80").AsSlice()...)...)
	ports := []byte{0x9c, 0x40, 0, 80, 0, 0, 0, 0}
	for _, c := range []struct {
		name               string
		network, transport []byte
		source             string
		destination        string
		protocol           uint8
	}{
		{"IPv4", ipv4, ports, "203.0.113.7:40000", "10.96.0.80:80", unix.IPPROTO_TCP},
		{"IPv6", ipv6, ports, "[fd00::7]:40000", "[fd00:10:96::80]:80", unix.IPPROTO_UDP},
		{"a fragment without ports", ipv4, nil, "203.0.113.7:0", "10.96.0.80:0", unix.IPPROTO_TCP},
		{"cut short", ipv4[:19], ports, "invalid AddrPort", "invalid AddrPort", 0},
		{"another version", append([]byte{0x75}, ipv4[1:]...), ports, "invalid AddrPort", "invalid AddrPort", 0},
		{"nothing", nil, nil, "invalid AddrPort", "invalid AddrPort", 0},
	} {
		var w attr.Writer
		w.Uint32(unix.NFTA_TRACE_ID, 7)
		w.Name(unix.NFTA_TRACE_TABLE, "kube-nft")
		w.Name(unix.NFTA_TRACE_CHAIN, "services")
		at := w.Open(unix.NFTA_TRACE_VERDICT)
		w.Uint32(unix.NFTA_VERDICT_CODE, 0xfffffffc)
		w.Name(unix.NFTA_VERDICT_CHAIN, "pick-4")
		w.Close(at)
		w.Bytes(unix.NFTA_TRACE_NETWORK_HEADER, string(c.network))
		w.Bytes(unix.NFTA_TRACE_TRANSPORT_HEADER, string(c.transport))
		e := decodePacketEvent(nft.IP, w.Buf)
		if e.ID != 7 || e.Table != "kube-nft" || e.Chain != "services" || e.Verdict != nft.Goto("pick-4") {
			t.Errorf("%s: %+v", c.name, e)
		}
		if e.Source.String() != c.source || e.Destination.String() != c.destination || e.Protocol != c.protocol {
			t.Errorf("%s: from %s to %s, protocol %d", c.name, e.Source, e.Destination, e.Protocol)
		}
	}
}
