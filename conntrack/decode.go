package conntrack

import (
	"net/netip"
	"time"

	"github.com/kube-nft/kube-nft/tracker"
)

// decode reads the body of an IPCTNL_MSG_CT_NEW message: nfgenmsg and attributes. It
// returns an error, never panics, whatever the bytes.
func decode(data []byte) (Flow, error) {
	var flow Flow
	if len(data) < nfgenmsgLen {
		return flow, errMalformed
	}
	flow.Family = tracker.Family(data[0])
	list := attributes{rest: data[nfgenmsgLen:]}
	for list.next() {
		flow.attribute(&list)
	}
	return flow, list.err
}

// attribute takes over one top-level attribute; unknown ones are passed over.
func (f *Flow) attribute(a *attributes) {
	switch a.typ {
	case ctaTupleOrig:
		f.Original, a.err = decodeTuple(a.nested(), &f.Zone)
	case ctaTupleReply:
		var zone uint16 // of the reply direction: not what identifies the entry
		f.Reply, a.err = decodeTuple(a.nested(), &zone)
	case ctaStatus:
		f.Status = Status(a.uint32())
	case ctaProtoInfo:
		f.TCPState, a.err = decodeTCPState(a.nested())
	case ctaTimeout:
		f.Timeout = time.Duration(a.uint32()) * time.Second
	case ctaMark:
		f.Mark = a.uint32()
	case ctaID:
		f.ID = a.uint32()
	case ctaZone:
		f.Zone = a.uint16()
	}
}

func decodeTuple(list attributes, zone *uint16) (Tuple, error) {
	var source, destination netip.Addr
	var ports [2]uint16
	var tuple Tuple
	for list.next() {
		switch list.typ {
		case ctaTupleIP:
			source, destination, list.err = decodeAddresses(list.nested())
		case ctaTupleProto:
			tuple.Protocol, ports, list.err = decodeProtocol(list.nested())
		case ctaTupleZone:
			*zone = list.uint16()
		}
	}
	tuple.Source = netip.AddrPortFrom(source, ports[0])
	tuple.Destination = netip.AddrPortFrom(destination, ports[1])
	return tuple, list.err
}

func decodeAddresses(list attributes) (source, destination netip.Addr, err error) {
	for list.next() {
		addr, ok := netip.AddrFromSlice(list.value)
		switch list.typ {
		case ctaIPv4Source, ctaIPv6Source:
			source = addr
		case ctaIPv4Destination, ctaIPv6Destination:
			destination = addr
		default:
			continue
		}
		if !ok || addr.Is4() != (list.typ <= ctaIPv4Destination) {
			list.err = errMalformed
		}
	}
	return source, destination, list.err
}

func decodeProtocol(list attributes) (protocol tracker.Protocol, ports [2]uint16, err error) {
	for list.next() {
		switch list.typ {
		case ctaProtoNumber:
			protocol = tracker.Protocol(list.uint8())
		case ctaProtoSourcePort:
			ports[0] = list.uint16()
		case ctaProtoDestinationPort:
			ports[1] = list.uint16()
		}
	}
	return protocol, ports, list.err
}

// decodeTCPState returns 0 when the protocol information is not TCP's.
func decodeTCPState(list attributes) (state TCPState, err error) {
	for list.next() {
		if list.typ != ctaProtoInfoTCP {
			continue
		}
		tcp := list.nested()
		for tcp.next() {
			if tcp.typ == ctaProtoInfoTCPState {
				state = TCPState(tcp.uint8())
			}
		}
		list.err = tcp.err
	}
	return state, list.err
}
