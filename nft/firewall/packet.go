package firewall

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// A Packet is what is known of a packet at a hook. Zero fields are not known, except State, Status and Mark.
type Packet struct {
	Source, Destination         netip.Addr
	SourcePort, DestinationPort uint16
	Protocol                    uint8  // IANA number
	In, Out                     string // names of interfaces
	Family                      nft.Family

	State  uint32 // one of State…
	Status uint32 // some of Status…
	Mark   uint32
}

// States of connection tracking, as rules test them. Source: NF_CT_STATE_BIT in
// linux/netfilter/nf_conntrack_common.h.
const (
	StateEstablished uint32 = 1 << 1
	StateNew         uint32 = 1 << 3
)

// statusTranslated is what connection tracking notes of a connection whose destination was translated:
// IPS_DST_NAT and IPS_DST_NAT_DONE of linux/netfilter/nf_conntrack_common.h. statusAnswered is what it adds
// when the answer comes: IPS_SEEN_REPLY, IPS_CONFIRMED, IPS_SRC_NAT_DONE.
const (
	statusTranslated = 1<<5 | 1<<8
	statusAnswered   = 1<<1 | 1<<3 | 1<<7
)

// Translated is the packet as it comes to the hook forward when our tables have sent it to an endpoint.
func (p Packet) Translated(to netip.AddrPort) Packet {
	p.Destination, p.DestinationPort, p.Out, p.Status = to.Addr(), to.Port(), DeviceTo(to.Addr()), statusTranslated
	return p
}

// reply is the answer to the first packet of a connection at the same hook.
func (p Packet) reply() Packet {
	p.Source, p.Destination = p.Destination, p.Source
	p.SourcePort, p.DestinationPort = p.DestinationPort, p.SourcePort
	p.In, p.Out = p.Out, p.In
	p.State, p.Status, p.Mark = StateEstablished, p.Status|statusAnswered, 0
	return p
}

// A field is a value of the packet as bytes, and which of their bits are known.
type field struct{ value, known []byte }

// unknownField is n bytes of which nothing is known.
func unknownField(n int) field { return field{make([]byte, n), make([]byte, n)} }

// knownField is a value that is known completely.
func knownField(b []byte) field {
	f := field{b, make([]byte, len(b))}
	for i := range f.known {
		f.known[i] = 0xff
	}
	return f
}

// number is a number in the kernel's order.
func number(n uint32) field {
	return knownField(binary.NativeEndian.AppendUint32(nil, n))
}

// address is an address of a family.
func address(addr netip.Addr, f nft.Family) field {
	a := unknownField(nft.AddrLen(f))
	a.put(0, addr.AsSlice()...)
	return a
}

// interfaceName is a name as the kernel compares it: 16 bytes with zeros at its end.
func interfaceName(name string) field {
	if name == "" {
		return unknownField(unix.IFNAMSIZ)
	}
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return knownField(b)
}

// interfaceIndex is the number of an interface.
func interfaceIndex(name string) field {
	if name != "" {
		if i, err := net.InterfaceByName(name); err == nil {
			return number(uint32(i.Index))
		}
	}
	return unknownField(4)
}

// put writes a value at an offset of a field.
func (f *field) put(at int, value ...byte) {
	copy(f.value[at:], value)
	for i := range value {
		f.known[at+i] = 0xff
	}
}

// cut returns n bytes at an offset; what is beyond is not known.
func (f field) cut(at, n int) field {
	out := unknownField(n)
	if at >= 0 && at < len(f.value) {
		copy(out.value, f.value[at:])
		copy(out.known, f.known[at:])
	}
	return out
}

// networkHeader is the IP header as far as it is known.
func (p *Packet) networkHeader() field {
	if p.Family == nft.IP6 {
		h := unknownField(40)
		h.put(6, p.protocol()...)
		h.put(8, p.Source.AsSlice()...)
		h.put(24, p.Destination.AsSlice()...)
		return h
	}
	h := unknownField(20)
	h.put(6, 0, 0) // no fragment: connection tracking puts packets together
	h.put(9, p.protocol()...)
	h.put(12, p.Source.AsSlice()...)
	h.put(16, p.Destination.AsSlice()...)
	return h
}

// protocol is the protocol as a byte, if it is known.
func (p *Packet) protocol() []byte {
	if p.Protocol == 0 {
		return nil
	}
	return []byte{p.Protocol}
}

// transportHeader has the ports.
func (p *Packet) transportHeader() field {
	h := unknownField(4)
	if p.SourcePort != 0 {
		h.put(0, byte(p.SourcePort>>8), byte(p.SourcePort))
	}
	if p.DestinationPort != 0 {
		h.put(2, byte(p.DestinationPort>>8), byte(p.DestinationPort))
	}
	return h
}
