package conntrack

import (
	"encoding/binary"
	"net/netip"

	"github.com/mdlayher/netlink"

	"github.com/kube-nft/kube-nft/tracker"
)

// Message types of ctnetlink: the subsystem in the upper byte, the operation below.
const (
	typeNew    netlink.HeaderType = 1 << 8   // NFNL_SUBSYS_CTNETLINK, IPCTNL_MSG_CT_NEW
	typeGet    netlink.HeaderType = 1<<8 | 1 // IPCTNL_MSG_CT_GET
	typeDelete netlink.HeaderType = 1<<8 | 2 // IPCTNL_MSG_CT_DELETE
)

// nfgenmsgLen is the size of struct nfgenmsg: family, version and resource id.
const nfgenmsgLen = 4

// newEncoder returns an encoder that collects attributes in network byte order.
func newEncoder() *netlink.AttributeEncoder {
	e := netlink.NewAttributeEncoder()
	e.ByteOrder = binary.BigEndian
	return e
}

// body puts the nfgenmsg of family before the attributes.
func body(family tracker.Family, e *netlink.AttributeEncoder) ([]byte, error) {
	attrs, err := e.Encode()
	if err != nil {
		return nil, err
	}
	return append([]byte{byte(family), 0, 0, 0}, attrs...), nil
}

// encodeDelete returns the body that deletes flow and nothing that took its tuple since:
// the kernel compares CTA_ID with the entry it finds.
func encodeDelete(flow *Flow) ([]byte, error) {
	e := newEncoder()
	e.Nested(ctaTupleOrig, flow.Original.encode)
	e.Uint16(ctaZone, flow.Zone)
	e.Uint32(ctaID, flow.ID)
	return body(flow.Family, e)
}

// encode writes all of t.
func (t *Tuple) encode(e *netlink.AttributeEncoder) error {
	e.Nested(ctaTupleIP, func(e *netlink.AttributeEncoder) error {
		encodeAddress(e, ctaIPv4Source, t.Source.Addr())
		encodeAddress(e, ctaIPv4Destination, t.Destination.Addr())
		return nil
	})
	e.Nested(ctaTupleProto, func(e *netlink.AttributeEncoder) error {
		e.Uint8(ctaProtoNumber, uint8(t.Protocol))
		e.Uint16(ctaProtoSourcePort, t.Source.Port())
		e.Uint16(ctaProtoDestinationPort, t.Destination.Port())
		return nil
	})
	return nil
}

// encodeAddress writes addr under its family's variant of the attribute; typ names IPv4's.
func encodeAddress(e *netlink.AttributeEncoder, typ uint16, addr netip.Addr) {
	if addr.Is6() {
		typ += ctaIPv6Source - ctaIPv4Source
	}
	e.Bytes(typ, addr.AsSlice())
}

// nativeEndian returns v in host byte order.
func nativeEndian(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
