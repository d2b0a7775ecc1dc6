package conntrack

import (
	"encoding/binary"
	"errors"
)

// Types of the netlink attributes that this package reads and writes, by the names of
// linux/netfilter/nfnetlink_conntrack.h. CTA_FILTER came with kernel 5.8, CTA_STATUS_MASK later.
const (
	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaStatus     = 3
	ctaProtoInfo  = 4
	ctaTimeout    = 7
	ctaMark       = 8
	ctaID         = 12
	ctaZone       = 18
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

	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
)

// attributeTypeMask removes the flags NLA_F_NESTED and NLA_F_NET_BYTEORDER from a type.
const attributeTypeMask = 0x3fff

// errMalformed says that bytes claiming to be a connection tracking entry are not one.
var errMalformed = errors.New("malformed connection tracking message")

// attributes walks over netlink attributes in place. A dump has ten nested attributes for
// each of perhaps a million flows: nothing is copied and nothing allocated.
type attributes struct {
	rest  []byte
	typ   uint16
	value []byte
	err   error
}

// next moves to the next attribute; false means the end or, with err set, bad framing.
func (a *attributes) next() bool {
	if len(a.rest) == 0 || a.err != nil {
		return false
	}
	if len(a.rest) < 4 {
		a.err = errMalformed
		return false
	}
	length := int(binary.NativeEndian.Uint16(a.rest))
	if length < 4 || length > len(a.rest) {
		a.err = errMalformed
		return false
	}
	a.typ = binary.NativeEndian.Uint16(a.rest[2:]) & attributeTypeMask
	a.value = a.rest[4:length]
	a.rest = a.rest[min((length+3)&^3, len(a.rest)):]
	return true
}

// nested returns the attributes within the current one.
func (a *attributes) nested() attributes { return attributes{rest: a.value} }

func (a *attributes) uint8() uint8 {
	if len(a.value) != 1 {
		a.err = errMalformed
		return 0
	}
	return a.value[0]
}

// uint16 and uint32 read network byte order: ctnetlink uses no other.
func (a *attributes) uint16() uint16 {
	if len(a.value) != 2 {
		a.err = errMalformed
		return 0
	}
	return binary.BigEndian.Uint16(a.value)
}

func (a *attributes) uint32() uint32 {
	if len(a.value) != 4 {
		a.err = errMalformed
		return 0
	}
	return binary.BigEndian.Uint32(a.value)
}
