package conntrack

import (
	"net/netip"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// A Filter selects flows; every set field must hold. It can be compared and be a map key.
type Filter struct {
	Family      tracker.Family   // 0: both, and nothing else is filtered in the kernel
	Protocol    tracker.Protocol // 0: any
	Destination netip.Addr       // of the original direction; invalid: any
	Port        uint16           // of Destination; 0: any; needs Protocol
	Endpoint    netip.AddrPort   // the reply's source; invalid address: any, port 0: any; the port needs Protocol

	// Unanswered selects flows that were not translated and have seen no reply, Translated those
	// whose destination was translated.
	Unanswered, Translated bool
}

// Matches reports whether f selects flow.
func (f *Filter) Matches(flow *Flow) bool {
	return (f.Family == 0 || flow.Family == f.Family) &&
		(f.Protocol == 0 || flow.Original.Protocol == f.Protocol) &&
		(!f.Destination.IsValid() || flow.Original.Destination.Addr() == f.Destination) &&
		(f.Port == 0 || flow.Original.Destination.Port() == f.Port) &&
		(!f.Endpoint.Addr().IsValid() || flow.Endpoint().Addr() == f.Endpoint.Addr()) &&
		(f.Endpoint.Port() == 0 || flow.Endpoint().Port() == f.Endpoint.Port()) &&
		(!f.Unanswered || flow.Status&(SeenReply|DestinationNAT) == 0) &&
		(!f.Translated || flow.Translated())
}

// widened returns the part of f that the kernel can filter. It drops IPv6 addresses: up to and
// including 6.18 the kernel inverts their comparison and would return all other flows.
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
func (f *Filter) encode() []byte {
	original := Tuple{Destination: netip.AddrPortFrom(f.Destination, f.Port), Protocol: f.Protocol}
	reply := Tuple{Source: f.Endpoint, Protocol: f.Protocol}
	var inOriginal, inReply parts
	if f.Protocol != 0 {
		inOriginal |= partProtocol
	}
	if f.Destination.IsValid() {
		inOriginal |= partDestination
	}
	if f.Port != 0 {
		inOriginal |= partDestinationPort
	}
	if f.Endpoint.Addr().IsValid() {
		inReply |= partSource
	}
	if f.Endpoint.Port() != 0 {
		inReply |= partProtocol | partSourcePort
	}
	var w attr.Writer
	w.Netfilter(f.Family, 0)
	if inOriginal|inReply != 0 {
		filter := w.Open(ctaFilter)
		inOriginal.encode(&w, ctaFilterOrigFlags)
		inReply.encode(&w, ctaFilterReplyFlags)
		w.Close(filter)
	}
	if inOriginal != 0 {
		original.encode(&w, ctaTupleOrig, inOriginal)
	}
	if inReply != 0 {
		reply.encode(&w, ctaTupleReply, inReply)
	}
	if f.Unanswered {
		w.Uint32(ctaStatus, 0)
		w.Uint32(ctaStatusMask, uint32(SeenReply|DestinationNAT))
	}
	if f.Translated {
		w.Uint32(ctaStatus, uint32(DestinationNAT))
		w.Uint32(ctaStatusMask, uint32(DestinationNAT))
	}
	return w.Buf
}
