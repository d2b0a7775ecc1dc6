package conntrack

import (
	"errors"
	"net/netip"

	"github.com/mdlayher/netlink"

	"github.com/kube-nft/kube-nft/nft/attr"
	"github.com/kube-nft/kube-nft/tracker"
)

// Message types of ctnetlink: the subsystem in the upper byte, the operation below.
const (
	typeGet    netlink.HeaderType = 1<<8 | 1 // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_GET
	typeDelete netlink.HeaderType = 1<<8 | 2 // IPCTNL_MSG_CT_DELETE
)

// Types of the netlink attributes that this package reads and writes, by the names of
// linux/netfilter/nfnetlink_conntrack.h. CTA_FILTER came with kernel 5.8, CTA_STATUS_MASK with 5.15.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaSent       = 9  // CTA_COUNTERS_ORIG
	ctaReturned   = 10 // CTA_COUNTERS_REPLY
	ctaID         = 12
	ctaZone       = 18
	ctaTimestamp  = 20
	ctaFilter     = 25
	ctaStatusMask = 26

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Source      = 1
	ctaIPv4Destination = 2
	ctaIPv6Source      = 3
	ctaIPv6Destination = 4

	ctaProtoNumber          = 1
	ctaProtoSourcePort      = 2
	ctaProtoDestinationPort = 3

	ctaProtoInfoTCP      = 1
	ctaProtoInfoTCPState = 1

	ctaFilterOrigFlags = 1
)

// errMalformed says that bytes are no proper connection tracking entry.
var errMalformed = errors.New("malformed conntrack message")

// decode reads the body of an IPCTNL_MSG_CT_NEW or IPCTNL_MSG_CT_DELETE message: nfgenmsg and attributes. It
// returns an error, never panics, whatever the bytes. A dump has ten nested attributes for
// each of perhaps a million flows: nothing is copied and nothing allocated.
func decode(data []byte) (flow Flow, err error) {
	if len(data) < attr.NetfilterHeader {
		return flow, errMalformed
	}
	flow.Family = tracker.Family(data[0])
	list := attr.NewReader(data[attr.NetfilterHeader:])
	for list.Next() {
		switch list.Type {
		case ctaTupleOrig:
			flow.Original, flow.Zone = decodeTuple(list.Nested(), flow.Zone)
		case ctaTupleReply: // its zone does not identify the entry
			flow.Reply, _ = decodeTuple(list.Nested(), 0)
		case ctaStatus:
			flow.Status = Status(list.Uint32())
		case ctaProtoInfo:
			flow.TCPState = decodeTCPState(list.Nested())
		case ctaSent:
			flow.Sent.Packets, flow.Sent.Bytes = decodePair(list.Nested())
		case ctaReturned:
			flow.Returned.Packets, flow.Returned.Bytes = decodePair(list.Nested())
		case ctaTimestamp:
			flow.Started, flow.Stopped = decodePair(list.Nested())
		case ctaID:
			flow.ID = list.Uint32()
		case ctaZone:
			flow.Zone = list.Uint16()
		}
	}
	if list.Err() != nil {
		return flow, errMalformed
	}
	return flow, nil
}

// decodeTuple returns the tuple and its zone; the given zone if the tuple names none.
func decodeTuple(list attr.Reader, zone uint16) (Tuple, uint16) {
	var source, destination netip.Addr
	var sourcePort, destinationPort uint16
	var protocol tracker.Protocol
	for list.Next() {
		part := list.Nested()
		switch list.Type {
		case ctaTupleIP:
			for part.Next() {
				switch part.Type {
				case ctaIPv4Source:
					source = part.Addr(attr.IPv4)
				case ctaIPv4Destination:
					destination = part.Addr(attr.IPv4)
				case ctaIPv6Source:
					source = part.Addr(attr.IPv6)
				case ctaIPv6Destination:
					destination = part.Addr(attr.IPv6)
				}
			}
		case ctaTupleProto:
			for part.Next() {
				switch part.Type {
				case ctaProtoNumber:
					protocol = tracker.Protocol(part.Uint8())
				case ctaProtoSourcePort:
					sourcePort = part.Uint16()
				case ctaProtoDestinationPort:
					destinationPort = part.Uint16()
				}
			}
		case ctaTupleZone:
			zone = list.Uint16()
		}
	}
	return Tuple{
		Source:      netip.AddrPortFrom(source, sourcePort),
		Destination: netip.AddrPortFrom(destination, destinationPort),
		Protocol:    protocol,
	}, zone
}

// decodePair returns two numbers: CTA_COUNTERS_PACKETS and CTA_COUNTERS_BYTES, or CTA_TIMESTAMP_START and
// CTA_TIMESTAMP_STOP.
func decodePair(list attr.Reader) (first, second uint64) {
	for list.Next() {
		switch list.Type {
		case 1:
			first = list.Uint64()
		case 2:
			second = list.Uint64()
		}
	}
	return first, second
}

// decodeTCPState returns 0 when the protocol information is not TCP's.
func decodeTCPState(list attr.Reader) (state TCPState) {
	for list.Next() {
		if list.Type != ctaProtoInfoTCP {
			continue
		}
		for tcp := list.Nested(); tcp.Next(); {
			if tcp.Type == ctaProtoInfoTCPState {
				state = TCPState(tcp.Uint8())
			}
		}
	}
	return state
}

// encodeDelete returns the body that deletes flow, but no newer flow with its tuple: the kernel
// compares CTA_ID with the entry that it finds.
func encodeDelete(flow *Flow) []byte {
	var w attr.Writer
	w.Netfilter(flow.Family, 0)
	flow.Original.encode(&w, ctaTupleOrig)
	w.Uint16(ctaZone, flow.Zone)
	w.Uint32(ctaID, flow.ID)
	return w.Buf
}

// encode writes a tuple.
func (t *Tuple) encode(w *attr.Writer, typ uint16) {
	tuple := w.Open(typ)
	ip := w.Open(ctaTupleIP)
	w.Addr(variant(ctaIPv4Source, t.Source.Addr()), t.Source.Addr())
	w.Addr(variant(ctaIPv4Destination, t.Destination.Addr()), t.Destination.Addr())
	w.Close(ip)
	proto := w.Open(ctaTupleProto)
	w.Uint8(ctaProtoNumber, uint8(t.Protocol))
	w.Uint16(ctaProtoSourcePort, t.Source.Port())
	w.Uint16(ctaProtoDestinationPort, t.Destination.Port())
	w.Close(proto)
	w.Close(tuple)
}

// variant returns the attribute for the family of addr; typ is the attribute for IPv4.
func variant(typ uint16, addr netip.Addr) uint16 {
	if addr.Is6() {
		return typ + ctaIPv6Source - ctaIPv4Source
	}
	return typ
}
