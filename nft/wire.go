package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// A message of nf_tables is a netlink header, the four bytes of a nfgenmsg and attributes.
// Lengths and types are in host order, values in network order.
const (
	headerLen   = 16 // struct nlmsghdr
	nfHeaderLen = 4  // struct nfgenmsg
	attrLen     = 4  // struct nlattr
	maxAttr     = 1<<16 - 1

	attrTypeMask = 0x3fff // NLA_TYPE_MASK in linux/netlink.h
)

// Numbers that x/sys does not have. Source: linux/netfilter/nf_tables.h.
const (
	attrTableUserdata   = 6    // NFTA_TABLE_USERDATA
	attrTableOwner      = 7    // NFTA_TABLE_OWNER
	attrSetExpr         = 17   // NFTA_SET_EXPR
	attrSetExpressions  = 18   // NFTA_SET_EXPRESSIONS
	attrSetCount        = 20   // NFTA_SET_COUNT
	attrDescConcat      = 2    // NFTA_SET_DESC_CONCAT
	attrFieldLen        = 1    // NFTA_SET_FIELD_LEN
	attrElemKeyEnd      = 10   // NFTA_SET_ELEM_KEY_END
	setFlagConcat       = 0x80 // NFT_SET_CONCAT
	tableFlagOwner      = 0x2  // NFT_TABLE_F_OWNER
	tableFlagPersist    = 0x4  // NFT_TABLE_F_PERSIST
	messageType         = unix.NFNL_SUBSYS_NFTABLES << 8
	messageBatchBegin   = unix.NFNL_MSG_BATCH_BEGIN
	messageBatchEnd     = unix.NFNL_MSG_BATCH_END
	subsystemNFTables   = unix.NFNL_SUBSYS_NFTABLES
	flagsCreate         = unix.NLM_F_REQUEST | unix.NLM_F_CREATE
	flagsCreateAndQueue = flagsCreate | unix.NLM_F_APPEND
)

// A wire appends netlink messages and attributes to a buffer. What is opened last is
// closed first; the offset that opening returns goes back into closing.
type wire struct{ buf []byte }

// openMessage begins a message; res is the resource of the nfgenmsg.
func (w *wire) openMessage(typ, flags uint16, seq uint32, f Family, res uint16) (at int) {
	at = len(w.buf)
	b := append(w.buf, 0, 0, 0, 0)
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0) // the kernel knows the port of a socket
	w.buf = append(b, byte(f), unix.NFNETLINK_V0, byte(res>>8), byte(res))
	return at
}

func (w *wire) closeMessage(at int) {
	binary.NativeEndian.PutUint32(w.buf[at:], uint32(len(w.buf)-at))
}

// open begins a nested attribute.
func (w *wire) open(typ uint16) (at int) {
	at = len(w.buf)
	w.buf = append(w.buf, 0, 0, byte(typ), 0)
	binary.NativeEndian.PutUint16(w.buf[at+2:], typ|unix.NLA_F_NESTED)
	return at
}

// close ends a nested attribute. Its content must be shorter than 64 KiB.
func (w *wire) close(at int) {
	binary.NativeEndian.PutUint16(w.buf[at:], uint16(len(w.buf)-at))
}

// head begins an attribute whose value of n bytes the caller appends, and then pads.
func (w *wire) head(typ uint16, n int) {
	b := binary.NativeEndian.AppendUint16(w.buf, uint16(attrLen+n))
	w.buf = binary.NativeEndian.AppendUint16(b, typ)
}

// pad fills up to the next multiple of four bytes.
func (w *wire) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *wire) bytes(typ uint16, value string) {
	w.head(typ, len(value))
	w.buf = append(w.buf, value...)
	w.pad()
}

// name is a string with the NUL that the kernel wants behind it.
func (w *wire) name(typ uint16, value string) {
	w.head(typ, len(value)+1)
	w.buf = append(w.buf, value...)
	w.buf = append(w.buf, 0)
	w.pad()
}

func (w *wire) uint32(typ uint16, value uint32) {
	w.head(typ, 4)
	w.buf = binary.BigEndian.AppendUint32(w.buf, value)
}

func (w *wire) uint64(typ uint16, value uint64) {
	w.head(typ, 8)
	w.buf = binary.BigEndian.AppendUint64(w.buf, value)
}
