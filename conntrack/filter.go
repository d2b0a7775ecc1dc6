package conntrack

import (
	"net/netip"

	"github.com/mdlayher/netlink"

	"github.com/kube-nft/kube-nft/tracker"
)

// A Filter selects flows; every set field must hold. It can be compared and be a map key.
type Filter struct {
	Family      tracker.Family   // 0: both, and nothing else is filtered in the kernel
	Protocol    tracker.Protocol // 0: any
	Destination netip.Addr       // of the original direction; invalid: any
	Port        uint16           // of Destination; 0: any; needs Protocol
	Endpoint    netip.AddrPort   // the reply's source; invalid address: any, port 0: any; the port needs Protocol

	// Unanswered selects flows that were not translated and have seen no reply.
	Unanswered bool
}

// Matches reports whether f selects flow.
func (f *Filter) Matches(flow *Flow) bool {
	return (f.Family == 0 || flow.Family == f.Family) &&
		(f.Protocol == 0 || flow.Original.Protocol == f.Protocol) &&
		(!f.Destination.IsValid() || flow.Original.Destination.Addr() == f.Destination) &&
		(f.Port == 0 || flow.Original.Destination.Port() == f.Port) &&
		(!f.Endpoint.Addr().IsValid() || flow.Endpoint().Addr() == f.Endpoint.Addr()) &&
		(f.Endpoint.Port() == 0 || flow.Endpoint().Port() == f.Endpoint.Port()) &&
		(!f.Unanswered || flow.Status&(SeenReply|DestinationNAT) == 0)
}

// Bits of CTA_FILTER_ORIG_FLAGS and CTA_FILTER_REPLY_FLAGS: which parts of the tuple count.
// They are the kernel's own (net/netfilter/nf_internals.h) and in no public header.
const (
	filterSource          = 1 << 0
	filterDestination     = 1 << 1
	filterProtocol        = 1 << 3
	filterSourcePort      = 1 << 4
	filterDestinationPort = 1 << 5
)

// widened returns the part of f that the kernel is asked for. IPv6 addresses are left out:
// up to and including 6.18 the kernel inverts their comparison and would return every
// flow but those asked for.
func (f Filter) widened() Filter {
	if f.Family != tracker.IPv4 {
		f.Destination = netip.Addr{}
		f.Endpoint = netip.AddrPortFrom(netip.Addr{}, f.Endpoint.Port())
	}
	if f.Family == 0 {
		f.Protocol = 0
	}
	if f.Protocol == 0 { // the kernel refuses ports without a protocol
		f.Port = 0
		f.Endpoint = netip.AddrPortFrom(f.Endpoint.Addr(), 0)
	}
	return f
}

// encode returns the body of a dump request for a widened filter.
func (f *Filter) encode() ([]byte, error) {
	e := newEncoder()
	orig, reply := f.original(), f.reply()
	if orig.flags|reply.flags != 0 {
		e.Nested(ctaFilter, func(e *netlink.AttributeEncoder) error {
			encodeFlags(e, ctaFilterOrigFlags, orig.flags)
			encodeFlags(e, ctaFilterReplyFlags, reply.flags)
			return nil
		})
	}
	orig.encode(e, ctaTupleOrig)
	reply.encode(e, ctaTupleReply)
	if f.Unanswered {
		e.Uint32(ctaStatus, 0)
		e.Uint32(ctaStatusMask, uint32(SeenReply|DestinationNAT))
	}
	return body(f.Family, e)
}

// A tupleFilter is one direction's part of a filter: values, and which of them count.
type tupleFilter struct {
	tuple Tuple
	flags uint32
}

func (f *Filter) original() tupleFilter {
	t := tupleFilter{tuple: Tuple{
		Destination: netip.AddrPortFrom(f.Destination, f.Port),
		Protocol:    f.Protocol,
	}}
	t.countIf(f.Protocol != 0, filterProtocol)
	t.countIf(f.Destination.IsValid(), filterDestination)
	t.countIf(f.Port != 0, filterDestinationPort)
	return t
}

func (f *Filter) reply() tupleFilter {
	t := tupleFilter{tuple: Tuple{Source: f.Endpoint, Protocol: f.Protocol}}
	t.countIf(f.Endpoint.Addr().IsValid(), filterSource)
	t.countIf(f.Endpoint.Port() != 0, filterProtocol|filterSourcePort)
	return t
}

func (t *tupleFilter) countIf(set bool, flag uint32) {
	if set {
		t.flags |= flag
	}
}

// encode writes the tuple under typ, with only the parts that count.
func (t *tupleFilter) encode(e *netlink.AttributeEncoder, typ uint16) {
	if t.flags == 0 {
		return
	}
	e.Nested(typ, func(e *netlink.AttributeEncoder) error {
		e.Nested(ctaTupleIP, func(e *netlink.AttributeEncoder) error {
			t.address(e, filterSource, ctaIPv4Source, t.tuple.Source.Addr())
			t.address(e, filterDestination, ctaIPv4Destination, t.tuple.Destination.Addr())
			return nil
		})
		e.Nested(ctaTupleProto, func(e *netlink.AttributeEncoder) error {
			e.Uint8(ctaProtoNumber, uint8(t.tuple.Protocol))
			t.port(e, filterSourcePort, ctaProtoSourcePort, t.tuple.Source.Port())
			t.port(e, filterDestinationPort, ctaProtoDestinationPort, t.tuple.Destination.Port())
			return nil
		})
		return nil
	})
}

func (t *tupleFilter) address(e *netlink.AttributeEncoder, flag uint32, typ uint16, addr netip.Addr) {
	if t.flags&flag != 0 {
		encodeAddress(e, typ, addr)
	}
}

func (t *tupleFilter) port(e *netlink.AttributeEncoder, flag uint32, typ, port uint16) {
	if t.flags&flag != 0 {
		e.Uint16(typ, port)
	}
}

// encodeFlags writes which parts count, in host byte order: CTA_FILTER alone is so.
func encodeFlags(e *netlink.AttributeEncoder, typ uint16, flags uint32) {
	if flags != 0 {
		e.Bytes(typ, nativeEndian(flags))
	}
}
