package wire

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/kube-nft/kube-nft/nft"
)

// set writes a set's definition or its removal.
func (e *encoder) set(i int, op *nft.Op) {
	if op.Verb == nft.Delete {
		e.message(i, 0, unix.NFT_MSG_DELSET, unix.NLM_F_REQUEST, func() { e.Name(unix.NFTA_SET_NAME, op.Set.Name) })
		return
	}
	e.message(i, 0, unix.NFT_MSG_NEWSET, flagsCreate, func() { e.setDefinition(op.Set) })
	if op.Set.Interval && len(op.Set.Key) == 1 {
		e.firstSegment(i, op.Set)
	}
}

func (e *encoder) setDefinition(s *nft.Set) {
	e.setID++
	e.Name(unix.NFTA_SET_NAME, s.Name)
	e.Uint32(unix.NFTA_SET_FLAGS, setFlags(s))
	e.Uint32(unix.NFTA_SET_KEY_TYPE, typeOf(e.family, s.Key))
	e.Uint32(unix.NFTA_SET_KEY_LEN, uint32(s.KeyLen(e.family)))
	if s.IsMap() {
		typ := typeOf(e.family, s.Data)
		if s.Verdicts {
			typ = unix.NFT_DATA_VERDICT
		}
		e.Uint32(unix.NFTA_SET_DATA_TYPE, typ)
		e.Uint32(unix.NFTA_SET_DATA_LEN, dataLenOnWire(s, e.family))
	}
	e.description(s)
	e.Uint32(unix.NFTA_SET_ID, e.setID)
	e.Bytes(unix.NFTA_SET_USERDATA, setUserdata(s, e.family))
	if s.Counters { // the kernel gives each element a counter
		b, err := expr.Marshal(byte(e.family), &expr.Counter{})
		e.fail(err)
		e.Bytes(attrSetExpr|unix.NLA_F_NESTED, string(b))
	}
}

// description writes the size of the set, and for ranges of concatenations the length of each
// field.
func (e *encoder) description(s *nft.Set) {
	at := e.Open(unix.NFTA_SET_DESC)
	if s.Size != 0 {
		e.Uint32(unix.NFTA_SET_DESC_SIZE, s.Size)
	}
	if setFlags(s)&setFlagConcat != 0 {
		concat := e.Open(attrDescConcat)
		for _, field := range s.Key {
			item := e.Open(unix.NFTA_LIST_ELEM)
			e.Uint32(attrFieldLen, uint32(field.Len(e.family)))
			e.Close(item)
		}
		e.Close(concat)
	}
	e.Close(at)
}

func setFlags(s *nft.Set) (flags uint32) {
	if s.IsMap() {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
		if len(s.Key) > 1 {
			flags |= setFlagConcat
		}
	}
	if s.Dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
	}
	return flags
}

// dataLenOnWire is the length of the data as nft states it. For a verdict it is the length of the
// kernel's struct nft_verdict.
func dataLenOnWire(s *nft.Set, f nft.Family) uint32 {
	if s.Verdicts {
		return 16
	}
	return uint32(s.DataLen(f))
}

// The numbers of nft's data types, which the kernel keeps without looking at them. A
// concatenation takes six bits for each. Source: enum datatypes in nftables' datatype.h.
const (
	typeInteger = 4
	typeIPAddr  = 7
	typeIP6Addr = 8
	typeProto   = 12
	typeService = 13
	typeBits    = 6
)

func typeOf(f nft.Family, fields []nft.Field) (typ uint32) {
	for _, field := range fields {
		typ = typ<<typeBits | dataType(field, f)
	}
	return typ
}

func dataType(d nft.Field, f nft.Family) uint32 {
	switch {
	case d == nft.FieldAddr && f == nft.IP6:
		return typeIP6Addr
	case d == nft.FieldAddr:
		return typeIPAddr
	case d == nft.FieldProtocol:
		return typeProto
	case d == nft.FieldPort:
		return typeService
	}
	return typeInteger
}

// setUserdata is what nft also needs to list the set: byte orders, and the expressions that stand
// for the fields. Source: measured with nft 1.0.6 (mnl_nft_set_add), with the numbers of libnftnl's
// udata.h.
func setUserdata(s *nft.Set, f nft.Family) string {
	b := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, byteOrder(s.Key))
	if s.IsMap() {
		b = userdata.AppendUint32(b, userdata.NFTNL_UDATA_SET_DATABYTEORDER, byteOrder(s.Data))
	}
	if len(s.Key) > 1 {
		var key []nft.Field // empty in a set that is declared by types
		if s.DeclaredByExpression() {
			key = s.Key
		}
		b = userdata.Append(b, userdata.NFTNL_UDATA_SET_KEY_TYPEOF, typeofConcat(f, key, s.Protocol))
	}
	switch {
	case len(s.Data) > 1:
		b = userdata.Append(b, userdata.NFTNL_UDATA_SET_DATA_TYPEOF, typeofConcat(f, s.Data, s.Protocol))
	case len(s.Data) == 1 && s.DeclaredByExpression():
		b = userdata.Append(b, userdata.NFTNL_UDATA_SET_DATA_TYPEOF, typeofData(s.Data[0], f, s.Protocol))
	}
	if s.IsMap() {
		b = userdata.AppendUint32(b, userdata.NFTNL_UDATA_SET_DATA_INTERVAL, 0)
	}
	return string(b)
}

// byteOrder is nft's enum byteorder for a value; none for a concatenation.
func byteOrder(fields []nft.Field) uint32 {
	const (
		unknown = iota
		host
		network
	)
	switch {
	case len(fields) != 1 || fields[0] == nft.FieldProtocol:
		return unknown
	case fields[0] == nft.FieldIndex:
		return host
	}
	return network
}

// The numbers of nft's expressions and protocol descriptions in userdata. Source: enum
// expr_types in nftables' expression.h, enum proto_desc_id and the fields in proto.h.
const (
	exprPayload = 7
	exprMeta    = 9
	exprConcat  = 13
	exprNumgen  = 23

	protoUDP  = 6
	protoTCP  = 8
	protoSCTP = 10
	protoTH   = 11
	protoIP   = 12
	protoIP6  = 13

	fieldDport    = 2 // of each transport header
	fieldIPDaddr  = 12
	fieldIP6Daddr = 9
)

// typeofConcat is the userdata of a concatenation: the expression's number, then its parts, each
// under its index.
func typeofConcat(f nft.Family, fields []nft.Field, protocol uint8) []byte {
	var parts []byte
	for i, field := range fields {
		parts = userdata.Append(parts, userdata.Type(i), typeofData(field, f, protocol))
	}
	return typeofExpr(exprConcat, parts)
}

func typeofExpr(number uint32, data []byte) []byte {
	return userdata.Append(userdata.AppendUint32(nil, 0, number), 1, data)
}

func typeofData(d nft.Field, f nft.Family, protocol uint8) []byte {
	switch {
	case d == nft.FieldAddr && f == nft.IP6:
		return typeofExpr(exprPayload, hostUint32s(protoIP6, fieldIP6Daddr))
	case d == nft.FieldAddr:
		return typeofExpr(exprPayload, hostUint32s(protoIP, fieldIPDaddr))
	case d == nft.FieldProtocol:
		return typeofExpr(exprMeta, hostUint32s(unix.NFT_META_L4PROTO))
	case d == nft.FieldPort:
		return typeofExpr(exprPayload, hostUint32s(headerOf(protocol), fieldDport))
	}
	return typeofExpr(exprNumgen, hostUint32s(unix.NFT_NG_RANDOM, nft.IndexModulus, 0))
}

// headerOf is the header in which a port of a protocol stands.
func headerOf(protocol uint8) uint32 {
	switch protocol {
	case unix.IPPROTO_UDP:
		return protoUDP
	case unix.IPPROTO_TCP:
		return protoTCP
	case unix.IPPROTO_SCTP:
		return protoSCTP
	}
	return protoTH
}

// hostUint32s is a list of numbers, each under its index.
func hostUint32s(values ...uint32) (b []byte) {
	for i, v := range values {
		b = userdata.Append(b, userdata.Type(i), binary.NativeEndian.AppendUint32(nil, v))
	}
	return b
}

// commentUserdata is a comment as nft keeps it with tables and elements.
func commentUserdata(comment string) string {
	return string(userdata.AppendString(nil, userdata.TypeComment, nft.PlainComment(comment)))
}
